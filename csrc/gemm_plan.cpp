#include "gemm_plan.h"

#include <algorithm>
#include <cstring>

#include "error.h"

namespace deepasm {
namespace {

constexpr int64_t kMaxExtent = INT32_MAX;     // coordinates are signed 32-bit in the kernels
constexpr int64_t kMaxMapStride = 1ll << 40;  // bytes; limit of a tensor map
constexpr uint32_t kRasterGroup = 8;          // tile rows; 4 to 32 measured within 1.5 %
constexpr int64_t kChunk = 8;                 // elements of 2 bytes in a 16-byte load

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
// Extents are below 2^31 here, and a 32-bit division is several times faster.
uint32_t tile_count(int64_t extent, int tile) {
  return (static_cast<uint32_t>(extent) + static_cast<uint32_t>(tile) - 1) /
         static_cast<uint32_t>(tile);
}
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// How an operand of `inner` x `outer` elements can be read with 16-byte loads along `inner`.
struct Major {
  bool ok = false;
  const char* why = "";  // when not ok
  int64_t pitch = 0;     // elements from one outer index to the next; legal even for outer == 1
};

Major classify(uint64_t base, int64_t inner, int64_t s_inner, int64_t outer, int64_t s_outer,
               bool batch_ok) {
  Major result;
  if (inner != 1 && s_inner != 1) {
    result.why = "not contiguous in that dimension";
  } else if (base % 16 != 0) {
    result.why = "address not a multiple of 16 bytes";
  } else if (!batch_ok) {
    result.why = "batch stride not a multiple of 8 elements";
  } else if (outer != 1 && s_outer % kChunk != 0) {
    result.why = "row stride not a multiple of 8 elements";
  } else if (outer != 1 && s_outer < inner) {
    result.why = "rows overlap";
  } else if (outer != 1 && s_outer * 2 >= kMaxMapStride) {
    result.why = "row stride of 2^40 bytes or more";
  } else {
    result.ok = true;
    result.pitch = outer == 1 ? round_up(inner, kChunk) : s_outer;
  }
  return result;
}

struct Classes {
  Major a_k, a_m, b_k, b_n;

  const Major& a(char major) const { return major == 'k' ? a_k : a_m; }
  const Major& b(char major) const { return major == 'k' ? b_k : b_n; }

  // Bit set of the layouts (layout_bit) that kernels may read the operands in.
  unsigned layouts() const {
    unsigned mask = 1u << layout_bit('*', '*');
    for (char a_major : {'k', 'm'}) {
      for (char b_major : {'k', 'n'}) {
        if (a(a_major).ok && b(b_major).ok) mask |= 1u << layout_bit(a_major, b_major);
      }
    }
    return mask;
  }
};

Classes classify_operands(const GemmProblem& p) {
  bool a_batch = true, b_batch = true;
  for (int i = 0; i < p.n_batch; ++i) {
    a_batch &= p.batch[i].a % kChunk == 0 && p.batch[i].a * 2 < kMaxMapStride;
    b_batch &= p.batch[i].b % kChunk == 0 && p.batch[i].b * 2 < kMaxMapStride;
  }
  Classes classes;
  classes.a_k = classify(p.a, p.k, p.a_sk, p.m, p.a_sm, a_batch);
  classes.a_m = classify(p.a, p.m, p.a_sm, p.k, p.a_sk, a_batch);
  classes.b_k = classify(p.b, p.k, p.b_sk, p.n, p.b_sn, b_batch);
  classes.b_n = classify(p.b, p.n, p.b_sn, p.k, p.b_sk, b_batch);
  return classes;
}

enum class Refusal { kNone, kTierLimit, kTier, kSmem, kLayoutA, kLayoutB, kTiles, kNotLoadable };

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
      return cat("wants a contiguous along ", kernel.a_major, ": ", classes.a(kernel.a_major).why);
    case Refusal::kLayoutB:
      return cat("wants b contiguous along ", kernel.b_major, ": ", classes.b(kernel.b_major).why);
    case Refusal::kTiles:
      return "more than 2^31 - 1 tiles";
    case Refusal::kNotLoadable:
      return cat("cannot be loaded on this device: ", loaded_kernel(target.device, variant)->error);
  }
  return "";
}

// The two largest batch dimensions go into the launch, any others become a loop on the host.
void split_batch(const GemmProblem& p, BatchDim* z0, BatchDim* z1, GemmPlan* plan) {
  int big[2] = {-1, -1};
  for (int i = p.n_batch - 1; i >= 0; --i) {
    if (big[0] < 0 || p.batch[i].size > p.batch[big[0]].size) {
      big[1] = big[0];
      big[0] = i;
    } else if (big[1] < 0 || p.batch[i].size > p.batch[big[1]].size) {
      big[1] = i;
    }
  }
  if (big[1] > big[0]) std::swap(big[0], big[1]);  // z0 is the inner one
  *z0 = big[0] < 0 ? BatchDim{1, 0, 0, 0, 0} : p.batch[big[0]];
  *z1 = big[1] < 0 ? BatchDim{1, 0, 0, 0, 0} : p.batch[big[1]];
  plan->loop_dims = 0;
  plan->launches = 1;
  int c_size = p.has_c ? element_size(p.c_dtype) : 0, d_size = element_size(p.out_dtype);
  for (int i = 0; i < p.n_batch; ++i) {
    if (i == big[0] || i == big[1]) continue;
    const BatchDim& dim = p.batch[i];
    plan->loop[plan->loop_dims++] = {dim.size, dim.a * 2, dim.b * 2, dim.c * c_size,
                                     dim.d * d_size};
    plan->launches *= dim.size;
  }
}

bool tma_can_store(const GemmProblem& p) {
  int size = element_size(p.out_dtype);
  // TMA stores clip at 16-byte granularity: a row must end on one, or its tail would be written.
  if (p.d % 16 != 0 || p.n * size % 16 != 0) return false;
  if (p.m != 1 && (p.d_sm * size % 16 != 0 || p.d_sm * size >= kMaxMapStride)) return false;
  for (int i = 0; i < p.n_batch; ++i) {
    if (p.batch[i].d * size % 16 != 0 || p.batch[i].d * size >= kMaxMapStride) return false;
  }
  return true;
}

// The batch part of a map: a broadcast dimension gets extent 1 and some legal stride.
void map_batch(TensorMapSpec* map, const BatchDim& z0, const BatchDim& z1, int64_t s0, int64_t s1,
               int size) {
  map->dims[2] = s0 == 0 ? 1 : z0.size;
  map->dims[3] = s1 == 0 ? 1 : z1.size;
  map->strides[1] = s0 == 0 ? map->strides[0] : s0 * size;
  map->strides[2] = s1 == 0 ? map->strides[0] : s1 * size;
  map->box[2] = map->box[3] = 1;
}

void operand_map(TensorMapSpec* map, uint64_t base, int64_t inner, int64_t outer, int64_t pitch,
                 uint32_t outer_box, uint32_t type) {
  *map = TensorMapSpec{};
  map->base = base;
  map->dims[0] = inner, map->dims[1] = outer;
  map->strides[0] = pitch * 2;
  map->box[0] = 64, map->box[1] = outer_box;  // 64 elements of 2 bytes: one swizzled row
  map->type = type;
  map->used = 1;
}

void fill_maps(const GemmProblem& p, const KernelInfo& kernel, const Classes& classes,
               const BatchDim& z0, const BatchDim& z1, bool tma_store, GemmPlan* plan) {
  std::memset(plan->maps, 0, sizeof plan->maps);
  if (!kernel_traits(plan->variant).tma) return;
  uint32_t type = p.dtype == DType::kBf16 ? kMapBf16 : kMapF16;
  TensorMapSpec &a = plan->maps[0], &b = plan->maps[1], &d = plan->maps[2];
  if (kernel.a_major == 'k') {
    operand_map(&a, p.a, p.k, p.m, classes.a_k.pitch, kernel.bm, type);
  } else {
    operand_map(&a, p.a, p.m, p.k, classes.a_m.pitch, 64, type);
  }
  map_batch(&a, z0, z1, z0.a, z1.a, 2);
  if (kernel.b_major == 'k') {
    operand_map(&b, p.b, p.k, p.n, classes.b_k.pitch, kernel.bn, type);
  } else {
    operand_map(&b, p.b, p.n, p.k, classes.b_n.pitch, 64, type);
  }
  map_batch(&b, z0, z1, z0.b, z1.b, 2);
  if (!tma_store) return;
  int size = element_size(p.out_dtype);
  d.base = p.d;
  d.dims[0] = p.n, d.dims[1] = p.m;
  d.strides[0] = (p.m == 1 ? p.n : p.d_sm) * size;
  d.box[0] = 128 / size, d.box[1] = 64;
  d.type = p.out_dtype == DType::kBf16 ? kMapBf16 : p.out_dtype == DType::kF16 ? kMapF16 : kMapF32;
  d.used = 1;
  // A size-1 dimension of d has stride 0 here; every real one is written through its own stride.
  map_batch(&d, z0, z1, z0.size == 1 ? 0 : z0.d, z1.size == 1 ? 0 : z1.d, size);
}

// Granlund and Montgomery: exact for dividends below 2^31, the same numbers as kernels/params.py.
FastDivisor fast_divisor(uint32_t d) {
  uint32_t shift = 0;
  while ((1ull << shift) < d) ++shift;
  uint64_t mul = (((1ull << shift) - d) << 32) / d + 1;
  return {static_cast<uint32_t>(mul), shift};
}

// What a kernel needs to turn a tile number into tile row, tile column and batch indices.
void fill_raster(const KernelInfo& kernel, int64_t batch, GemmParams* q) {
  q->tiles_m = static_cast<uint32_t>(ceil_div(q->m, kernel.bm));
  q->tiles_n = static_cast<uint32_t>(ceil_div(q->n, kernel.bn));
  q->per_batch = q->tiles_m * q->tiles_n;
  q->tiles = static_cast<uint32_t>(q->per_batch * batch);
  q->group_m = std::min(kRasterGroup, q->tiles_m);  // so that span fits 32 bits
  q->span = q->group_m * q->tiles_n;
  q->last_rows = q->tiles_m - (q->tiles_m - 1) / q->group_m * q->group_m;
  q->div_batch = fast_divisor(q->per_batch);
  q->div_nz0 = fast_divisor(q->nz0);
  q->div_span = fast_divisor(q->span);
  q->div_rows = fast_divisor(q->group_m);
  q->div_last = fast_divisor(q->last_rows);
}

void fill_params(const GemmProblem& p, const KernelInfo& kernel, const Classes& classes,
                 const BatchDim& z0, const BatchDim& z1, bool tma_store, GemmPlan* plan) {
  GemmParams& q = plan->params;
  std::memset(&q, 0, sizeof q);
  q.a = p.a, q.b = p.b, q.d = p.d;
  q.a_sm = p.a_sm, q.a_sk = p.a_sk, q.a_sz0 = z0.a, q.a_sz1 = z1.a;
  q.b_sk = p.b_sk, q.b_sn = p.b_sn, q.b_sz0 = z0.b, q.b_sz1 = z1.b;
  if (!kernel_traits(plan->variant).any_strides) {
    // Dimensions of size 1 get the stride that the kernel's addressing expects.
    (kernel.a_major == 'k' ? q.a_sk : q.a_sm) = 1;
    (kernel.a_major == 'k' ? q.a_sm : q.a_sk) = classes.a(kernel.a_major).pitch;
    (kernel.b_major == 'k' ? q.b_sk : q.b_sn) = 1;
    (kernel.b_major == 'k' ? q.b_sn : q.b_sk) = classes.b(kernel.b_major).pitch;
  }
  q.d_sm = p.m == 1 ? p.n : p.d_sm, q.d_sz0 = z0.d, q.d_sz1 = z1.d;
  q.alpha = p.alpha, q.beta = p.has_c ? p.beta : 0;
  q.m = static_cast<uint32_t>(p.m), q.n = static_cast<uint32_t>(p.n);
  q.k = static_cast<uint32_t>(p.k), q.nz0 = static_cast<uint32_t>(z0.size);
  q.k_blocks = static_cast<uint32_t>(ceil_div(p.k, kernel.bk));
  fill_raster(kernel, z0.size * z1.size, &q);
  namespace f = gemm_flags;
  uint32_t flags = static_cast<uint32_t>(p.out_dtype) << f::out_dtype_shift;
  flags |= static_cast<uint32_t>(p.activation) << f::activation_shift;
  if (p.has_bias) {
    q.bias = p.bias;
    flags |= f::has_bias | (p.bias_dtype == DType::kF32 ? f::bias_f32 : 0);
  }
  if (p.has_c) {
    q.c = p.c;
    q.c_sm = p.c_sm, q.c_sn = p.c_sn, q.c_sz0 = z0.c, q.c_sz1 = z1.c;
    flags |= f::has_c | (p.c_dtype == DType::kF32 ? f::c_f32 : 0);
  }
  if (tma_store) flags |= f::tma_store;
  if (z0.size > 1 && z0.a != 0) flags |= f::a_z0;
  if (z1.size > 1 && z1.a != 0) flags |= f::a_z1;
  if (z0.size > 1 && z0.b != 0) flags |= f::b_z0;
  if (z1.size > 1 && z1.b != 0) flags |= f::b_z1;
  if (p.alpha != 1) flags |= f::scale_alpha;
  q.flags = flags;
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
  Classes classes = classify_operands(p);
  int refused = -1;  // the last row that cannot run the problem: the most general kernel
  Refusal refusal = Refusal::kNone;
  // Rows of another layout are most of the table: skip them unless somebody wants to know why.
  const unsigned layouts = trace != nullptr || forced >= 0 ? ~0u : classes.layouts();
  const int count = kernel_count();
  const KernelTraits* traits = &kernel_traits(0);
  for (int i = 0; i < count; ++i) {
    if (!(layouts >> traits[i].layout & 1)) continue;
    const KernelInfo& kernel = kernel_info(i);
    if (kernel.dtype != static_cast<int>(p.dtype) || !kernel_traits(i).gemm) continue;
    if (forced >= 0 && i != forced) continue;
    Refusal why = why_not(kernel, i, p, classes, target, batch);
    double cost = why == Refusal::kNone ? gemm_cost(i, p.m, p.n, p.k, batch, target) : -1;
    if (trace != nullptr) {
      trace->push_back({i, cost, refusal_text(why, kernel, i, classes, target)});
    }
    if (why != Refusal::kNone) {
      refused = i, refusal = why;
    } else if (plan->kernel == nullptr || cost < plan->cost) {
      plan->kernel = &kernel;
      plan->variant = i;
      plan->cost = cost;
    }
  }
  if (plan->kernel == nullptr) {
    if (refused >= 0) {
      const KernelInfo& kernel = kernel_info(refused);
      return refuse(cat(kernel.name, " ", refusal_text(refusal, kernel, refused, classes, target)));
    }
    if (forced >= 0) {
      return refuse(cat("variant ", forced, " is not a gemm kernel for ", dtype_name(p.dtype),
                        "; the table has ", kernel_count(), " rows"));
    }
    return refuse(cat("there is no kernel for ", dtype_name(p.dtype)));
  }
  const KernelInfo& kernel = *plan->kernel;
  bool tma_store = kernel_traits(plan->variant).tma && tma_can_store(p);
  fill_params(p, kernel, classes, z0, z1, tma_store, plan);
  fill_maps(p, kernel, classes, z0, z1, tma_store, plan);
  // With max_sms one block an SM: more would spread over the SMs that were to stay free.
  int blocks = target.max_sms > 0 ? std::min(target.max_sms, target.sms)
                                  : target.sms * blocks_per_sm(plan->variant, target);
  plan->grid = std::min(plan->params.tiles, static_cast<uint32_t>(blocks));
  return true;
}

}  // namespace deepasm
