# SPDX-License-Identifier: Apache-2.0

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
BUILDS = $(VENV)/.builds
DEMO = $(VENV)/.demo
INSTALLED = $(VENV)/.installed
PEERS = $(VENV)/.peers
RESULTS = build/bench.json
NATIVE = build/native
AARCH64 = build/aarch64
AARCH64_CXX = aarch64-linux-gnu-g++
WERROR = OFF
# What of pyproject.toml's optional dependencies is installed, and which Python tests `make test` runs.
EXTRAS ?= dev
TESTS ?= tests
SELECTED = not slow and not thorough
# As many as there are cores: each process collects the tests and has imported torch, which takes half
# a minute of its time.
WORKERS ?= $(shell nproc)
PARALLEL = --numprocesses $(WORKERS) --dist worksteal
CXX_FILES = $(wildcard csrc/*/*.cpp csrc/*/*.h csrc/*/*.cu csrc/*/*.cuh tests/native/*.cpp \
    tests/native/*.h benchmarks/native/*.cpp benchmarks/gpu/*.cu)

# For every install, and for the environments in which pip builds (newer pips read the second).
export PIP_CONSTRAINT = $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT = $(PIP_CONSTRAINT)
# setup.py takes cmake and ninja from the path.
export PATH := $(CURDIR)/$(BIN):$(PATH)

# The target that is given, where there is a cross compiler; otherwise one that says that there is none.
cross = $(if $(shell command -v $(AARCH64_CXX)),$(1),without-cross-compiler)

.DELETE_ON_ERROR:
.PHONY: help demo test test-all check lint docs coverage format configure module native aarch64 aarch64-module \
    without-cross-compiler sanitize sanitize-memory sanitize-threads package bench bench-small gpu clean

help:  ## list what can be made
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | expand -t 12

demo:  ## find the line that makes a program slow, and prove that mending it helps
	@$(MAKE) --no-print-directory --jobs=2 module $(DEMO)  # pip waits for the disk, the compiler does not
	$(BIN)/pyinstrument-gpu run -o demo.gpurun --overwrite examples/demo.py
	@echo; echo "With that line mended (--fixed), three runs of each side in turn:"
	@mkdir -p build/demo
	@for run in before-1 after-1 after-2 before-2 before-3 after-3; do \
	    case $$run in after*) fixed=--fixed;; *) fixed=;; esac; \
	    $(BIN)/pyinstrument-gpu run -q -o build/demo/$$run.gpurun --overwrite examples/demo.py $$fixed \
	        > build/demo/$$run.txt || exit 1; done
	@echo "$(BIN)/pyinstrument-gpu compare --before build/demo/before-*.gpurun" \
	    "--after build/demo/after-*.gpurun"
	@$(BIN)/pyinstrument-gpu compare --before build/demo/before-*.gpurun \
	    --after build/demo/after-*.gpurun > build/demo/verdict.txt; \
	    code=$$?; cat build/demo/verdict.txt; exit $$code
	@! grep -q '^AMBIGUOUS' build/demo/verdict.txt || { echo; \
	    echo "This machine is too busy for three runs. Gate goes on while it is unclear:"; \
	    $(BIN)/pyinstrument-gpu gate --runs 3 --max-runs 12 \
	        --baseline "$(BIN)/python examples/demo.py" -- $(BIN)/python examples/demo.py --fixed; }
	@echo; echo "The page of the first run: $(BIN)/pyinstrument-gpu report --html demo.gpurun"

test: native $(INSTALLED)  ## native and Python tests, without those marked thorough or slow
	$(BIN)/ctest --test-dir $(NATIVE) --output-on-failure --no-tests=error --parallel $(WORKERS) \
	    --label-exclude slow
	$(BIN)/pytest $(PARALLEL) -m "$(SELECTED)" $(TESTS)

test-all: native $(INSTALLED) package $(call cross,aarch64)  ## every test, also for aarch64, and an install as users do it
	$(BIN)/ctest --test-dir $(NATIVE) --output-on-failure --no-tests=error --parallel $(WORKERS)
	$(BIN)/pytest $(PARALLEL) --hypothesis-profile=search

check: WERROR = ON
check: SELECTED = not slow
check: lint $(call cross,aarch64-module) test bench-small  ## what CI runs: formats, lints, types, test with the thorough ones, small benchmarks; warnings are errors

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

docs: $(INSTALLED)  ## check the pages and build their site, build/site; what is broken fails
	SITE=$(CURDIR)/build/site $(BIN)/pytest tests/test_docs.py

# Not with the tests that start programs or count what the hot path does: tracing changes those.
COVERED_TESTS = tests/analysis tests/aspects tests/core tests/export tests/job tests/page tests/report
coverage: native $(INSTALLED)  ## which lines and branches the tests of the analysis and the reports run
	$(BIN)/pip install --quiet pytest-cov
	$(BIN)/pytest $(PARALLEL) -m "not slow" --cov --cov-report=term --cov-report=html:build/coverage \
	    $(COVERED_TESTS)

format: $(INSTALLED)  ## rewrite all sources to the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CXX_FILES)

bench: native $(PEERS)  ## benchmarks, each against its peers in the same run: ten minutes at most
	$(BIN)/pytest benchmarks --benchmark-json=$(RESULTS) $(BENCH_OPTIONS)
	$(BIN)/python -m benchmarks.page $(RESULTS)

bench-small: native $(INSTALLED)  ## each benchmark once and with little to do, which shows that none has rotted
	BENCHMARKS_SMALL=1 $(BIN)/pytest benchmarks

# Without an environment: a machine with a GPU is often cut off from every registry, and what it has
# must do. GPU_OPTIONS="--output DIRECTORY --commit NAME"; --help lists them.
gpu:  ## what is to be known first of a GPU, in nine minutes; fails without one
	$(PYTHON) -m benchmarks.gpu.run $(GPU_OPTIONS)

clean:  ## remove what was built, the environment too
	rm -rf $(VENV) build *.egg-info pyinstrument_gpu/native/_C.*.so

# Three steps into the same environment, each with the first target that needs it: what builds the
# module, what the demo runs with, and everything. Editable: a change of a Python file needs no install.
# Without the native module, which `module` builds: a change of a C++ file then compiles its folder.
# Without bytecode: pip would compile all of 20,000 files, for two minutes, where a process writes that of
# the fewer ones that it imports.
EDITABLE = PYINSTRUMENT_GPU_NO_NATIVE_BUILD=1 $(BIN)/pip install --quiet --no-compile --no-build-isolation --editable
$(BUILDS): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet setuptools cmake ninja pybind11 nvidia-nvtx
	touch $@

$(DEMO): $(BUILDS) setup.py
	$(EDITABLE) '.[torch,html,compare]' scikit-learn
	touch $@

# Where torch is installed, its bytecode is written by one process: those that run tests begin at once.
$(INSTALLED): $(BUILDS) setup.py
	$(EDITABLE) '.[$(EXTRAS)]'
	$(BIN)/python -c 'import torch._dynamo' 2>/dev/null || true
	touch $@

# What the benchmarks compare with. They run without the peers that can't be installed, and name
# them; the next `make bench` tries those again.
$(PEERS): $(INSTALLED) benchmarks/install_peers.py
	if $(BIN)/python -m benchmarks.install_peers; then touch $@; fi

# Without make's flags: of its job server ninja would only say that it can't have it.
COMPILE = MAKEFLAGS= $(BIN)/cmake --build

# One build directory for the module, which is installed into the source tree, and the native tests.
configure: $(BUILDS)
	$(BIN)/cmake -S . -B $(NATIVE) -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	    -DPYINSTRUMENT_GPU_TESTS=ON -DCMAKE_COMPILE_WARNING_AS_ERROR=$(WERROR)

module: configure
	$(COMPILE) $(NATIVE) --target _C
	$(BIN)/cmake --install $(NATIVE) --prefix . --strip

native: module
	$(COMPILE) $(NATIVE)

# The compiler's package has the same name on Debian and Ubuntu: g++-aarch64-linux-gnu.
aarch64: AARCH64_FLAGS = -O1
aarch64: aarch64-module  ## build for aarch64 with a cross compiler; run the native tests if qemu-user is installed
	$(COMPILE) $(AARCH64)
	@if command -v qemu-aarch64 qemu-aarch64-static; then set -x; \
	    $(BIN)/ctest --test-dir $(AARCH64) --label-exclude slow --output-on-failure --no-tests=error --parallel $(WORKERS); \
	else echo "the native tests were not run on aarch64: qemu-aarch64 is not installed"; fi

# It shows that all of csrc compiles, for which nothing need be optimized.
AARCH64_FLAGS = -O0
aarch64-module: $(BUILDS)
	$(BIN)/cmake -S . -B $(AARCH64) -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	    -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake -DPYINSTRUMENT_GPU_TESTS=ON \
	    -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=$(AARCH64_FLAGS) \
	    -DCMAKE_COMPILE_WARNING_AS_ERROR=$(WERROR)
	$(COMPILE) $(AARCH64) --target _C

# Python tests that lead through all of csrc.
SANITIZED_TESTS = tests/auto tests/cuda tests/faults tests/core tests/patching tests/recording tests/sinks tests/aspects
SANITIZE = $(BIN)/cmake -S . -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
    -DPYINSTRUMENT_GPU_TESTS=ON -DCMAKE_BUILD_TYPE=None

sanitize: sanitize-memory sanitize-threads  ## tests under the sanitizers of addresses, undefined behaviour and threads

# The module is installed into a package that else consists of links, so that the one for daily use
# stays; with PYTHONSAFEPATH nothing takes that from the working directory. The sanitizer must be
# loaded before Python is, and libstdc++ for it to find what throws exceptions. Leaks are looked for in
# the native tests: the interpreter frees little at its end. The types of objects are not checked: that
# takes a pipe, and a test leaves the program no descriptor for one. Some tests can't be: the sanitizer
# keeps freed memory for a while, and locks that it holds in other threads stay locked in a forked child.
NOT_SANITIZED = tests/faults/test_faults.py::test_fault[memory-two_million_spans] \
    tests/faults/test_faults.py::test_fault[fork-threads_record] \
    tests/aspects/memory/test_memory_watch.py::test_the_log_in_memory_is_not_counted
sanitize-memory: $(INSTALLED)
	$(SANITIZE) -B build/asan -DCMAKE_CXX_FLAGS="-O1 -g1 -fno-omit-frame-pointer \
	    -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all"
	$(COMPILE) build/asan
	$(BIN)/ctest --test-dir build/asan --label-exclude slow --output-on-failure --no-tests=error --parallel $(WORKERS)
	mkdir -p build/asan/package/pyinstrument_gpu/native
	ln -sfn $(filter-out %/native %__pycache__,$(wildcard $(CURDIR)/pyinstrument_gpu/*)) build/asan/package/pyinstrument_gpu
	ln -sfn $(wildcard $(CURDIR)/pyinstrument_gpu/native/*.py*) build/asan/package/pyinstrument_gpu/native
	$(BIN)/cmake --install build/asan --prefix build/asan/package
	PYTHONPATH=$(CURDIR)/build/asan/package:$(CURDIR) PYTHONSAFEPATH=1 ASAN_OPTIONS=detect_leaks=0 \
	    LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	    $(BIN)/pytest $(PARALLEL) -m "not slow" --import-mode=append -o pythonpath=build/asan/tests \
	    $(NOT_SANITIZED:%=--deselect "%") $(SANITIZED_TESTS)

# The kernel's threads are fibers of one thread (tests/native/emulated_cuda.h): there are no races to be
# found, and it would take ten minutes.
OF_ONE_THREAD = test_metric_kernel|test_kernel_row
sanitize-threads: $(BUILDS)
	$(SANITIZE) -B build/tsan -DCMAKE_CXX_FLAGS="-O1 -g1 -fsanitize=thread -fno-sanitize-recover=all"
	$(COMPILE) build/tsan --target native_tests
	$(BIN)/ctest --test-dir build/tsan --output-on-failure --no-tests=error --parallel $(WORKERS) \
	    --exclude-regex "$(OF_ONE_THREAD)"

without-cross-compiler:
	@echo "not compiled for aarch64: $(AARCH64_CXX) is not installed"

# As for a release: a source distribution, from that a wheel with isolation, and that in an environment
# that holds nothing else. The limit is twice what a wheel has; a stray file or symbols show.
MOST_WHEEL_BYTES = 3000000
package: $(BUILDS)
	rm -rf build/package
	$(BIN)/pip install --quiet build
	$(BIN)/python -m build --outdir build/package
	@for wheel in build/package/*.whl; do bytes=$$(stat --format=%s $$wheel); \
	    echo "$$wheel: $$bytes bytes"; \
	    test $$bytes -le $(MOST_WHEEL_BYTES) || { echo "more than $(MOST_WHEEL_BYTES)"; exit 1; }; done
	$(PYTHON) -m venv build/package/venv
	build/package/venv/bin/pip install --quiet build/package/*.whl
	cd build/package && venv/bin/pyinstrument-gpu --version
	build/package/venv/bin/pip install --quiet --dry-run "$$(echo build/package/*.whl)[all]"
