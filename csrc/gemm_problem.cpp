#include "gemm_problem.h"

#include <algorithm>

#include "error.h"

namespace deepasm {
namespace {

// Batch dimensions of the three readers aligned at the right, torch's broadcasting.
void broadcast_batch(const GemmArgs& args, int a_batch, int b_batch, GemmProblem* p) {
  int n = std::max(a_batch, b_batch);
  p->n_batch = n;
  for (int i = 0; i < n; ++i) {
    int ia = i - (n - a_batch), ib = i - (n - b_batch);
    int64_t sa = ia < 0 ? 1 : args.a.sizes[ia], sb = ib < 0 ? 1 : args.b.sizes[ib];
    if (sa != sb && sa != 1 && sb != 1) {
      TensorView a = args.a, b = args.b;
      a.ndim = a_batch, b.ndim = b_batch;
      fail("gemm: b has batch dimensions ", shape_text(b), " while those of a are ", shape_text(a),
           ", expected sizes that broadcast (equal, or 1); reshape or expand one of them");
    }
    BatchDim& dim = p->batch[i];
    dim = {sa == 1 ? sb : sa, 0, 0, 0, 0};
    if (ia >= 0 && sa != 1) dim.a = args.a.strides[ia];
    if (ib >= 0 && sb != 1) dim.b = args.b.strides[ib];
    p->out_sizes[i] = dim.size;
  }
  p->out_ndim = n;
}

void check_inner(const GemmArgs& args, int64_t a_k, int64_t b_k) {
  if (a_k == b_k) return;
  fail("gemm: mat1 and mat2 shapes cannot be multiplied: a has shape ", shape_text(args.a),
       " and b has shape ", shape_text(args.b), ", so k is ", a_k, " in a and ", b_k,
       " in b; transpose one of them, e.g. with .mT");
}

void add_bias(const GemmArgs& args, GemmProblem* p) {
  const TensorView& bias = args.bias;
  if (bias.ndim != 1 || (bias.sizes[0] != p->n && bias.sizes[0] != 1)) {
    fail("gemm: bias has shape ", shape_text(bias), ", expected one dimension of size ", p->n,
         " (the columns of the output) or 1; add anything else to the result instead");
  }
  p->has_bias = true;
  p->bias_dtype = bias.dtype;
  p->bias = bias.data;
  p->bias_stride = bias.sizes[0] == 1 ? (p->n == 1 ? 1 : 0) : bias.strides[0];
}

void add_c(const GemmArgs& args, GemmProblem* p) {
  const TensorView& c = args.c;
  bool fits = c.ndim <= p->out_ndim;
  for (int i = 0; fits && i < c.ndim; ++i) {
    int64_t want = p->out_sizes[p->out_ndim - c.ndim + i];
    fits = c.sizes[i] == want || c.sizes[i] == 1;
  }
  TensorView out;
  out.sizes = p->out_sizes;
  out.ndim = p->out_ndim;
  if (!fits) {
    fail("gemm: c has shape ", shape_text(c), ", which cannot be broadcast to the output's shape ",
         shape_text(out), "; expand or reshape it");
  }
  if (args.beta == 0) return;  // torch does not read c then, not even its NaNs
  p->has_c = true;
  p->c_dtype = c.dtype;
  p->c = c.data;
  for (int i = 0; i < c.ndim; ++i) {
    if (c.sizes[i] == 1) continue;
    int at = p->out_ndim - c.ndim + i;
    if (at < p->n_batch) {
      p->batch[at].c = c.strides[i];
    } else if (at == p->n_batch && !p->a_vector) {
      p->c_sm = c.strides[i];
    } else {
      p->c_sn = c.strides[i];
    }
  }
}

void drop_unit_dims(GemmProblem* p) {
  // The stride of a dimension of size 1 says nothing; 0 keeps it out of every later comparison.
  if (p->m == 1) p->a_sm = p->c_sm = p->d_sm = 0;
  if (p->n == 1) p->b_sn = p->c_sn = 0, p->d_sn = 1;
  if (p->k == 1) p->a_sk = p->b_sk = 0;
  int kept = 0;
  for (int i = 0; i < p->n_batch; ++i) {
    if (p->batch[i].size != 1) p->batch[kept++] = p->batch[i];
  }
  p->n_batch = kept;
}

void remove_batch_dim(GemmProblem* p, int at) {
  std::copy(p->batch + at + 1, p->batch + p->n_batch, p->batch + at);
  --p->n_batch;
}

// True when one step of the outer dimension continues where `size` steps of the inner one end.
bool steps_over(int64_t outer, int64_t inner, int64_t size) {
  int64_t whole;
  return !__builtin_mul_overflow(inner, size, &whole) && outer == whole;
}

// A batch dimension that b does not have becomes more rows, when a, c and d step through it as if
// it were rows already.
void fold_into_m(GemmProblem* p) {
  constexpr int64_t kMaxRows = INT32_MAX;
  for (int i = p->n_batch - 1; i >= 0;) {
    const BatchDim& dim = p->batch[i];
    // With one row any a stride will do, but 0: rows of stride 0 would need the slowest kernel.
    bool rows = p->m == 1 ? dim.a != 0
                          : (steps_over(dim.a, p->a_sm, p->m) && steps_over(dim.c, p->c_sm, p->m) &&
                             steps_over(dim.d, p->d_sm, p->m));
    if (dim.b != 0 || !rows || dim.size > kMaxRows / p->m) {
      --i;
      continue;
    }
    if (p->m == 1) p->a_sm = dim.a, p->c_sm = dim.c, p->d_sm = dim.d;
    p->m *= dim.size;
    remove_batch_dim(p, i);
    i = p->n_batch - 1;  // what did not fit before may fit now
  }
}

void merge_batch_dims(GemmProblem* p) {
  for (int i = p->n_batch - 2; i >= 0; --i) {
    BatchDim& outer = p->batch[i];
    const BatchDim& inner = p->batch[i + 1];
    int64_t size = inner.size;
    if (steps_over(outer.a, inner.a, size) && steps_over(outer.b, inner.b, size) &&
        steps_over(outer.c, inner.c, size) && steps_over(outer.d, inner.d, size)) {
      outer = {saturating_mul(outer.size, size), inner.a, inner.b, inner.c, inner.d};
      remove_batch_dim(p, i + 1);
    }
  }
}

void transpose(GemmProblem* p) {
  std::swap(p->m, p->n);
  std::swap(p->a, p->b);
  int64_t a_sm = p->a_sm, a_sk = p->a_sk;
  p->a_sm = p->b_sn, p->a_sk = p->b_sk;
  p->b_sk = a_sk, p->b_sn = a_sm;
  std::swap(p->c_sm, p->c_sn);
  std::swap(p->d_sm, p->d_sn);
  for (int i = 0; i < p->n_batch; ++i) std::swap(p->batch[i].a, p->batch[i].b);
  p->transposed = true;
}

// c can stand in for a bias that a kernel cannot address: c has strides of its own.
void bias_through_c(GemmProblem* p) {
  p->has_c = true, p->has_bias = false, p->bias_as_c = true;
  p->c = p->bias, p->c_dtype = p->bias_dtype, p->beta = 1;
  p->c_sm = 0, p->c_sn = p->bias_stride;
  for (int i = 0; i < p->n_batch; ++i) p->batch[i].c = 0;
}

void check_out(const TensorView& out, const GemmProblem& problem) {
  bool same = out.ndim == problem.out_ndim;
  for (int i = 0; same && i < problem.out_ndim; ++i) {
    same = out.sizes[i] == problem.out_sizes[i];
  }
  if (!same) {
    TensorView want;
    want.sizes = problem.out_sizes, want.ndim = problem.out_ndim;
    fail("gemm: out has shape ", shape_text(out), ", expected ", shape_text(want),
         "; allocate it with that shape (deepasm_torch.functional resizes out= as torch does)");
  }
  for (int i = 0; i < out.ndim; ++i) {
    if (out.sizes[i] > 1 && out.strides[i] == 0) {
      fail(
          "gemm: unsupported operation: more than one element of out refers to a single memory "
          "location (dimension ",
          i, " has stride 0); pass out.contiguous() or a fresh tensor");
    }
  }
}

int64_t saturating_add(int64_t x, int64_t y) {
  int64_t sum;
  return __builtin_add_overflow(x, y, &sum) ? INT64_MAX : sum;
}

// True when no two indices of a tensor can address the same element.
bool surely_no_overlap(const TensorView& view) {
  int order[kMaxDims];
  int n = 0;
  for (int i = 0; i < view.ndim; ++i) {
    if (view.sizes[i] == 0) return true;
    if (view.sizes[i] != 1) order[n++] = i;
  }
  std::sort(order, order + n, [&](int x, int y) { return view.strides[x] < view.strides[y]; });
  int64_t reach = 0;  // highest offset that the dimensions so far can reach
  for (int i = 0; i < n; ++i) {
    int64_t stride = view.strides[order[i]];
    if (stride <= reach) return false;
    reach = saturating_add(reach, saturating_mul(stride, view.sizes[order[i]] - 1));
  }
  return true;
}

// First and one-past-last byte that a tensor can touch.
void byte_range(const TensorView& view, uint64_t* first, uint64_t* last) {
  int64_t reach = 0;
  for (int i = 0; i < view.ndim; ++i) {
    reach = saturating_add(reach, saturating_mul(view.sizes[i] - 1, view.strides[i]));
  }
  int64_t bytes = saturating_mul(saturating_add(reach, 1), element_size(view.dtype));
  *first = view.data;
  *last = view.data + std::min(static_cast<uint64_t>(bytes), UINT64_MAX - view.data);
}

bool share_bytes(const TensorView& x, const TensorView& y) {
  if (x.data == 0 || y.data == 0) return false;
  uint64_t x_first, x_last, y_first, y_last;
  byte_range(x, &x_first, &x_last);
  byte_range(y, &y_first, &y_last);
  return x_first < y_last && y_first < x_last;
}

void describe_gemm(const GemmArgs& args, GemmProblem* p) {
  const TensorView &a = args.a, &b = args.b;
  *p = GemmProblem{};
  if (a.ndim == 0 || b.ndim == 0) {
    fail("gemm: both arguments need to be at least 1D, but they are ", a.ndim, "D and ", b.ndim,
         "D; multiply by a scalar with torch.mul");
  }
  p->dtype = a.dtype;
  p->out_dtype = args.out_dtype;
  p->alpha = args.alpha, p->beta = args.beta, p->activation = args.activation;
  p->a = a.data, p->b = b.data;
  p->a_vector = a.ndim == 1, p->b_vector = b.ndim == 1;
  p->k = a.sizes[a.ndim - 1], p->a_sk = a.strides[a.ndim - 1];
  p->m = p->a_vector ? 1 : a.sizes[a.ndim - 2];
  p->a_sm = p->a_vector ? 0 : a.strides[a.ndim - 2];
  int b_k = p->b_vector ? 0 : b.ndim - 2;
  check_inner(args, p->k, b.sizes[b_k]);
  p->b_sk = b.strides[b_k];
  p->n = p->b_vector ? 1 : b.sizes[b.ndim - 1];
  p->b_sn = p->b_vector ? 0 : b.strides[b.ndim - 1];
  broadcast_batch(args, std::max(a.ndim - 2, 0), std::max(b.ndim - 2, 0), p);
  if (!p->a_vector) p->out_sizes[p->out_ndim++] = p->m;
  if (!p->b_vector) p->out_sizes[p->out_ndim++] = p->n;
  if (args.has_bias) add_bias(args, p);
  if (args.has_c) add_c(args, p);
  p->bias_copy = p->has_bias && p->has_c && p->bias_stride != 1 && p->n != 1;
}

}  // namespace

const char* dtype_name(DType type) {
  static const char* const names[] = {"torch.bfloat16", "torch.float16", "torch.float32",
                                      "another dtype"};
  return names[static_cast<int>(type)];
}

void check_addend_dtype(const char* name, const char* given, const char* like, bool fits) {
  if (fits) return;
  fail("gemm: ", name, " has dtype ", given, ", expected ", like,
       " (like a and b) or torch.float32; convert it with ", name, ".to(a.dtype)");
}

void check_activation(int64_t activation) {
  constexpr int kActivations = 5;
  if (activation < 0 || activation >= kActivations) {
    fail("gemm: activation is ", activation,
         ", expected 0 (none), 1 (relu), 2 (gelu_tanh), "
         "3 (gelu_erf), 4 (silu); apply another one to the result");
  }
}

std::string shape_text(const TensorView& view) {
  std::string text = "[";
  for (int i = 0; i < view.ndim; ++i) text += cat(i ? ", " : "", view.sizes[i]);
  return text + "]";
}

void prepare_problem(const GemmArgs& args, const TensorView* out, GemmProblem* problem) {
  describe_gemm(args, problem);
  if (out != nullptr) check_out(*out, *problem);
}

void use_bias_copy(GemmProblem* p, uint64_t data) {
  p->bias = data;
  p->bias_stride = 1;
}

int64_t out_numel(const GemmProblem& p) {
  int64_t count = 1;
  for (int i = 0; i < p.out_ndim; ++i) {
    if (p.out_sizes[i] == 0) return 0;
    count = saturating_mul(count, p.out_sizes[i]);
  }
  return count;
}

void contiguous_strides(const GemmProblem& p, int64_t* strides) {
  int64_t step = 1;
  for (int i = p.out_ndim - 1; i >= 0; --i) {
    strides[i] = step;
    step = saturating_mul(step, std::max<int64_t>(p.out_sizes[i], 1));
  }
}

OutUse set_output(GemmProblem* p, uint64_t data, const int64_t* strides) {
  p->d = data;
  if (out_numel(*p) == 0) return OutUse::kDirect;  // nothing will run
  for (int i = 0; i < p->n_batch; ++i) p->batch[i].d = strides[i];
  int at = p->n_batch;
  p->d_sm = p->a_vector ? 0 : strides[at++];
  p->d_sn = p->b_vector ? 1 : strides[at];
  drop_unit_dims(p);
  if (p->has_bias && p->n == 1) p->bias_stride = 1;
  if (p->has_bias && !p->has_c && p->bias_stride != 1) bias_through_c(p);
  if (p->d_sn != 1) {
    if (p->m != 1 && p->d_sm != 1) return OutUse::kCopy;
    if (p->has_bias) {
      if (p->has_c) return OutUse::kCopy;
      bias_through_c(p);
    }
    transpose(p);
    drop_unit_dims(p);
  }
  fold_into_m(p);
  merge_batch_dims(p);
  return OutUse::kDirect;
}

OutUse use_output(const GemmArgs& args, const TensorView& out, GemmProblem* p) {
  bool aliased = share_bytes(out, args.a) || share_bytes(out, args.b) ||
                 (args.has_bias && share_bytes(out, args.bias)) ||
                 (args.has_c && share_bytes(out, args.c));
  if (aliased || !surely_no_overlap(out)) return OutUse::kCopy;
  GemmProblem direct = *p;
  if (set_output(&direct, out.data, out.strides) == OutUse::kCopy) return OutUse::kCopy;
  *p = direct;
  return OutUse::kDirect;
}

void transposed_twin(const GemmProblem& problem, GemmProblem* twin) {
  *twin = problem;
  transpose(twin);
  twin->transposed = !problem.transposed;
}

}  // namespace deepasm
