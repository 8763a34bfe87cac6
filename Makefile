# make demo   set up, build, run the main job (a GPU comparison, or a CPU check without a GPU)
# make test   set up, build, run the tests
# make bench  GEMM benchmark, writes benchmarks/results/<device>/gemm.json
# make lint   ruff and clang-format, as pre-commit runs them
#
# The active Python environment is used when it already has torch >= 2.10; otherwise a fresh .venv
# with torch 2.13 is made.  PYTHON=... picks another interpreter.

PYTHON ?= python3
HAS_TORCH := $(shell $(PYTHON) -c "import re, torch; print(int(tuple(map(int, re.findall(r'\d+', torch.__version__)[:2])) >= (2, 10)))" 2>/dev/null)

ifeq ($(HAS_TORCH),1)
PY := $(PYTHON)
ENVIRONMENT := build/environment-$(subst /,-,$(shell command -v $(PYTHON)))
else
PY := .venv/bin/python
ENVIRONMENT := .venv/.environment
endif

PTXAS_WHEEL := nvidia-cuda-nvcc-cu12==12.9.86
BUILD_NEEDS := "setuptools>=77" wheel jinja2 $(PTXAS_WHEEL)
TEST_NEEDS := $(shell $(PYTHON) -c "import re; t = open('pyproject.toml').read(); print(' '.join(f'\"{x}\"' for x in re.findall(r'\"([^\"]+)\"', re.search(r'^test = \[(.*?)\]', t, re.M | re.S).group(1))))")

export PYTHONPATH := $(CURDIR)

.PHONY: demo test bench lint build clean

demo: build
	$(PY) examples/demo.py

test: build
	$(PY) -m pytest tests $(PYTEST_ARGS)

bench: build
	$(PY) benchmarks/bench_gemm.py

build: $(ENVIRONMENT)
	$(PY) setup.py -q build_ext --inplace

lint: $(ENVIRONMENT)
	$(PY) -m pip install -q ruff==0.14.0 clang-format==19.1.7
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	"$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("scripts"))')/clang-format" --dry-run --Werror csrc/*.cpp csrc/*.h

build/environment-%: pyproject.toml
	@mkdir -p build
	$(PY) -m pip install -q $(BUILD_NEEDS) $(TEST_NEEDS)
	@touch $@

.venv/.environment: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PY) -m pip install -q torch==2.13.0
	$(PY) -m pip install -q $(BUILD_NEEDS) $(TEST_NEEDS)
	@touch $@

clean:
	rm -rf build dist *.egg-info deepasm_torch/_C.abi3.so deepasm_torch/_ptx
