# Every target sets up what it needs; a second call does no work twice. Programs are built into build/bin.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PEERS ?=
FUZZ_SECONDS ?= 60

SOURCES = git ls-files -co --exclude-standard -- '*.cc' '*.h' '*.proto'

.PHONY: help
help:  ## This list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup:  ## Install system packages and libtorch, where they are missing.
	@scripts/setup

# $(call build,PRESET[,TARGET]): configured once, then by ninja itself when a CMake file changes.
define build
	if [[ ! -e build/$(1)/build.ninja || CMakePresets.json -nt build/$(1)/build.ninja ]]; then \
	  echo "==> Configuring ($(1))"; \
	  cmake --preset $(1) >build/configure-$(1).log 2>&1 || { cat build/configure-$(1).log >&2; exit 1; }; \
	  touch build/$(1)/build.ninja; \
	fi; \
	echo "==> Building ($(1))"; \
	cmake --build --preset $(1) -j $(JOBS) $(if $(2),--target $(2))
endef

.PHONY: build
build: setup  ## Build the library, the tests, the examples and the muster command.
	@$(call build,release)

.PHONY: demo
demo: setup  ## Train a click model on three workers, one of which dies.
	@$(call build,release,demo)
	@build/bin/demo

.PHONY: test
test: build  ## Run all tests.
	@ctest --preset release

.PHONY: bench
bench: build  ## Compare with the peers: make bench PEERS=<their directory>.
	@bench/compare $(PEERS)

HAS_GPU = nvidia-smi -L 2>/dev/null | grep -q GPU
.PHONY: gpu-test
gpu-test:  ## Run the unit tests and the demo on this machine's GPU, and again with MUSTER_GPUS=off.
	@if $(HAS_GPU); then $(MAKE) build && ctest --preset release -L unit && build/bin/demo && \
	  MUSTER_GPUS=off ctest --preset release -L unit && MUSTER_GPUS=off build/bin/demo; \
	else echo "gpu-test: this machine has no NVIDIA GPU; nothing to do"; fi

# Only what is asked for on purpose is refused: a limit of memory, a recording that cannot be.
.PHONY: gpu-sanitize
gpu-sanitize:  ## Run the tests of GPUs under CUDA's compute-sanitizer (memcheck).
	@if ! $(HAS_GPU); then echo "gpu-sanitize: this machine has no NVIDIA GPU; nothing to do"; \
	elif ! command -v compute-sanitizer > /dev/null; then echo "gpu-sanitize: there is no compute-sanitizer; it comes with CUDA's toolkit"; \
	else $(MAKE) build && for program in runtime_test trace_test; do \
	  compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 1 build/bin/$$program --gtest_filter='Gpu*:ImageOps*:DeviceFlags*' || exit 1; \
	done; fi

PYTHON ?= python3
.PHONY: gpu-bench
gpu-bench:  ## Measure training steps on this machine's GPU beside PyTorch's (PYTHON=<one with a PyTorch for the GPU>).
	@if $(HAS_GPU); then $(MAKE) build && bench/gpu/run $(PYTHON); \
	else echo "gpu-bench: this machine has no NVIDIA GPU; nothing to do"; fi

.PHONY: fuzz
fuzz: setup  ## Run random programs in many ways, and feed whatever reads what others write with nonsense: a minute each (FUZZ_SECONDS).
	@$(call build,release,cluster_test)
	@MUSTER_FUZZ_SECONDS=$(FUZZ_SECONDS) tests/own_network build/bin/cluster_test --gtest_filter='RandomPrograms.*AsLongAsWanted'
	@scripts/setup clang
	@$(call build,fuzz,fuzzers)
	@fuzzers=(build/fuzz/bin/*_fuzzer); for fuzzer in "$${fuzzers[@]}"; do \
	  name=$$(basename "$$fuzzer" _fuzzer); echo "==> Fuzzing ($$name)"; mkdir -p build/fuzz/corpus/$$name; \
	  seeds=$$(dirname muster/*/$${name}_fuzzer.cc)/fuzz_corpus; [[ -d $$seeds ]] || seeds=muster/graph/fuzz_corpus; \
	  "$$fuzzer" -max_total_time=$$(($(FUZZ_SECONDS) / $${#fuzzers[@]} + 1)) -timeout=10 -rss_limit_mb=4096 \
	    -print_final_stats=1 -verbosity=0 -artifact_prefix=build/fuzz/$$name- build/fuzz/corpus/$$name $$seeds; \
	done

.PHONY: asan
asan: setup  ## Run the unit tests under the address and undefined-behaviour sanitizers.
	@$(call build,asan)
	@ctest --preset asan

.PHONY: tsan
tsan: setup  ## Run the unit tests under the thread sanitizer.
	@$(call build,tsan)
	@ctest --preset tsan

FAULT_ROUNDS ?= 20
FAULT_TESTS = Faults.*:ShortCuts.*:*/LossyNetwork.*:LateParameterServers.*:BlackHole.*:ManyWorkers.*:MissingWorkers.*:*/CutOff.*
.PHONY: faults
faults: setup  ## End, stop and confuse workers, parameter servers and the network, 20 times in a row (FAULT_ROUNDS); workers in step with shared memory and without.
	@$(call build,release,distribute_test)
	@tests/own_network build/bin/distribute_test --gtest_brief=1 --gtest_fail_fast --gtest_repeat=$(FAULT_ROUNDS) --gtest_filter='$(FAULT_TESTS)'
	@$(call build,release,in_step)
	@$(call build,release,muster_cli)
	@for near in on off; do \
	  MUSTER_NEAR_MEMORY=$$near tests/own_network $(PYTHON) tests/in_step_test.py build/bin/muster build/bin/in_step \
	    --rounds $(FAULT_ROUNDS) Faults; \
	done

SOAK_SECONDS ?= 60
.PHONY: soak
soak: setup  ## 16 clients at one cluster for a minute (SOAK_SECONDS), under both sanitizers.
	@$(call build,asan,soak)
	@LSAN_OPTIONS=suppressions=tests/sanitizers/lsan.supp:print_suppressions=0 OMP_NUM_THREADS=1 \
	  $$(find build/asan -name soak -type f) $(SOAK_SECONDS)
	@$(call build,tsan,soak)
	@TSAN_OPTIONS=suppressions=tests/sanitizers/tsan.supp:ignore_noninstrumented_modules=1:halt_on_error=1 OMP_NUM_THREADS=1 \
	  $$(find build/tsan -name soak -type f) $(SOAK_SECONDS)

SOAK_CHIEFS ?= 100
SOAK_FUNCTIONS ?= 1000000
.PHONY: soak-processes
soak-processes: build  ## Kill chiefs, make functions, let clients come and go, and print what stays (SOAK_CHIEFS, SOAK_FUNCTIONS, SOAK_SECONDS).
	@OMP_NUM_THREADS=1 tests/own_network python3 tests/soak/soak.py build/bin/muster build/bin/soak \
	  --chiefs $(SOAK_CHIEFS) --functions $(SOAK_FUNCTIONS) --seconds $(SOAK_SECONDS)

CUT_SECONDS ?= 60
.PHONY: cut-hosts
cut-hosts: build  ## Train across hosts whose packets vanish, for a minute each time (CUT_SECONDS).
	@MUSTER_CUT_SECONDS=$(CUT_SECONDS) ctest --preset release -R '^hosts$$'

# Its own environment: TensorFlow is half a gigabyte, and nothing else of this tree needs it.
TENSORFLOW ?= tensorflow==2.21.* tensorboard
.PHONY: check-tensorflow
check-tensorflow: setup  ## Hold what datasets read, write and make of columns against TensorFlow and Keras (installs them into build/tensorflow).
	@$(call build,release,with_tensorflow)
	@if [[ ! -e build/tensorflow/with-tensorboard ]]; then \
	  echo "==> Installing $(TENSORFLOW) into build/tensorflow"; \
	  python3 -m venv build/tensorflow; \
	  build/tensorflow/bin/pip install --quiet --disable-pip-version-check $(patsubst %,'%',$(TENSORFLOW)); \
	  touch build/tensorflow/with-tensorboard; \
	fi
	@PYTHONDONTWRITEBYTECODE=1 build/tensorflow/bin/python tests/tensorflow/tensorflow_test.py build/bin/with_tensorflow

# A Python that has PyTorch and safetensors is taken as it is: make check-pytorch PYTHON=<it>. Else the torch of build/venv, which is
# there for its libraries, with what its Python side needs besides in an environment of its own; where that torch is a CUDA build
# without CUDA, Python cannot import it, and another one is installed, with all that it needs.
PYTORCH_NEEDS ?= safetensors numpy typing_extensions sympy networkx jinja2 filelock fsspec
.PHONY: check-pytorch
check-pytorch: setup  ## Hold weights, exported models and optimizers against PyTorch and safetensors (PYTHON=<one that has them>, or installed into build/pytorch).
	@$(call build,release,with_pytorch muster_cli fine_tune)
	@python=$(PYTHON); \
	if ! "$$python" -c 'import torch, safetensors, numpy' 2>/dev/null; then \
	  python=build/pytorch/bin/python; \
	  if [[ ! -e build/pytorch/ready ]]; then \
	    echo "==> Installing $(PYTORCH_NEEDS) into build/pytorch"; \
	    python3 -m venv build/pytorch; \
	    path=$$(echo build/pytorch/lib/python3*/site-packages)/torch.pth; \
	    echo "$$PWD"/build/venv/lib/python3*/site-packages >"$$path"; \
	    build/pytorch/bin/pip install --quiet --disable-pip-version-check $(PYTORCH_NEEDS) 2>build/pytorch/pip.log || { cat build/pytorch/pip.log >&2; exit 1; }; \
	    if ! "$$python" -c 'import torch' 2>/dev/null; then \
	      echo "==> Installing PyTorch into build/pytorch (several gigabytes, unless pip is told of smaller ones: PIP_INDEX_URL=https://download.pytorch.org/whl/cpu)"; \
	      rm "$$path"; \
	      build/pytorch/bin/pip install --quiet --disable-pip-version-check $$(grep ^torch== scripts/requirements.txt); \
	    fi; \
	    touch build/pytorch/ready; \
	  fi; \
	fi; \
	PYTHONDONTWRITEBYTECODE=1 "$$python" tests/pytorch/pytorch_test.py build/bin/with_pytorch build/bin/muster build/bin/fine_tune

# The release build finds build/pyarrow when it is configured anew, and keeps it: one file and the tests of data/ are built again.
.PHONY: check-parquet
check-parquet:  ## Hold what datasets read of Parquet files against pyarrow (installs it into build/pyarrow).
	@scripts/setup parquet
	@grep -q '/pyarrow/libparquet' build/release/build.ninja 2>/dev/null || rm -f build/release/build.ninja
	@$(call build,release,data_test with_parquet)
	@build/bin/data_test --gtest_brief=1 --gtest_filter='*Parquet*:PackedRows.*'
	@PYTHONDONTWRITEBYTECODE=1 build/pyarrow/bin/python tests/parquet/parquet_test.py build/bin/with_parquet

.PHONY: thread-safety
thread-safety:  ## Check the lock annotations with clang.
	@scripts/setup clang
	@$(call build,thread-safety)

.PHONY: format
format:  ## Format all sources.
	@scripts/setup format
	@$(SOURCES) | xargs -r build/format/bin/clang-format -i

.PHONY: check-format
check-format:  ## Fail if a source is not formatted.
	@scripts/setup format
	@$(SOURCES) | xargs -r build/format/bin/clang-format --dry-run -Werror

.PHONY: clean
clean:  ## Remove what was built; keeps the downloaded libtorch and the compiler cache.
	@rm -rf build/bin build/release build/dev build/asan build/tsan build/thread-safety build/fuzz build/configure-*.log
