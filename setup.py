"""Build of deepasm_torch: render and assemble the PTX, compile csrc/ with g++, link one module.

No nvcc and no CUDA toolkit: ptxas comes from a wheel, the CUDA driver is found at run time.  torch
is imported only when something is compiled, so metadata and sdist need nothing but setuptools.
"""

import fcntl
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import setuptools
from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT / "deepasm_torch"
TEMPLATES = PACKAGE / "_ptx"
TORCH_MINIMUM = (2, 10)
SOURCES = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/*.cpp"))
MODULE = "deepasm_torch._C"
MODULE_FILE = "_C.abi3.so"


def log(text):
    print(f"deepasm: {text}", flush=True)


def stop(text):
    raise SystemExit(f"\ndeepasm_torch cannot be built: {text}\n")


if int(setuptools.__version__.split(".")[0]) < 77:
    stop(
        f"it needs setuptools >= 77, found {setuptools.__version__}. Upgrade it "
        "(pip install -U setuptools), or build without --no-build-isolation."
    )

from setuptools.command.bdist_wheel import bdist_wheel  # noqa: E402, I001


def version():
    text = (PACKAGE / "_version.py").read_text(encoding="utf-8")
    return re.search(r'__version__\s*=\s*"([^"]+)"', text).group(1)


def import_codegen():
    """deepasm_torch.codegen, without deepasm_torch/__init__.py, which needs the built module."""
    if "deepasm_torch" not in sys.modules:
        package = types.ModuleType("deepasm_torch")
        package.__path__ = [str(PACKAGE)]
        sys.modules["deepasm_torch"] = package
    return importlib.import_module("deepasm_torch.codegen")


def find_torch():
    """(folder, version) of the installed torch, after checking that it is new enough."""
    wanted = ".".join(map(str, TORCH_MINIMUM))
    try:
        import torch
    except ImportError as error:
        stop(
            f"torch >= {wanted} must be importable in the building environment ({error}). "
            "Install torch, then: pip install --no-build-isolation ."
        )
    found = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if found < TORCH_MINIMUM:
        stop(f"it needs torch >= {wanted} (the stable ABI), found {torch.__version__}; upgrade it.")
    return Path(torch.__file__).resolve().parent, torch.__version__


def compiler_version(compiler):
    """What the compiler says about itself; also the place where a missing one is noticed."""
    try:
        done = subprocess.run(
            [*compiler, "--version"], check=True, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        stop(f"the C++ compiler does not run ({error}). Install g++, or name another one in CXX.")
    return done.stdout.partition("\n")[0]


def copy_templates():
    """ptx/ as package data, so that an installed package can render its kernels again."""
    source = ROOT / "ptx"
    if not source.is_dir():
        return
    shutil.rmtree(TEMPLATES, ignore_errors=True)
    shutil.copytree(source, TEMPLATES, ignore=shutil.ignore_patterns("*.orig", "*.swp", ".*"))


def dependencies(depfile):
    """The prerequisites that `g++ -MMD` wrote, or None when they are unknown."""
    if not depfile.is_file():
        return None
    text = depfile.read_text(encoding="utf-8").replace("\\\n", " ")
    return shlex.split(text.partition(":")[2])


def is_current(target, prerequisites):
    try:
        made = target.stat().st_mtime_ns
        return all(Path(p).stat().st_mtime_ns <= made for p in prerequisites)
    except OSError:
        return False


def run(command):
    done = subprocess.run(
        command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode != 0:
        stop(f"this command failed:\n{shlex.join(map(str, command))}\n{done.stdout}")
    if done.stdout.strip():
        print(done.stdout, end="", flush=True)


class BuildKernelsAndModule(build_ext):
    """Replaces setuptools' compiler logic: few flags, parallel objects, rebuild by depfile."""

    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split(".")[:-1], MODULE_FILE)

    def build_extension(self, ext):
        jobs = self.parallel or min(os.cpu_count() or 1, int(os.environ.get("MAX_JOBS", "2")))
        # Not self.build_temp: an editable install would throw the assembled kernels away each time.
        work = ROOT / "build" / "deepasm"
        kernels, objects = work / "kernels", work / "csrc"
        for folder in (kernels, objects):
            folder.mkdir(parents=True, exist_ok=True)
        torch, torch_version = find_torch()
        with open(work / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two builds of one tree would mix their objects
            self.build_locked(ext, jobs, torch, torch_version, kernels, objects)

    def build_locked(self, ext, jobs, torch, torch_version, kernels, objects):
        log("assembling kernels")
        codegen = import_codegen()
        ptxas = os.environ.get("DEEPASM_PTXAS") or None
        summary = codegen.build(kernels, jobs=jobs, ptxas=ptxas)
        log(f"{len(summary['kernels'])} kernels, ptxas {summary['ptxas']}")
        compiled = self.compile(ext, jobs, torch, torch_version, kernels, objects)
        self.link(ext, torch, compiled)
        copy_templates()

    def compile(self, ext, jobs, torch, torch_version, kernels, objects):
        compiler = shlex.split(os.environ.get("CXX", "g++"))
        flags = [
            "-std=c++17",
            "-O2",
            "-g0",
            "-fPIC",
            "-fvisibility=hidden",
            "-fvisibility-inlines-hidden",
            "-Wall",
            "-Wextra",
            f"-fmacro-prefix-map={ROOT}/=",
            # Only what torch 2.10 promised to keep, checked by torch's own headers.
            "-DTORCH_TARGET_VERSION=0x020a000000000000",
            "-DTORCH_STABLE_ONLY",
            "-DPy_LIMITED_API=0x030a0000",
            f"-I{kernels}",
            f"-Wa,-I{kernels}",
            f"-I{ROOT / 'csrc'}",
            "-isystem",
            str(torch / "include"),
            "-isystem",
            sysconfig.get_path("include"),
            *shlex.split(os.environ.get("CXXFLAGS", "")),
        ]
        # A change of flags, headers or compiler rebuilds everything.  A wheel's files carry the
        # dates of its making, so an upgrade in place does not show in the headers' times.
        versions = [f"torch {torch_version}", compiler_version(compiler)]
        stamp = objects / "flags.txt"
        wanted = "\n".join([shlex.join(compiler + flags), *versions])
        if not stamp.is_file() or stamp.read_text() != wanted:
            for stale in objects.glob("*.o"):
                stale.unlink()
            stamp.write_text(wanted)
        todo, compiled = [], []
        for source in ext.sources:
            target = objects / (Path(source).stem + ".o")
            compiled.append(target)
            needs = dependencies(target.with_suffix(".d"))
            if needs is not None and Path(source).name == "kernels.cpp":
                needs.append(str(kernels / "kernels.blob"))  # the depfile knows no .incbin
            if needs is None or not is_current(target, needs):
                command = ["-MMD", "-c", str(ROOT / source), "-o", str(target)]
                todo.append([*compiler, *flags, *command])
        log(f"compiling {len(todo)} of {len(compiled)} files")
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            list(pool.map(run, todo))
        return compiled

    def link(self, ext, torch, compiled):
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.{os.getpid()}.part")
        run(
            [
                *shlex.split(os.environ.get("CXX", "g++")),
                "-shared",
                *map(str, compiled),
                "-o",
                str(part),
                f"-L{torch / 'lib'}",
                "-Wl,--no-as-needed",
                "-ltorch_cpu",
                "-Wl,--as-needed",
                "-ldl",
                "-Wl,-z,relro,-z,now",
                "-Wl,-s",
                "-Wl,--build-id=none",
                *shlex.split(os.environ.get("LDFLAGS", "")),
            ]
        )
        part.replace(target)
        log(f"linked {target.name} ({target.stat().st_size / 1e6:.2f} MB)")

    def copy_extensions_to_source(self):
        """In place, by renaming: overwriting a mapped file crashes the processes that use it."""
        for ext in self.extensions:
            source = Path(self.get_ext_fullpath_built(ext))
            target = ROOT.joinpath(*ext.name.split(".")[:-1], MODULE_FILE)
            part = target.with_name(f"{target.name}.{os.getpid()}.part")
            shutil.copy2(source, part)
            part.replace(target)

    def get_ext_fullpath_built(self, ext):
        return os.path.join(self.build_lib, self.get_ext_filename(ext.name))

    def get_outputs(self):
        return [self.get_ext_fullpath(ext.name) for ext in self.extensions]


class BuildPython(build_py):
    def run(self):
        copy_templates()
        super().run()


class Abi3Wheel(bdist_wheel):
    def finalize_options(self):
        self.py_limited_api = "cp310"
        super().finalize_options()


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(
    version=version(),
    distclass=BinaryDistribution,
    ext_modules=[Extension(MODULE, SOURCES, py_limited_api=True)],
    cmdclass={
        "bdist_wheel": Abi3Wheel,
        "build_ext": BuildKernelsAndModule,
        "build_py": BuildPython,
    },
)
