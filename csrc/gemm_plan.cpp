#include "gemm_plan.h"

#include <algorithm>
#include <cstring>

#include "error.h"
#include "gemm_fill.h"

namespace deepasm {
namespace {

enum class Refusal {
  kNone,
  kTierLimit,
  kTier,
  kSmem,
  kLayoutA,
  kLayoutB,
  kTiles,
  kNotLoadable,
  kManyRows,
  kTooNarrow
};

// From here on a product with fewer tiles than half the SMs wants its k split: 512 x 512 x 65536
// ran at a third of cuBLAS's speed, 19 x 100 x 100000 with unaligned rows at a hundredth.
constexpr int64_t kDeepK = 16384;

// Rows of a beyond which kernels that compute the transposed product are not considered: wider
// tiles read b fewer times.
constexpr int64_t kFewRows = 64;

// Codes, not text: this runs for every row of the table on every call.
Refusal why_not(const KernelInfo& kernel, int variant, const GemmProblem& p, const Classes& classes,
                const PlanTarget& target, int64_t batch) {
  if (!kernel_traits(variant).any_strides) {
    if (!classes.a(kernel.a_major).ok) return Refusal::kLayoutA;
    if (!classes.b(kernel.b_major).ok) return Refusal::kLayoutB;
  }
  if (target.tier_limit != 0 && kernel.tier > target.tier_limit) return Refusal::kTierLimit;
  if (!tier_runs_on(kernel.tier, target.cc_major, target.cc_minor)) return Refusal::kTier;
  if (kernel.smem > target.smem_per_block) return Refusal::kSmem;
  // In floating point: the product can overflow 64 bits.
  double tiles = static_cast<double>(tile_count(p.m, kernel.bm)) * tile_count(p.n, kernel.bn);
  if (tiles * static_cast<double>(batch) > kMaxExtent) return Refusal::kTiles;
  if (target.device >= 0) {
    const LoadedKernel* loaded = loaded_kernel(target.device, variant);
    if (loaded != nullptr && loaded->function == nullptr) return Refusal::kNotLoadable;
  }
  return Refusal::kNone;
}

// In the caller's names: the transposed product reads b as its a, and n as its m.
std::string layout_text(const KernelInfo& kernel, char operand, char major, const char* why) {
  if (kernel.d_major == 'm') {
    operand = operand == 'a' ? 'b' : 'a';
    major = major == 'm' ? 'n' : major == 'n' ? 'm' : major;
  }
  return cat("wants ", operand, " contiguous along ", major, ": ", why);
}

std::string refusal_text(Refusal refusal, const KernelInfo& kernel, int variant,
                         const Classes& classes, const PlanTarget& target) {
  switch (refusal) {
    case Refusal::kNone:
      return "";
    case Refusal::kTierLimit:
      return cat("tier sm", kernel.tier, " is above the limit sm", target.tier_limit);
    case Refusal::kTier:
      return cat("tier sm", kernel.tier, " does not run on compute capability ", target.cc_major,
                 ".", target.cc_minor);
    case Refusal::kSmem:
      return cat("needs ", kernel.smem, " bytes of shared memory, the device has ",
                 target.smem_per_block);
    case Refusal::kLayoutA:
      return layout_text(kernel, 'a', kernel.a_major, classes.a(kernel.a_major).why);
    case Refusal::kLayoutB:
      return layout_text(kernel, 'b', kernel.b_major, classes.b(kernel.b_major).why);
    case Refusal::kTiles:
      return "more than 2^31 - 1 tiles";
    case Refusal::kManyRows:
      return cat("is for at most ", kFewRows, " rows: it computes the transposed product");
    case Refusal::kTooNarrow:
      return cat("holds only ", kernel.bn, " rows in a tile; a wider one reads b once");
    case Refusal::kNotLoadable:
      return cat("cannot be loaded on this device: ", loaded_kernel(target.device, variant)->error);
  }
  return "";
}

// The model gives tiles of one size the same cost up to rounding, wherever their long side lies.
// Then a kernel that writes along m wins, in either order: its deeper ring streams b.
bool is_better(double cost, bool along_m, const GemmPlan& best) {
  constexpr double kTie = 1.0001;
  const bool best_along_m = kernel_traits(best.variant).along_m;
  if (along_m == best_along_m) return cost < best.cost;
  return along_m ? cost <= best.cost * kTie : cost * kTie < best.cost;
}

}  // namespace

bool plan_gemm(const GemmProblem& p, const PlanTarget& target, int forced, GemmPlan* plan,
               std::vector<Candidate>* trace) {
  plan->kernel = nullptr;
  plan->variant = -1;
  plan->reason.clear();
  auto refuse = [&](std::string reason) {
    plan->reason = std::move(reason);
    return false;
  };
  if (p.dtype != DType::kBf16 && p.dtype != DType::kF16) {
    return refuse("the inputs are neither bfloat16 nor float16");
  }
  if (p.out_dtype == DType::kOther) {
    return refuse("the output dtype is none of bfloat16, float16 and float32");
  }
  if (target.cc_major < 8) {
    return refuse(cat("compute capability ", target.cc_major, ".", target.cc_minor,
                      " has no kernels; 8.0 is the lowest"));
  }
  if (p.m > kMaxExtent || p.n > kMaxExtent || p.k > kMaxExtent) {
    return refuse("a dimension exceeds 2^31 - 1");
  }
  BatchDim z0, z1;
  split_batch(p, &z0, &z1, plan);
  if (z0.size > kMaxExtent || z1.size > kMaxExtent / z0.size) {
    return refuse("more than 2^31 - 1 products in one batch");
  }
  int64_t batch = z0.size * z1.size;
  Classes classes = classify_operands(p), twin_classes;
  const bool few_rows = p.m <= kFewRows || forced >= 0;
  if (few_rows) {
    transposed_twin(p, &plan->twin);
    twin_classes = classify_operands(plan->twin);
  }
  int refused = -1;  // the last row that cannot run the problem: the most general kernel
  Refusal refusal = Refusal::kNone;
  // Rows of another layout are most of the table: skip them unless somebody wants to know why.
  const bool every_row = trace != nullptr || forced >= 0;
  const unsigned layouts = every_row ? ~0u : classes.layouts();
  const unsigned twin_layouts = every_row ? ~0u : few_rows ? twin_classes.layouts() : 0;
  const int count = kernel_count();
  const KernelTraits* traits = &kernel_traits(0);
  for (int i = 0; i < count; ++i) {
    const bool along_m = traits[i].along_m;
    if (!((along_m ? twin_layouts : layouts) >> traits[i].layout & 1)) continue;
    const KernelInfo& kernel = kernel_info(i);
    if (kernel.dtype != static_cast<int>(p.dtype) || !kernel_traits(i).gemm) continue;
    if (forced >= 0 && i != forced) continue;
    const GemmProblem& q = along_m ? plan->twin : p;
    const Classes& given = along_m ? twin_classes : classes;
    // Measured: rows of a box that lie outside the tensor cost bandwidth, and a second narrow tile
    // reads the weight again.  So the one tile must hold all rows, and the tightest is cheapest.
    bool too_narrow = along_m && forced < 0 && q.n > kernel.bn;
    Refusal why = along_m && !few_rows ? Refusal::kManyRows
                  : too_narrow         ? Refusal::kTooNarrow
                                       : why_not(kernel, i, q, given, target, batch);
    double cost = why == Refusal::kNone ? gemm_cost(i, q.m, q.n, q.k, batch, target) : -1;
    if (trace != nullptr) {
      trace->push_back({i, cost, refusal_text(why, kernel, i, given, target)});
    }
    if (why != Refusal::kNone) {
      refused = i, refusal = why;
    } else if (plan->kernel == nullptr || is_better(cost, along_m, *plan)) {
      plan->kernel = &kernel;
      plan->variant = i;
      plan->cost = cost;
    }
  }
  if (plan->kernel == nullptr) {
    if (refused >= 0) {
      const KernelInfo& kernel = kernel_info(refused);
      const Classes& given = kernel_traits(refused).along_m ? twin_classes : classes;
      return refuse(cat(kernel.name, " ", refusal_text(refusal, kernel, refused, given, target)));
    }
    if (forced >= 0) {
      return refuse(cat("variant ", forced, " is not a gemm kernel for ", dtype_name(p.dtype),
                        "; the table has ", kernel_count(), " rows"));
    }
    return refuse(cat("there is no kernel for ", dtype_name(p.dtype)));
  }
  plan->transposed = kernel_traits(plan->variant).along_m;
  double tiles = static_cast<double>(tile_count(p.m, plan->kernel->bm)) *
                 tile_count(p.n, plan->kernel->bn) * static_cast<double>(batch);
  if (forced < 0 && !plan->transposed && p.k >= kDeepK && tiles * 2 <= target.sms) {
    const char* name = plan->kernel->name;
    plan->kernel = nullptr;
    plan->variant = -1;
    return refuse(cat("k is ", p.k, " and ", name, " has only ", static_cast<int64_t>(tiles),
                      " tiles for ", target.sms, " SMs: no kernel splits k yet, torch does"));
  }
  if (plan->transposed) {
    split_batch(plan->twin, &z0, &z1, plan);
    fill_plan(plan->twin, twin_classes, z0, z1, plan);
  } else {
    fill_plan(p, classes, z0, z1, plan);
  }
  // With max_sms one block an SM: more would spread over the SMs that were to stay free.
  int blocks = target.max_sms > 0 ? std::min(target.max_sms, target.sms)
                                  : target.sms * blocks_per_sm(plan->variant, target);
  plan->grid = std::min(plan->params.tiles, static_cast<uint32_t>(blocks));
  return true;
}

}  // namespace deepasm
