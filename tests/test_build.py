"""The built artefact: its symbols, its embedded images, how it loads them, and the wheel."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest

import deepasm_torch
from deepasm_torch import _library
from deepasm_torch.kernels import ALL, params

ROOT = Path(__file__).resolve().parent.parent
MODULE = Path(importlib.util.find_spec("deepasm_torch._C").origin)
C = _library.require()
KERNELS = json.loads(C.kernels())

needs_binutils = pytest.mark.skipif(
    not (shutil.which("nm") and shutil.which("readelf")), reason="nm and readelf are not installed"
)
needs_source_tree = pytest.mark.skipif(
    not (ROOT / "setup.py").is_file(), reason="not run from a source tree"
)


def output(*command, **kwargs):
    return subprocess.run(command, check=True, capture_output=True, text=True, **kwargs).stdout


def run_python(code, **env):
    """Run `code` in a fresh interpreter from another folder, with this package importable."""
    path = os.pathsep.join(
        [str(Path(deepasm_torch.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": path, **env},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- symbols --------------------------------------------------------------------------------


def undefined_symbols():
    lines = output("nm", "-D", "--undefined-only", MODULE).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines}


@needs_binutils
def test_only_stable_symbols_are_referenced():
    for name in sorted(undefined_symbols()):
        assert not re.match(r"_Z\w*?(3c10|2at|5torch)", name), f"unstable C++: {name}"
        assert not re.match(r"cu[A-Z]|cuda|nv[A-Z]|cublas|cudnn", name), f"CUDA: {name}"
    torch_names = {n for n in undefined_symbols() if re.match(r"(aoti_)?torch_", n)}
    assert "torch_library_impl" in torch_names  # the scan really saw the shims


@needs_binutils
def test_no_cuda_only_shim_is_a_strong_reference():
    absent_from_cpu_torch = {
        "aoti_torch_get_current_cuda_stream",
        "aoti_torch_create_cuda_guard",
        "aoti_torch_create_cuda_stream_guard",
        "aoti_torch_delete_cuda_guard",
        "torch_get_current_cuda_blas_handle",
        "torch_c10_cuda_check_msg",
    }
    assert not undefined_symbols() & absent_from_cpu_torch


@needs_binutils
def test_shims_exist_since_torch_2_10():
    """Nothing newer than the oldest torch we claim: later shims are looked up at run time."""
    since_2_11 = re.compile(
        r"torch_(from_blob|tag_|library_def_with_tags|library_set_python_module|exception_get|"
        r"(new|delete)_stable_ivalue|stream_native_handle|generator|new_generator|has_storage)"
    )
    assert [n for n in undefined_symbols() if since_2_11.match(n)] == []


@needs_binutils
def test_needed_libraries():
    needed = re.findall(r"NEEDED.*\[(.+?)\]", output("readelf", "-d", MODULE))
    allowed = (
        r"libtorch_cpu\.so|libstdc\+\+\.so\.6|libgcc_s\.so\.1|libc\.so\.6|libdl\.so\.2|"
        r"libm\.so\.6|libpthread\.so\.0|ld-linux.*"
    )
    assert [lib for lib in needed if not re.fullmatch(allowed, lib)] == []
    dynamic = output("readelf", "-d", MODULE)
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic


@needs_binutils
def test_only_the_init_function_is_exported():
    lines = output("nm", "-D", "--defined-only", MODULE).splitlines()
    # Template instantiations of the C++ library are weak or unique symbols and harmless.
    strong = [line.split()[-1] for line in lines if line.split()[-2] == "T"]
    assert strong == ["PyInit__C"]


@needs_binutils
def test_glibc_floor(record_property):
    versions = output("readelf", "-V", MODULE)
    floors = {}
    for family in ("GLIBC", "GLIBCXX", "CXXABI"):
        found = re.findall(rf"\b{family}_(\d+(?:\.\d+)+)", versions)
        floors[family] = max((tuple(map(int, v.split("."))) for v in found), default=(0,))
        record_property(family, ".".join(map(str, floors[family])))
    print("floors:", floors)
    if os.environ.get("DEEPASM_RELEASE"):  # manylinux_2_28
        assert floors["GLIBC"] <= (2, 28)
        assert floors["GLIBCXX"] <= (3, 4, 24)
        assert floors["CXXABI"] <= (1, 3, 11)


def test_size():
    assert MODULE.stat().st_size < 20e6


# ---- embedded images and tables -------------------------------------------------------------


def test_table_matches_the_python_rows():
    assert [k["name"] for k in KERNELS] == [row.name for row in ALL]
    for row, built in zip(ALL, KERNELS):
        for name in (
            "tier",
            "dtype",
            "a_major",
            "b_major",
            "d_major",
            "schedule",
            "bm",
            "bn",
            "bk",
            "stages",
            "threads",
            "cluster",
            "smem",
            "loads",
        ):
            assert built[name] == getattr(row, name), (row.name, name)
        assert 0 < built["regs"] <= row.max_regs
        assert {i["kind"] for i in built["images"]} == {"cubin", "ptx"}


def test_every_image_unpacks():
    for kernel in KERNELS:
        for image in kernel["images"]:
            data = C.image(image["image"])
            assert len(data) == image["raw_bytes"]
            if image["kind"] == "cubin":
                assert data[:4] == b"\x7fELF" and kernel["name"].encode() in data
            else:
                text = data.rstrip(b"\0").decode("ascii")
                assert f".entry {kernel['name']}" in text
                assert f".target {image['arch']}" in text


@pytest.mark.parametrize("level", [0, 1, 6, 9])
@pytest.mark.parametrize("strategy", [zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY])
def test_inflate_agrees_with_zlib(level, strategy):
    data = MODULE.read_bytes()[:200_000]
    for raw in (b"", b"a", data, bytes(range(256)) * 300, b"\0" * 70_000):
        packer = zlib.compressobj(level, zlib.DEFLATED, -15, 8, strategy)
        packed = packer.compress(raw) + packer.flush()
        assert C.inflate(packed, len(raw)) == raw
        for wrong in (len(raw) + 1, len(raw) - 1):
            if wrong >= 0:
                with pytest.raises(ValueError, match="damaged"):
                    C.inflate(packed, wrong)


def test_inflate_survives_damage():
    raw = bytes(range(256)) * 40
    packed = zlib.compress(raw, 9)[2:-4]
    for cut in range(0, len(packed), 7):
        with pytest.raises(ValueError):
            C.inflate(packed[:cut], len(raw))
    for position in range(len(packed)):
        broken = bytearray(packed)
        broken[position] ^= 0x5A
        try:
            C.inflate(bytes(broken), len(raw))  # may decode to other bytes, must not crash
        except ValueError:
            pass


def test_struct_offsets_equal_the_python_layout():
    """A plan's parameter block, written by C++, decoded with the Python layout."""
    from deepasm_torch import planning

    plan = planning.plan_gemm((3, 200, 64), None, (3, 64, 136), None, bias=136, alpha=0.5)
    layout = params.layout()
    assert len(plan.params) == layout.size
    values = plan.fields()
    assert (values["m"], values["n"], values["k"]) == (200, 136, 64)
    assert (values["a_sm"], values["a_sk"], values["a_sz0"]) == (64, 1, 200 * 64)
    assert (values["b_sk"], values["b_sn"], values["b_sz0"]) == (136, 1, 64 * 136)
    assert (values["d_sm"], values["d_sz0"], values["alpha"]) == (136, 200 * 136, 0.5)
    bit, width = params.GEMM_FLAGS["has_bias"]
    assert values["flags"] >> bit & ((1 << width) - 1) == 1
    assert not any(plan.params[: layout.offsets["a_sm"]])  # maps and pointers are empty


# ---- import and loading ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def fake_cuda(tmp_path_factory):
    """Folder with a fake libcuda.so.1."""
    compiler = os.environ.get("CXX", "g++").split()
    if shutil.which(compiler[0]) is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("fake_cuda")
    output(
        *compiler,
        "-shared",
        "-fPIC",
        "-o",
        folder / "libcuda.so.1",
        "-Wl,-soname,libcuda.so.1",
        Path(__file__).with_name("fake_cuda.cpp"),
    )
    probe = subprocess.run(
        [sys.executable, "-c", "import torch"],
        check=False,
        capture_output=True,
        cwd="/",
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        timeout=300,
    )
    if probe.returncode != 0:
        pytest.skip("this build of torch links the real driver")
    return folder


def with_fake(fake_cuda, code, **env):
    path = os.pathsep.join([str(fake_cuda), os.environ.get("LD_LIBRARY_PATH", "")])
    return run_python(code, LD_LIBRARY_PATH=path, **env)


WARM_UP = """
import json, torch, deepasm_torch._C as C
try:
    C.warmup(0)
except RuntimeError as error:
    print(json.dumps({"error": str(error)}))
else:
    print(C.device_record(0))
"""


def warm_up(fake_cuda, **env):
    return json.loads(with_fake(fake_cuda, WARM_UP, **env).splitlines()[-1])


def test_import_does_not_touch_cuda(fake_cuda, tmp_path):
    log = tmp_path / "log"
    with_fake(
        fake_cuda,
        "import torch; loaded = lambda: 'libcuda.so' in open('/proc/self/maps').read()\n"
        "before = loaded()\n"
        "import deepasm_torch; assert not torch.cuda.is_initialized()\n"
        "torch.ops.deepasm.gemm(torch.ones(2, 2), torch.ones(2, 2))\n"
        "assert loaded() == before",
        FAKE_LOG=str(log),
    )
    assert not log.exists() or "cuInit" not in log.read_text()


def test_hopper_loads_its_cubins(fake_cuda, tmp_path):
    log = tmp_path / "log"
    record = warm_up(fake_cuda, FAKE_CC="9.0", FAKE_LOG=str(log))
    assert record["tier"] == "sm90" and record["cc"] == "9.0"
    loaded = {k["name"]: k["loaded_from"] for k in record["kernels"]}
    for kernel in KERNELS:
        want = "cubin sm_90a" if kernel["tier"] == 90 else "cubin sm_90"
        assert loaded[kernel["name"]] == want
    lines = log.read_text().splitlines()
    assert lines.count("cuInit") == 1 and lines.count("cuDevicePrimaryCtxRetain") == 1
    assert lines[-1] == "cuCtxSetCurrent null"  # the caller's context, none, is put back
    assert "cuModuleUnload" not in lines


def test_refused_cubins_are_replaced_by_ptx(fake_cuda):
    record = warm_up(fake_cuda, FAKE_CC="9.0", FAKE_REFUSE="cubin")
    for kernel in record["kernels"]:
        arch = "sm_90a" if "sm90" in kernel["name"] else "sm_80"
        assert kernel["loaded_from"].startswith(f"PTX {arch}, compiled by the driver in")


def test_module_of_a_refused_kernel_is_unloaded(fake_cuda, tmp_path):
    log = tmp_path / "log"
    code = (
        "import os, torch, deepasm_torch._C as C\n"
        "C.device_record(0)\n"
        "os.environ['FAKE_SMEM'] = '1024'  # from now on cuFuncSetAttribute refuses\n"
        "try: C.warmup(0)\n"
        "except RuntimeError as error: print(error)\n"
    )
    text = with_fake(fake_cuda, code, FAKE_CC="9.0", FAKE_SMEM="232448", FAKE_LOG=str(log))
    assert "cuFuncSetAttribute(max dynamic shared memory): " in text
    assert log.read_text().splitlines().count("cuModuleUnload") == 1


def test_refusing_everything_is_one_error(fake_cuda):
    record = warm_up(fake_cuda, FAKE_CC="9.0", FAKE_REFUSE="cubin,ptx")
    assert "no kernel could be loaded" in record["error"]
    assert "CUDA_ERROR_NO_BINARY_FOR_GPU (209): a fake reason" in record["error"]


@pytest.mark.parametrize(
    "cc, smem, source",
    [
        ("8.0", 166912, "cubin sm_80"),
        ("8.6", 101376, "cubin sm_80"),
        ("8.9", 101376, "cubin sm_80"),
        ("10.0", 232448, "PTX sm_80"),
        ("12.0", 101376, "PTX sm_80"),
    ],
)
def test_other_gpus_load_the_sm80_tier(fake_cuda, cc, smem, source):
    record = warm_up(fake_cuda, FAKE_CC=cc, FAKE_SMEM=str(smem))
    assert record["tier"] == "sm80"
    expected = {k["name"] for k in KERNELS if k["tier"] == 80 and k["smem"] <= smem}
    assert {k["name"] for k in record["kernels"]} == expected
    assert expected
    assert all(k["loaded_from"].startswith(source) for k in record["kernels"])


def test_old_gpu_loads_nothing(fake_cuda):
    record = warm_up(fake_cuda, FAKE_CC="7.5", FAKE_SMEM="65536")
    assert record["tier"] is None and record["kernels"] == []


def test_no_driver_is_one_sentence():
    code = "import torch, deepasm_torch._C as C; print(C.device_record(0))"
    record = json.loads(run_python(code, LD_LIBRARY_PATH=""))
    if "error" not in record:
        pytest.skip("this machine has an NVIDIA driver")
    assert "libcuda.so.1 was not found" in record["error"] or "cuInit" in record["error"]


@pytest.mark.parametrize(
    "name, good, bad", [("disable", 1, 2), ("tier", 80, 70), ("max_sms", 8, -1)]
)
def test_options(name, good, bad):
    before = C.get_option(name)
    try:
        C.set_option(name, good)
        assert C.get_option(name) == good
        with pytest.raises(ValueError, match=name):
            C.set_option(name, bad)
        assert C.get_option(name) == good
    finally:
        C.set_option(name, before)
    with pytest.raises(ValueError, match="disable, tier and max_sms"):
        C.set_option("speed", 1)


def test_options_from_the_environment():
    code = (
        "import torch, deepasm_torch._C as C;"
        "print(C.get_option('disable'), C.get_option('tier'), C.get_option('max_sms'))"
    )
    env = {"DEEPASM_DISABLE": "1", "DEEPASM_TIER": "sm80", "DEEPASM_MAX_SMS": "16"}
    assert run_python(code, **env).split() == ["1", "80", "16"]


@pytest.mark.parametrize(
    "name, option, value, want, warned",
    [
        ("DEEPASM_TIER", "tier", "SM80", 80, False),
        ("DEEPASM_TIER", "tier", "90", 90, False),
        ("DEEPASM_TIER", "tier", "", 0, False),
        ("DEEPASM_TIER", "tier", "foo", 0, True),
        ("DEEPASM_TIER", "tier", "sm70", 0, True),
        ("DEEPASM_MAX_SMS", "max_sms", "12", 12, False),
        ("DEEPASM_MAX_SMS", "max_sms", "many", 0, True),
        ("DEEPASM_MAX_SMS", "max_sms", "12x", 0, True),
        ("DEEPASM_MAX_SMS", "max_sms", "-1", 0, True),
        ("DEEPASM_MAX_SMS", "max_sms", " ", 0, True),
    ],
)
def test_values_in_the_environment_that_mean_nothing(name, option, value, want, warned):
    code = (
        "import os, sys, torch; os.dup2(1, 2); import deepasm_torch._C as C;"
        f"print([C.get_option({option!r}) for _ in range(3)], flush=True)"
    )
    *warnings, answer = run_python(code, **{name: value}).splitlines()
    assert answer == str([want] * 3)
    assert len(warnings) == warned
    if warned:
        assert warnings[0].startswith(f"deepasm_torch: {name}={value} is ignored: expected ")


def test_build_info_names_the_ptxas():
    import io
    from contextlib import redirect_stdout

    from deepasm_torch import cli

    built = json.loads(C.build_info())
    assert built["kernels"] == len(KERNELS)
    assert re.fullmatch(r"\d+\.\d+\.\d+", built["ptxas"])
    text = io.StringIO()
    with redirect_stdout(text):
        cli.main(["info"])
    assert f"kernels: {len(KERNELS)}, assembled by ptxas {built['ptxas']}\n" in text.getvalue()


# ---- errors that cross the C boundary ------------------------------------------------------------


def test_argument_errors_keep_their_text():
    import torch

    gemm = torch.ops.deepasm.gemm
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            with pytest.raises(RuntimeError, match="cannot be multiplied.*k is 3 in a and 4 in b"):
                gemm(torch.ones(2, 3), torch.ones(4, 5))
            with pytest.raises(RuntimeError, match="to have the same dtype.*float32.*float16"):
                gemm(torch.ones(2, 3), torch.ones(3, 5).half())
            with pytest.raises(RuntimeError, match="a has dtype torch.int64"):
                gemm(torch.ones(2, 3).long(), torch.ones(3, 5).long())
            with pytest.raises(RuntimeError, match="b is sparse"):
                gemm(torch.ones(2, 3), torch.ones(3, 5).to_sparse())
            with pytest.raises(RuntimeError, match="activation is 9"):
                gemm(torch.ones(2, 3), torch.ones(3, 5), activation=9)


def test_errors_do_not_leak():
    """A refused call frees the references that it was handed."""
    import gc
    import weakref

    import torch

    a = torch.ones(2, 3)
    alive = weakref.ref(a)
    bias = torch.ones(5)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            torch.ops.deepasm.gemm(a, torch.ones(4, 5), bias, out_dtype=torch.float32)
        with pytest.raises(RuntimeError):
            torch.ops.deepasm.gemm(a, torch.ones(3, 5).half(), bias, out_dtype=torch.float32)
    storage = weakref.ref(a.untyped_storage())
    del a
    gc.collect()
    assert alive() is None and storage() is None


# ---- packaging --------------------------------------------------------------------------------


def pip(*arguments, **kwargs):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=900, **kwargs
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from the source tree."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), ".")
    (path,) = folder.glob("*.whl")
    return path


@needs_source_tree
def test_wheel_tag_and_contents(wheel):
    assert re.fullmatch(r"deepasm_torch-\d+\.\d+\.\d+-cp310-abi3-linux_\w+\.whl", wheel.name)
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "deepasm_torch/_C.abi3.so" in names and "deepasm_torch/py.typed" in names
    for template in (ROOT / "ptx").rglob("*.j2"):
        assert f"deepasm_torch/_ptx/{template.relative_to(ROOT / 'ptx')}" in names
    assert not [n for n in names if n.startswith(("tests/", "csrc/", "ptx/", "benchmarks/"))]
    assert [n for n in names if n.endswith(".so")] == ["deepasm_torch/_C.abi3.so"]


@needs_source_tree
def test_installed_wheel_works_elsewhere(wheel, tmp_path):
    site = tmp_path / "site"
    pip("install", "--no-deps", "--target", str(site), str(wheel))
    env = {**os.environ, "PYTHONPATH": str(site)}
    code = (
        f"import deepasm_torch, torch; assert deepasm_torch.__file__.startswith({str(site)!r});"
        "from deepasm_torch.codegen import render; from deepasm_torch.kernels import ALL;"
        "assert render(ALL[0]).startswith('.version');"
        "x = torch.ones(4, 4); assert torch.equal(torch.ops.deepasm.gemm(x, x), x @ x)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=env, timeout=300)


@needs_source_tree
def test_metadata_needs_no_torch(tmp_path):
    """`pip download --no-deps` and sdist builds run before torch is there."""
    (tmp_path / "torch.py").write_text("raise ImportError('torch is not here')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [
            sys.executable,
            "setup.py",
            "-q",
            "sdist",
            "-d",
            str(tmp_path / "dist"),
            "egg_info",
            "-e",
            str(tmp_path),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=env,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {n.partition("/")[2] for n in tar.getnames()}
    for wanted in (
        "setup.py",
        "pyproject.toml",
        "csrc/module.cpp",
        "csrc/driver.h",
        "ptx/sm90/gemm.ptx.j2",
        "deepasm_torch/planning.py",
        "deepasm_torch/py.typed",
    ):
        assert wanted in names, wanted
    assert not [n for n in names if n.endswith(".so") or "/_ptx/" in n]
