"""The planner: which kernel, with which parameters, for which layout and GPU."""

import collections
import itertools
import random

import numpy as np
import pytest
import torch

from deepasm_torch.kernels import ALL
from deepasm_torch.planning import DEVICES, DeviceRecord, plan_gemm, plan_tensors

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def nt(m, n, k, **kwargs):
    """The plan of a row-major a and the transpose of a row-major weight."""
    return plan_gemm((m, k), (k, 1), (k, n), (1, k), **kwargs)


def row(plan):
    return ALL[plan.variant]


# ---- layouts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "device, tier, loads", [("h200", 90, "tma"), ("a100", 80, "cp16"), ("b200", 80, "cp16")]
)
@pytest.mark.parametrize(
    "name, a_stride, b_stride, majors",
    [
        ("nt", (64, 1), (1, 64), "kk"),
        ("nn", (64, 1), (48, 1), "kn"),
        ("tn", (1, 128), (48, 1), "mn"),
        ("tt", (1, 128), (1, 64), "mk"),
    ],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_four_layouts(device, tier, loads, name, a_stride, b_stride, majors, dtype):
    plan = plan_gemm((128, 64), a_stride, (64, 48), b_stride, device=device, dtype=dtype)
    assert plan.native and plan.tier == tier and row(plan).loads == loads
    assert "".join(row(plan).reads) == majors
    assert f"_{name}_" in plan.kernel and row(plan).dtype == {"bfloat16": "bf16"}.get(dtype, "f16")


@pytest.mark.parametrize("device", ["h200", "a100"])
@pytest.mark.parametrize(
    "what, a_stride, b_stride, addresses",
    [
        ("odd row stride of a", (65, 1), (1, 64), {}),
        ("row stride of b not a multiple of 8", (64, 1), (1, 68), {}),
        ("no contiguous dimension of a", (128, 2), (1, 64), {}),
        ("a misaligned", (64, 1), (1, 64), {"a": 1024 + 2}),
        ("b misaligned", (64, 1), (1, 64), {"b": 1024 + 8}),
        ("rows of a overlap", (8, 1), (1, 64), {}),
        ("a expanded along m", (0, 1), (1, 64), {}),
        ("b expanded along n", (64, 1), (1, 0), {}),
        ("a expanded along k", (64, 0), (1, 64), {}),
    ],
)
def test_awkward_operands_take_the_general_kernel(device, what, a_stride, b_stride, addresses):
    plan = plan_gemm((128, 64), a_stride, (64, 48), b_stride, device=device, addresses=addresses)
    assert plan.native and row(plan).loads == "any", what
    values = plan.fields()
    assert (values["a_sm"], values["a_sk"]) == a_stride
    assert (values["b_sk"], values["b_sn"]) == b_stride
    assert plan.tensor_maps == ()


@pytest.mark.parametrize(
    "m, n, k",
    [(1, 64, 64), (64, 1, 64), (64, 64, 1), (1, 1, 64), (1, 64, 1), (64, 1, 1), (1, 1, 1)],
)
@pytest.mark.parametrize("odd", [1, 3, 7, 1000003])
def test_strides_of_unit_dimensions_do_not_matter(m, n, k, odd):
    """torch leaves any number in the stride of a size-1 dimension."""
    a_stride = (64 if m > 1 and k > 1 else odd, 1 if k > 1 else odd)
    if k == 1 and m > 1:
        a_stride = (1, odd)
    b_stride = (1 if k > 1 else odd, 64 if n > 1 and k > 1 else odd)
    if k == 1 and n > 1:
        b_stride = (odd, 1)
    plan = plan_gemm((m, k), a_stride, (k, n), b_stride)
    assert plan.native and row(plan).loads == "tma", plan.reason
    for tensor_map in plan.tensor_maps:
        assert all(s % 16 == 0 and s > 0 for s in tensor_map.strides)


def test_k_tail_still_uses_16_byte_loads():
    """Rows of 100 elements with a pitch of 104: the pitch decides, not the length."""
    plan = plan_gemm((128, 100), (104, 1), (100, 48), (1, 104))
    assert row(plan).loads == "tma"
    a = plan.tensor_maps[0]
    assert a.dims == (100, 128, 1, 1) and a.strides[0] == 208


def test_tensor_maps_of_each_layout():
    maps = {m.name: m for m in plan_gemm((5, 256, 64), None, (5, 64, 136), None).tensor_maps}
    kernel = row(plan_gemm((5, 256, 64), None, (5, 64, 136), None))
    assert maps["map_a"].dims == (64, 256, 5, 1) and maps["map_a"].box == (64, kernel.bm, 1, 1)
    assert maps["map_b"].dims == (136, 64, 5, 1) and maps["map_b"].box == (64, 64, 1, 1)
    assert maps["map_d"].dims == (136, 256, 5, 1) and maps["map_d"].box == (64, 64, 1, 1)
    assert maps["map_b"].strides[:2] == (272, 272 * 64)
    wide = {m.name: m for m in nt(128, 64, 64, out_dtype="float32").tensor_maps}
    assert wide["map_d"].dtype == "f32" and wide["map_d"].box == (32, 64, 1, 1)
    assert maps["map_a"].swizzle == 128


@pytest.mark.parametrize(
    "m, n, batch",
    [
        (1, 1, 1),
        (64, 64, 1),
        (1000, 3000, 1),
        (4096, 100, 7),
        (8191, 8193, 3),
        (1 << 20, 1 << 16, 1),
        (70, 70, 65537),
    ],
)
def test_tile_order_equals_the_python_definition(m, n, batch):
    from deepasm_torch.kernels.params import raster

    plan = plan_gemm((batch, m, 64), None, (batch, 64, n), (64 * n, 1, 64))
    values, kernel = plan.fields(), row(plan)
    want = raster(-(-m // kernel.bm), -(-n // kernel.bn), batch, batch, 8)
    assert {name: values[name] for name in want} == want


def test_batch_broadcast_gets_extent_one_in_the_map():
    plan = plan_gemm((6, 128, 64), (0, 64, 1), (6, 64, 48), None)
    a, b = plan.tensor_maps[:2]
    assert a.dims == (64, 128, 1, 1) and b.dims == (48, 64, 6, 1)
    from deepasm_torch.kernels.params import GEMM_FLAGS

    flag = {n: plan.flags >> bit & ((1 << width) - 1) for n, (bit, width) in GEMM_FLAGS.items()}
    assert (flag["a_z0"], flag["b_z0"], flag["a_z1"], flag["b_z1"]) == (0, 1, 0, 0)


# ---- tails and the output ---------------------------------------------------------------------


def tma_stores(plan):
    from deepasm_torch.kernels.params import GEMM_FLAGS

    flag = bool(plan.flags >> GEMM_FLAGS["tma_store"][0] & 1)
    assert flag == any(m.name == "map_d" for m in plan.tensor_maps)
    return flag


@pytest.mark.parametrize(
    "n, out_dtype, stores",
    [
        (64, None, True),
        (56, None, True),
        (57, None, False),
        (60, None, False),
        (4, None, False),
        (60, "float32", True),
        (4, "float32", True),
        (2, "float32", False),
        (1, None, False),
    ],
)
def test_tma_store_needs_rows_of_whole_16_bytes(n, out_dtype, stores):
    assert tma_stores(nt(128, n, 64, out_dtype=out_dtype)) is stores


@pytest.mark.parametrize(
    "stride, address, stores",
    [
        ((64, 1), 0, True),
        ((72, 1), 0, True),
        ((68, 1), 0, False),
        ((64, 1), 1032, False),
    ],
)
def test_tma_store_into_out(stride, address, stores):
    plan = nt(128, 64, 64, out_shape=(128, 64), out_stride=stride, addresses={"out": address})
    assert not plan.out_copy and tma_stores(plan) is stores
    assert plan.fields()["d_sm"] == stride[0]


def test_column_major_out_is_the_transposed_problem():
    plan = nt(128, 96, 64, out_shape=(128, 96), out_stride=(1, 128))
    assert plan.transposed and not plan.out_copy
    assert (plan.m, plan.n, plan.pointers["a"], plan.pointers["b"]) == (96, 128, "b", "a")
    with_bias = nt(128, 96, 64, bias=96, out_shape=(128, 96), out_stride=(1, 128))
    assert with_bias.transposed and with_bias.bias_as_c and with_bias.pointers["c"] == "bias"
    values = with_bias.fields()
    assert (values["c_sm"], values["c_sn"], values["beta"]) == (1, 0, 1.0)
    both = nt(
        128, 96, 64, bias=96, c_shape=(128, 96), beta=2.0, out_shape=(128, 96), out_stride=(1, 128)
    )
    assert both.out_copy and not both.transposed


def test_few_rows_take_the_narrow_side():
    """Up to 64 rows of a: the 64-row side of the tile reads the weight, d is written along n."""
    for m, columns in ((1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (33, 64), (64, 64)):
        plan = nt(m, 4096, 4096, bias=4096)
        assert plan.native and row(plan).d_major == "m" and row(plan).tile == (columns, 64)
        assert plan.transposed and plan.pointers == {"a": "b", "b": "a", "d": "out", "bias": "bias"}
        values = plan.fields()
        assert (values["m"], values["n"], values["d_sm"]) == (4096, m, 4096)
        maps = {x.name: x for x in plan.tensor_maps}
        assert maps["map_d"].dims[:2] == (4096, m) and maps["map_d"].box[:2] == (64, columns)
    assert row(nt(65, 4096, 4096)).d_major == "n"
    ragged = nt(16, 4100, 4096)  # rows of d that are no multiple of 16 bytes
    assert row(ragged).d_major == "m" and [x.name for x in ragged.tensor_maps] == ["map_a", "map_b"]


def test_out_that_no_kernel_can_write():
    strided = nt(128, 48, 64, out_shape=(128, 48), out_stride=(96, 2))
    assert strided.native and strided.out_copy
    aliased = nt(64, 64, 64, out_shape=(64, 64), addresses={"a": 4096, "b": 1 << 20, "out": 4096})
    assert aliased.out_copy
    overlapping = nt(64, 64, 64, out_shape=(64, 64), out_stride=(32, 1))
    assert overlapping.out_copy


def test_bias_forms():
    assert nt(64, 64, 64, bias=64).pointers["bias"] == "bias"
    assert nt(64, 64, 64, bias=1).bias_as_c
    assert nt(128, 64, 64, bias=64, bias_stride=3).fields()["c_sn"] == 3
    copied = nt(128, 64, 64, bias=1, c_shape=(64,), beta=1.0)
    assert copied.bias_copy and copied.pointers == {
        "a": "a",
        "b": "b",
        "c": "c",
        "d": "out",
        "bias": "bias",
    }
    assert not nt(64, 1, 64, bias=1).bias_as_c
    assert "c" not in nt(64, 64, 64, c_shape=(64, 64), beta=0.0).pointers  # not even its NaNs


def test_empty_problems():
    assert nt(0, 64, 64).route == "empty"
    assert nt(64, 0, 0).route == "empty"
    assert nt(64, 64, 0).route == "reference"
    assert plan_gemm((0, 4, 8), None, (0, 8, 4), None).route == "empty"


# ---- batches ----------------------------------------------------------------------------------


def test_batch_folds_into_rows():
    plan = plan_gemm((4, 5, 6, 64), None, (64, 32), None)
    assert (plan.m, plan.batch, plan.out_shape) == (120, (), (4, 5, 6, 32))
    decode = plan_gemm((256, 1, 64), None, (64, 32), None)
    assert (decode.m, decode.batch) == (256, ())
    expanded = plan_gemm((4, 6, 64), None, (4, 64, 32), (0, 32, 1))
    assert (expanded.m, expanded.batch) == (24, ())
    gapped = plan_gemm((4, 6, 64), (1024, 64, 1), (64, 32), None)
    assert (gapped.m, gapped.batch) == (6, (4,))


def test_c_may_prevent_folding():
    plan = plan_gemm((4, 6, 64), None, (64, 32), None, c_shape=(6, 32), beta=1.0)
    assert (plan.m, plan.batch) == (6, (4,))
    assert plan_gemm((4, 6, 64), None, (64, 32), None, c_shape=(32,), beta=1.0).m == 24


def test_batch_dimensions_merge():
    plan = plan_gemm((2, 3, 4, 8, 64), None, (2, 3, 4, 64, 32), None)
    assert plan.batch == (24,) and plan.launches == 1
    two = plan_gemm((2, 3, 8, 64), (1536, 512, 64, 1), (3, 64, 32), None)
    assert two.batch == (2, 3) and two.launches == 1 and two.fields()["nz0"] == 3


def test_more_than_two_batch_dimensions_loop_on_the_host():
    a_stride = (80 * 64 * 1000, 80 * 64 * 100, 80 * 64 * 10, 64, 1)
    plan = plan_gemm((2, 3, 5, 80, 64), a_stride, (2, 3, 5, 64, 32), None)
    assert plan.batch == (2, 3, 5) and plan.launches == 2 and len(plan.loop) == 1
    assert plan.loop[0]["count"] == 2 and plan.loop[0]["a"] == a_stride[0] * 2
    assert len(list(plan.launch_offsets())) == 2
    assert plan.fields()["tiles"] == 15 * plan.fields()["tiles_m"] * plan.fields()["tiles_n"]


def test_more_than_65535_batches():
    plan = plan_gemm((65537, 8, 8), None, (65537, 8, 8), (0, 8, 1), c_shape=(8, 8), beta=1.0)
    assert plan.native and plan.fields()["tiles"] == 65537 and plan.grid[0] <= 132


# ---- devices and options ----------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_every_device(name):
    device = DEVICES[name]
    plan = nt(512, 512, 512, device=name)
    if device.cc < (8, 0):
        assert plan.route == "fallback" and "7.5" in plan.reason
        return
    assert plan.native and plan.tier == (90 if device.cc == (9, 0) else 80)
    assert plan.smem <= device.smem
    for candidate in plan.candidates:
        kernel = ALL[candidate.variant]
        if candidate.cost is not None:
            assert kernel.tier != 90 or device.cc == (9, 0)
            assert kernel.smem <= device.smem
        else:
            assert candidate.reason


@pytest.mark.parametrize("cc", [(9, 1), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1), (13, 0)])
def test_sm90a_code_is_for_9_0_alone(cc):
    plan = nt(512, 512, 512, device=DeviceRecord("future", cc, 132, 232448))
    assert plan.native and plan.tier == 80


def test_small_shared_memory():
    tiny = DeviceRecord("tiny", (9, 0), 132, 101376)
    plan = nt(512, 512, 512, device=tiny)
    assert plan.native and plan.smem <= 101376
    assert nt(512, 512, 512, device=DeviceRecord("none", (8, 0), 8, 1024)).route == "fallback"


def test_options():
    assert nt(512, 512, 512, tier=80).tier == 80
    assert nt(512, 512, 512, tier=90).tier == 90
    assert nt(4096, 4096, 512, max_sms=100).grid == (100, 1, 1)
    assert nt(4096, 4096, 512, max_sms=1000).grid == (132, 1, 1)
    assert nt(4096, 4096, 512, max_sms=10, device="a100").grid == (10, 1, 1)
    assert nt(64, 64, 64, disable=True).route == "fallback"


def test_blocks_share_an_sm_when_they_fit():
    plan = nt(8192, 8192, 512, device="a100")
    per_sm = plan.grid[0] / DEVICES["a100"].sms
    assert per_sm == int(per_sm) and per_sm * (plan.smem + 1024) <= 164 * 1024


def test_forced_variant():
    plan = nt(512, 512, 512)
    others = [c for c in plan.candidates if c.cost is not None and c.variant != plan.variant]
    assert others and plan.cost == min(c.cost for c in plan.candidates if c.cost is not None)
    for candidate in others:
        assert nt(512, 512, 512, variant=candidate.variant).variant == candidate.variant
    refused = next(c for c in plan.candidates if c.cost is None)
    assert nt(512, 512, 512, variant=refused.variant).route == "fallback"
    assert "not a gemm kernel" in nt(512, 512, 512, variant=9999).reason


def test_plan_of_real_tensors():
    a = torch.empty(3, 64, 72, dtype=torch.float16, device="meta")
    b = torch.empty(72, 40, dtype=torch.float16, device="meta")
    bias, c = torch.empty(40, device="meta"), torch.empty(1, 40, device="meta").half()
    plan = plan_tensors(a, b, bias, c=c, beta=2.0, activation=1, device="h200")
    same = plan_gemm(
        a.shape,
        None,
        b.shape,
        None,
        dtype="float16",
        bias=40,
        bias_dtype="float32",
        c_shape=(1, 40),
        beta=2.0,
        activation=1,
    )
    assert plan == same and plan.native
    with pytest.raises(ValueError, match="device must say for which GPU"):
        plan_tensors(a, b)


def test_dtypes_without_kernels():
    assert "neither bfloat16 nor float16" in nt(64, 64, 64, dtype="float32").reason
    assert "output dtype" in nt(64, 64, 64, out_dtype="float64").reason


def test_extents_beyond_32_bits():
    assert "2^31" in nt(1 << 31, 64, 64).reason
    assert "2^31" in plan_gemm((64, 1 << 31), (1 << 31, 1), (1 << 31, 64), (1, 1 << 31)).reason
    many = plan_gemm(
        (1 << 26, 1 << 12, 64),
        (0, 64, 1),
        (1 << 26, 64, 1 << 12),
        (0, 1 << 12, 1),
        c_shape=(1 << 26, 1, 1),
        beta=1.0,
    )
    assert many.route == "fallback" and "tiles" in many.reason
    far = plan_gemm((2, 64, 64), (1 << 45, 64, 1), (2, 64, 64), None)
    assert row(far).loads == "any"  # beyond a tensor map's 2^40 bytes


def test_large_offsets_do_not_wrap():
    plan = nt(1 << 20, 1 << 16, 64)
    values = plan.fields()
    assert plan.native and values["tiles"] == values["tiles_m"] * values["tiles_n"]
    assert values["d_sm"] == 1 << 16


@pytest.mark.parametrize(
    "shapes, words",
    [
        (((2, 3), (4, 5)), "shapes cannot be multiplied.*\\[2, 3\\].*\\[4, 5\\].*k is 3 in a"),
        (((3,), (4,)), "k is 3 in a and 4 in b"),
        (((2, 3), (4,)), "k is 3 in a and 4 in b"),
        (((), (4,)), "at least 1D, but they are 0D and 1D"),
        (((2, 3, 4), (5, 4, 6)), "batch dimensions \\[5\\] while those of a are \\[2\\]"),
        (((2, 3, 4), (2, 5, 6)), "shapes cannot be multiplied"),
    ],
)
def test_shape_errors(shapes, words):
    with pytest.raises(RuntimeError, match=words):
        plan_gemm(shapes[0], None, shapes[1], None)


def test_addend_errors():
    with pytest.raises(RuntimeError, match="bias has shape \\[5\\], expected one .* of size 4"):
        plan_gemm((2, 3), None, (3, 4), None, bias=5)
    with pytest.raises(RuntimeError, match="c has shape \\[3, 4\\], which cannot be broadcast"):
        plan_gemm((2, 3), None, (3, 4), None, c_shape=(3, 4), beta=1.0)
    with pytest.raises(RuntimeError, match="c has dtype torch.float16, expected torch.bfloat16"):
        plan_gemm((2, 3), None, (3, 4), None, c_shape=(2, 4), c_dtype="float16", beta=1.0)


@pytest.mark.parametrize(
    "error, words, arguments",
    [
        (RuntimeError, "out has shape \\[\\], expected \\[2, 4\\]", {"out_shape": ()}),
        (RuntimeError, "out has shape \\[4\\], expected \\[2, 4\\]", {"out_shape": (4,)}),
        (RuntimeError, "out has shape \\[2, 5\\], expected", {"out_shape": (2, 5)}),
        (
            RuntimeError,
            "more than one element of out .*dimension 0 has stride 0",
            {"out_shape": (2, 4), "out_stride": (0, 1)},
        ),
        (RuntimeError, "activation is 99, expected 0 \\(none\\)", {"activation": 99}),
        (RuntimeError, "activation is -1, expected 0 \\(none\\)", {"activation": -1}),
        (RuntimeError, "activation is 5, expected 0 \\(none\\)", {"activation": 5}),
        (ValueError, "a has size -2 in dimension 0", {"a_shape": (-2, 8)}),
        (ValueError, "b has size -4 in dimension 1", {"b_shape": (8, -4)}),
        (ValueError, "bias has size -1 in dimension 0", {"bias": -1}),
        (ValueError, "c has size -4 in dimension 0", {"c_shape": (-4,), "beta": 1.0}),
        (ValueError, "out has size -2 in dimension 0", {"out_shape": (-2, 4)}),
        (ValueError, "a has stride -8 in dimension 0", {"a_stride": (-8, 1)}),
        (ValueError, "b has stride -1 in dimension 1", {"b_stride": (4, -1)}),
        (ValueError, "bias has stride -1 in", {"bias": 4, "bias_stride": -1}),
        (ValueError, "out has stride -4", {"out_shape": (2, 4), "out_stride": (-4, 1)}),
        (ValueError, "0 multiprocessors", {"device": DeviceRecord("none", (9, 0), 0, 232448)}),
        (ValueError, "-1 multiprocessors", {"device": DeviceRecord("none", (9, 0), -1, 232448)}),
        (ValueError, "option max_sms: got -1", {"max_sms": -1}),
        (ValueError, "option tier: got 70", {"tier": 70}),
    ],
)
def test_impossible_descriptions(error, words, arguments):
    """Each is an error and no crash: the planner divides by sizes and indexes by dimensions."""
    given = {"a_shape": (2, 8), "a_stride": None, "b_shape": (8, 4), "b_stride": None, **arguments}
    with pytest.raises(error, match=words):
        plan_gemm(**given)


def test_sizes_whose_product_exceeds_64_bits():
    huge = 1 << 62
    plan = plan_gemm((huge, 8), None, (8, huge), None)
    assert plan.route == "fallback" and "2^31" in plan.reason
    assert plan.out_shape == (huge, huge)
    out = {"out_shape": (huge, huge), "addresses": {"a": 1 << 40, "b": 1 << 41, "out": 1 << 50}}
    assert plan_gemm((huge, 8), None, (8, huge), None, **out).route == "fallback"
    batch = plan_gemm((huge, 1, 8, 8), None, (1, huge, 8, 8), None)
    assert batch.route == "fallback" and batch.reason
    assert plan_gemm((huge, 0), None, (0, huge), None).route == "reference"
    assert plan_gemm((0, huge, 8), None, (8, huge), None).route == "empty"
    far = plan_gemm((2, 64), (1 << 62, 1), (64, 64), None)  # twice that is negative in 64 bits
    assert far.native and row(far).loads == "any"


@pytest.mark.parametrize(
    "m, n, k, want",
    [
        (8192, 8192, 512, "pingpong"),
        (4096, 4096, 4096, "pingpong"),
        (1024, 1024, 1024, "64x128"),
        (2048, 2048, 2048, "128x128"),
        (256, 256, 256, "64x64"),
    ],
)
def test_tile_choice_on_a_h200(m, n, k, want):
    """Choices that measurements on the chip support."""
    assert want in nt(m, n, k).kernel


# ---- a plan, executed -------------------------------------------------------------------------


class Memory:
    """A torch view as flat memory with a byte address."""

    def __init__(self, tensor, address, item_bytes):
        count = tensor.untyped_storage().nbytes() // 4
        self.array = tensor.as_strided((count,), (1,), 0).numpy().copy()
        self.base = address
        self.item = item_bytes
        self.address = address + tensor.storage_offset() * item_bytes

    def view(self, address, shape, strides):
        """Elements at a byte address; element strides may be anything that stays inside."""
        start, rest = divmod(address - self.base, self.item)
        assert rest == 0
        reach = start + sum((n - 1) * s for n, s in zip(shape, strides))
        assert 0 <= start and reach < len(self.array), "a plan that leaves its tensor"
        return np.lib.stride_tricks.as_strided(self.array[start:], shape, [4 * s for s in strides])


def random_view(rng, shape, expand=True):
    """A float32 view of `shape` with small integers: permuted, sliced, padded, expanded, offset."""
    order = list(range(len(shape)))
    rng.shuffle(order)
    if rng.random() < 0.5:
        order.sort()
    sizes = [shape[i] for i in order]
    steps, kept = [], []
    for size in sizes:
        if expand and rng.random() < 0.15:
            kept.append(1)
            steps.append(1)
        else:
            kept.append(size)
            steps.append(rng.choice([1, 1, 1, 2]))
    inner = len(shape) - 2  # large gaps only here, or memory grows with every dimension
    pads = [rng.choice([0, 0, 0, 1, 8]) if i >= inner else rng.randint(0, 1) for i in order]
    whole = torch.randint(-3, 4, [k * s + p for k, s, p in zip(kept, steps, pads)] + [1]).float()
    view = whole[..., 0]
    for i, (size, step, pad) in enumerate(zip(kept, steps, pads)):
        start = rng.randint(0, pad)
        view = view.narrow(i, start, size * step if size * step else 0)
        view = view[tuple([slice(None)] * i + [slice(None, None, step)])]
    inverse = [order.index(i) for i in range(len(shape))]
    return view.permute(inverse).expand(shape)


def gather_map(tensor_map, memory, address):
    """The elements a tensor map spans, as [z1, z0, outer, inner]."""
    item = 4 if tensor_map.dtype == "f32" else 2
    assert all(s % 16 == 0 for s in tensor_map.strides) and address % 16 == 0
    strides = [1] + [s // item for s in tensor_map.strides]
    strides = [0 if n == 1 else s for n, s in zip(tensor_map.dims, strides)]
    return memory.view(address, tensor_map.dims[::-1], strides[::-1])


def execute(plan, memories, transform=lambda x: x):
    """Run a plan on flat memories with numpy, through its parameter block alone."""
    values = plan.fields()
    nz0 = values["nz0"]
    nz1 = values["tiles"] // (values["tiles_m"] * values["tiles_n"] * nz0)
    m, n, k = values["m"], values["n"], values["k"]
    for offsets in plan.launch_offsets():

        def operand(name, rows, columns, row_field, column_field, offsets=offsets):
            memory = memories[plan.pointers[name]]
            strides = [
                values[f"{name}_sz1"],
                values[f"{name}_sz0"],
                values.get(row_field, 0),
                values.get(column_field, 1),
            ]
            shape = (nz1, nz0, rows, columns)
            strides = [0 if size == 1 else s for size, s in zip(shape, strides)]
            return memory.view(memory.address + offsets[name], shape, strides)

        a, b = operand("a", m, k, "a_sm", "a_sk"), operand("b", k, n, "b_sk", "b_sn")
        for tensor_map in plan.tensor_maps:  # the maps must show the same elements as the strides
            memory = memories[plan.pointers[tensor_map.pointer]]
            seen = gather_map(tensor_map, memory, memory.address + offsets[tensor_map.pointer])
            kernel = ALL[plan.variant]
            if tensor_map.name == "map_a":
                seen = seen if kernel.a_major == "k" else seen.swapaxes(2, 3)
                assert np.array_equal(np.broadcast_to(seen, a.shape), a)
            elif tensor_map.name == "map_b":
                seen = seen if kernel.b_major == "n" else seen.swapaxes(2, 3)
                assert np.array_equal(np.broadcast_to(seen, b.shape), b)
        along_m = ALL[plan.variant].d_major == "m"
        total = values["alpha"] * (a.astype(np.float64) @ b)
        if "c" in plan.pointers:
            total = total + values["beta"] * operand("c", m, n, "c_sm", "c_sn")
        if "bias" in plan.pointers:
            memory = memories["bias"]
            bias = memory.view(memory.address, (m if along_m else n,), (1,))
            total = total + (bias[:, None] if along_m else bias)
        lines = ("", "d_sm") if along_m else ("d_sm", "")  # the contiguous dimension has no field
        memory = memories[plan.pointers["d"]]
        strides = [values["d_sz1"], values["d_sz0"], *(values.get(f, 1) for f in lines)]
        shape = (nz1, nz0, m, n)
        strides = [0 if size == 1 else s for size, s in zip(shape, strides)]
        memory.view(memory.address + offsets["d"], shape, strides)[:] = transform(total)


def aligned_view(rng, shape):
    """Like `random_view`, but legal for 16-byte loads: every row starts at a multiple of 8."""
    order = list(range(len(shape)))
    if len(shape) > 1 and rng.random() < 0.5:
        order[-2:] = order[:-3:-1]  # the other of the last two dimensions is contiguous
    sizes = [1 if i < len(shape) - 2 and rng.random() < 0.15 else shape[i] for i in order]
    pads = [rng.choice([0, 0, 8, 16]) for _ in sizes]
    whole = torch.randint(-3, 4, [-(-(s + p) // 8) * 8 for s, p in zip(sizes, pads)]).float()
    for i, (size, pad) in enumerate(zip(sizes, pads)):
        whole = whole.narrow(i, rng.choice([0, pad]), size)
    return whole.permute([order.index(i) for i in range(len(shape))]).expand(shape)


def random_problem(rng, aligned):
    size = lambda: rng.choice([1, 1, 2, 3, 5, 8, 16, 24])
    if aligned:
        size = lambda: rng.choice([8, 16, 24, 40, 64, 72, 136])
    m, n, k = size(), size(), size()
    depths = [0, 0, 1, 1, 2] if aligned else [0, 0, 1, 2, 3, 4]
    batch = [rng.choice([1, 2, 3]) for _ in range(rng.choice(depths))]
    drop = lambda dims: [1 if rng.random() < 0.2 else d for d in dims]
    a_batch, b_batch = drop(batch[rng.randint(0, len(batch)) :]), drop(batch)
    if rng.random() < 0.4:
        a_batch, b_batch = b_batch, a_batch
    a_shape = [k] if rng.random() < 0.1 else a_batch + [m, k]
    b_shape = [k] if rng.random() < 0.1 else b_batch + [k, n]
    return a_shape, b_shape


@pytest.mark.parametrize("group", range(10))
def test_random_plans_compute_the_product(group):
    """Odd and aligned problems in turn; the aligned ones must reach each family of kernels."""
    executed = collections.Counter()
    for seed in range(40 * group, 40 * group + 40):
        plan = check_random_plan(seed, aligned=seed % 2 == 1)
        kernel = row(plan)
        executed[kernel.loads + ("_t" if kernel.d_major == "m" else "")] += 1
    print(dict(executed))
    # Of ten groups, so that 30 in all are certain.
    assert all(executed[family] >= 3 for family in ("tma", "tma_t", "cp16", "any")), executed


def check_random_plan(seed, aligned):
    print("seed", seed)
    make_view = aligned_view if aligned else random_view
    rng = random.Random(seed)
    torch.manual_seed(seed)
    device = rng.choice(["h200", "h200", "a100", "l4"])
    if aligned:
        device = "a100" if seed % 8 == 1 else "h200"
    a_shape, b_shape = random_problem(rng, aligned)
    a, b = make_view(rng, a_shape), make_view(rng, b_shape)
    want = a.double() @ b.double()
    options, memories = {}, {}
    address = itertools.count(1 << 20, 1 << 20)
    memories["a"], memories["b"] = Memory(a, next(address), 2), Memory(b, next(address), 2)
    n = want.shape[-1] if b.dim() > 1 else 1
    if rng.random() < 0.4:
        options["alpha"] = 0.5
        want = want * 0.5
    if rng.random() < 0.4:
        c_shape = list(want.shape)[rng.randint(0, want.dim()) :]
        c = random_view(rng, [1 if rng.random() < 0.2 else s for s in c_shape])
        item = rng.choice([2, 4])
        memories["c"] = Memory(c, next(address), item)
        options.update(
            c_shape=c.shape,
            c_stride=c.stride(),
            beta=2.0,
            c_dtype="float32" if item == 4 else "bfloat16",
        )
        want = want + 2 * c.double()
    if rng.random() < 0.4:
        bias = random_view(rng, [rng.choice([n, n, 1])], expand=False)
        memories["bias"] = Memory(bias, next(address), 2)
        options.update(bias=bias.shape[0], bias_stride=bias.stride(0))
        want = (want + bias.double()).reshape(want.shape)  # a dot product plus [1] stays 0-D
    out_dtype = rng.choice(["bfloat16", "float32"])
    out = torch.full(want.shape, 99.0)
    if rng.random() < 0.5:
        out = random_view(rng, want.shape, expand=False)
        options.update(out_shape=out.shape, out_stride=out.stride())
    memories["out"] = Memory(out, next(address), BYTES[out_dtype])
    plan = plan_gemm(
        a.shape,
        a.stride(),
        b.shape,
        b.stride(),
        device=device,
        out_dtype=out_dtype,
        addresses={name: memory.address for name, memory in memories.items()},
        **options,
    )
    assert plan.native, plan.reason
    assert plan.out_shape == tuple(want.shape)
    if plan.bias_copy:
        copied = torch.broadcast_to(bias, (n,)).contiguous()
        memories["bias"] = Memory(copied, next(address), 2)
    if plan.out_copy:
        memories["out"] = Memory(torch.full(want.shape, 99.0), next(address), BYTES[out_dtype])
        out = torch.empty(want.shape)
    before = memories["out"].array.copy()
    execute(plan, memories)
    memory = memories["out"]
    got = memory.view(memory.address, out.shape, out.stride())
    assert np.array_equal(got, want.numpy())
    # Nothing outside of out changed.
    got[...] = 0
    restored = Memory.view(memory, memory.base, before.shape, (1,))
    mask = restored != before
    memory.array[:] = before
    memory.view(memory.address, out.shape, out.stride())[...] = np.nan
    assert not (mask & ~np.isnan(memory.array)).any()
    return plan


def test_deep_k_with_few_tiles_goes_to_torch():
    """No kernel splits k: what would leave most SMs idle falls back, with a reason."""
    for shape in ((512, 512, 65536), (100, 100, 100000)):
        plan = nt(*shape)
        assert plan.route == "fallback" and "no kernel splits k yet" in plan.reason
    assert nt(512, 512, 8192).native and nt(4096, 4096, 65536).native
    assert nt(16, 4096, 28672).native  # the narrow kernels stream well on few SMs
    assert nt(512, 512, 65536, variant=nt(512, 512, 64).variant).native  # asked for by number
