#include "error.h"
#include "json.h"
#include "kernels.h"
#include "options.h"

namespace deepasm {

std::string kernels_json() {
  Json json;
  json.begin_list();
  for (int i = 0; i < kernel_count(); ++i) {
    const KernelInfo& k = kernel_info(i);
    json.begin_object();
    json.field("variant", i).field("name", k.name).field("op", k.op).field("tier", k.tier);
    json.field("dtype", k.dtype == 0 ? "bf16" : "f16");
    json.field("a_major", std::string(1, k.a_major)).field("b_major", std::string(1, k.b_major));
    json.field("d_major", std::string(1, k.d_major));
    json.field("schedule", k.schedule).field("bm", k.bm).field("bn", k.bn).field("bk", k.bk);
    json.field("stages", k.stages).field("threads", k.threads).field("cluster", k.cluster);
    json.field("smem", k.smem).field("regs", k.regs).field("loads", k.loads);
    json.key("images").begin_list();
    for (int at = k.first_image; at < k.first_image + k.images; ++at) {
      const ImageInfo& image = image_info(at);
      json.begin_object().field("image", at).field("arch", arch_name(image));
      json.field("kind", image.kind == 0 ? "cubin" : "ptx");
      json.field("packed_bytes", image.packed).field("raw_bytes", image.raw).end_object();
    }
    json.end_list().end_object();
  }
  json.end_list();
  return json.text();
}

std::string build_json() {
  Json json;
  json.begin_object().field("kernels", kernel_count()).field("ptxas", ptxas_version());
  return json.end_object().text();
}

std::string device_json(int index) {
  const Driver& cu = driver();
  const DeviceInfo& device = device_info(index);
  int tier = 0, limit = options().tier;
  for (int candidate : {80, 90}) {
    if ((limit == 0 || candidate <= limit) &&
        tier_runs_on(candidate, device.cc_major, device.cc_minor)) {
      tier = candidate;
    }
  }
  Json json;
  json.begin_object();
  json.field("index", index).field("name", static_cast<const char*>(device.name));
  json.field("cc", cat(device.cc_major, ".", device.cc_minor)).field("sms", device.sms);
  json.field("smem_per_block", device.smem_per_block).field("l2_bytes", device.l2_bytes);
  json.field("driver", cat(cu.version / 1000, ".", cu.version % 1000 / 10));
  json.key("tier");
  if (tier == 0) {
    json.null();
  } else {
    json.value(cat("sm", tier));
  }
  json.key("kernels").begin_list();
  for (int i = 0; i < kernel_count(); ++i) {
    const LoadedKernel* kernel = loaded_kernel(index, i);
    if (kernel == nullptr) continue;
    json.begin_object().field("name", kernel_info(i).name);
    if (kernel->function != nullptr) {
      json.field("loaded_from", kernel->how);
    } else {
      json.field("error", kernel->error);
    }
    json.end_object();
  }
  json.end_list().end_object();
  return json.text();
}

}  // namespace deepasm
