#include "gemm_explain.h"

#include <cstring>

#include "error.h"
#include "json.h"
#include "options.h"

namespace deepasm {
namespace {

// `solved` is what the kernel computes: `p` itself, or its transposed twin.
void write_problem(Json& json, const GemmProblem& p, const GemmProblem& solved) {
  json.field("m", p.m).field("n", p.n).field("k", p.k);
  json.key("batch").begin_list();
  for (int i = 0; i < p.n_batch; ++i) json.value(p.batch[i].size);
  json.end_list();
  json.list("out_shape", p.out_sizes, static_cast<size_t>(p.out_ndim));
  json.field("transposed", solved.transposed).field("bias_as_c", solved.bias_as_c);
  json.field("bias_copy", p.bias_copy);
}

// Which of the caller's tensors each pointer of the parameter block stands for.
void write_pointers(Json& json, const GemmProblem& p) {
  json.key("pointers").begin_object();
  json.field("a", p.transposed ? "b" : "a").field("b", p.transposed ? "a" : "b");
  json.field("d", "out");
  if (p.has_c) json.field("c", p.bias_as_c ? "bias" : "c");
  if (p.has_bias) json.field("bias", "bias");
  json.end_object();
}

void write_maps(Json& json, const GemmPlan& plan) {
  static const char* const names[3] = {"map_a", "map_b", "map_d"};
  static const char* const fields[3] = {"a", "b", "d"};
  json.key("tensor_maps").begin_list();
  for (int i = 0; i < 3; ++i) {
    const TensorMapSpec& map = plan.maps[i];
    if (!map.used) continue;
    json.begin_object().field("name", names[i]).field("pointer", fields[i]);
    json.field("dtype", map.type == kMapBf16 ? "bf16" : map.type == kMapF16 ? "f16" : "f32");
    json.list("dims", map.dims, 4).list("strides", map.strides, 3).list("box", map.box, 4);
    json.field("swizzle", 128).field("l2_promotion", 128).end_object();
  }
  json.end_list();
}

void write_params(Json& json, const GemmPlan& plan) {
  GemmParams params = plan.params;
  params.a = params.b = params.c = params.d = params.bias = 0;
  unsigned char bytes[sizeof params];
  std::memcpy(bytes, &params, sizeof params);
  std::string hex;
  char two[3];
  for (unsigned char byte : bytes) {
    std::snprintf(two, sizeof two, "%02x", byte);
    hex += two;
  }
  json.field("params", hex);
}

void write_kernel(Json& json, const GemmProblem& p, const GemmPlan& plan) {
  const KernelInfo& kernel = *plan.kernel;
  json.field("variant", plan.variant).field("kernel", kernel.name).field("tier", kernel.tier);
  const int grid[3] = {static_cast<int>(plan.grid), 1, 1}, block[3] = {kernel.threads, 1, 1},
            cluster[3] = {kernel.cluster, 1, 1};
  json.list("grid", grid, 3).list("block", block, 3).list("cluster", cluster, 3);
  json.field("smem", kernel.smem).field("flags", plan.params.flags).field("cost", plan.cost);
  json.field("programmatic_launch", kernel.tier >= 90);
  write_params(json, plan);
  write_pointers(json, p);
  write_maps(json, plan);
  json.field("launches", plan.launches);
  json.key("loop").begin_list();
  for (int i = 0; i < plan.loop_dims; ++i) {
    const LoopDim& loop = plan.loop[i];
    json.begin_object().field("count", loop.count).field("a", loop.a).field("b", loop.b);
    json.field("c", loop.c).field("d", loop.d).end_object();
  }
  json.end_list();
}

// What no tensor and no GPU has: the planner counts on their absence.
void check_query(const PlanQuery& query) {
  struct Named {
    const char* name;
    const TensorSpec& spec;
  };
  for (const Named& x : {Named{"a", query.a}, Named{"b", query.b}, Named{"bias", query.bias},
                         Named{"c", query.c}, Named{"out", query.out}}) {
    for (size_t i = 0; i < x.spec.sizes.size(); ++i) {
      bool size = x.spec.sizes[i] < 0;
      if (!size && x.spec.strides[i] >= 0) continue;
      throw DescriptionError(cat("plan_gemm: ", x.name, " has ", size ? "size " : "stride ",
                                 size ? x.spec.sizes[i] : x.spec.strides[i], " in dimension ", i,
                                 ", expected 0 or more, as every torch tensor has; describe the "
                                 "tensor by its own .shape and .stride()"));
    }
  }
  if (query.target.sms < 1) {
    throw DescriptionError(cat("plan_gemm: the device has ", query.target.sms,
                               " multiprocessors, expected 1 or more; give DeviceRecord the real "
                               "sms, and limit a launch with max_sms"));
  }
  std::string error;
  if (!check_option("tier", query.target.tier_limit, &error) ||
      !check_option("max_sms", query.target.max_sms, &error)) {
    throw DescriptionError(cat("plan_gemm: ", error));
  }
}

}  // namespace

TensorView TensorSpec::view() const {
  TensorView v;
  v.sizes = sizes.data(), v.strides = strides.data();
  v.ndim = static_cast<int>(sizes.size());
  v.dtype = static_cast<DType>(dtype);
  v.data = address;
  return v;
}

std::string plan_json(const PlanQuery& query) {
  check_query(query);
  check_activation(query.activation);
  Json json;
  json.begin_object();
  auto finish = [&](const char* route, const std::string& reason) {
    json.field("route", route).field("reason", reason).end_object();
    return json.text();
  };
  for (const TensorSpec* spec : {&query.a, &query.b, &query.c, &query.out}) {
    if (spec->sizes.size() > static_cast<size_t>(kMaxDims)) {
      return finish("fallback", "a tensor has more than 16 dimensions");
    }
  }
  GemmArgs args;
  args.a = query.a.view(), args.b = query.b.view();
  args.has_bias = query.bias.given, args.has_c = query.c.given;
  if (args.has_bias) args.bias = query.bias.view();
  if (args.has_c) args.c = query.c.view();
  args.alpha = static_cast<float>(query.alpha), args.beta = static_cast<float>(query.beta);
  args.activation = query.activation;
  args.out_dtype = static_cast<DType>(query.out.given ? query.out.dtype : query.out_dtype);
  for (const TensorView* addend : {&args.bias, &args.c}) {
    bool given = addend == &args.bias ? args.has_bias : args.has_c;
    bool fits = !given || addend->dtype == args.a.dtype || addend->dtype == DType::kF32;
    check_addend_dtype(addend == &args.bias ? "bias" : "c", dtype_name(addend->dtype),
                       dtype_name(args.a.dtype), fits);
  }
  GemmProblem problem;
  TensorView out = query.out.view();
  prepare_problem(args, query.out.given ? &out : nullptr, &problem);

  bool out_copy = false, empty = out_numel(problem) == 0;
  if (problem.bias_copy) use_bias_copy(&problem, 0);
  if (query.out.given && !empty) out_copy = use_output(args, out, &problem) == OutUse::kCopy;
  if (!query.out.given || out_copy) {
    int64_t strides[kMaxDims];
    contiguous_strides(problem, strides);
    set_output(&problem, 0, strides);
  }
  GemmPlan plan;
  std::vector<Candidate> trace;
  bool planned = !empty && !query.disabled && problem.k != 0;
  bool found = planned && plan_gemm(problem, query.target, query.variant, &plan, &trace);
  const GemmProblem& solved = found && plan.transposed ? plan.twin : problem;
  write_problem(json, problem, solved);
  json.field("out_copy", out_copy);
  if (empty) return finish("empty", "the output has no elements");
  if (query.disabled) return finish("fallback", "disabled");
  if (problem.k == 0) return finish("reference", "k is 0: the sum is empty");
  json.key("candidates").begin_list();
  for (const Candidate& candidate : trace) {
    json.begin_object().field("variant", candidate.variant);
    json.field("kernel", kernel_info(candidate.variant).name);
    if (candidate.reason.empty()) {
      json.field("cost", candidate.cost);
    } else {
      json.field("reason", candidate.reason);
    }
    json.end_object();
  }
  json.end_list();
  if (!found) return finish("fallback", plan.reason);
  write_kernel(json, solved, plan);
  return finish("kernel", "");
}

}  // namespace deepasm
