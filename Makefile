# SPDX-License-Identifier: Apache-2.0
# The short way to everything. CMake does the work: see CMakePresets.json and CONTRIBUTING.md.

PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
TEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
VLLM_ARGS ?=

.PHONY: build help dependencies demo test test-long test-wheel test-vllm test-vllm-all sanitize fuzz bench valgrind install format clean

build: dependencies ## the library and the command (in build/)
	@cmake --preset default -DCMAKE_INSTALL_PREFIX=$(PREFIX) --log-level=WARNING
	@cmake --build --preset default --parallel $(JOBS)

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

dependencies: ## installs the Debian packages that are missing, or says which
	@scripts/install-dependencies build

demo: build ## worker processes, a transfer over UCX, every byte checked
	build/kvferry demo $(DEMO_ARGS)

test: build ## the tests, in a few minutes
	ctest --preset default --parallel $(JOBS) $(TEST_ARGS)

test-long: build ## a million random plans, 100,000 simulated schedules
	ctest --preset long --parallel $(JOBS) $(TEST_ARGS)

test-wheel: build ## builds the Python package, installs it somewhere and uses it
	scripts/install-dependencies build wheel
	ctest --preset wheel $(TEST_ARGS)

test-vllm: build ## real vLLM servers on the CPU, the usual pairs; installs vLLM once (KVFERRY_VLLM_VENV)
	tests/vllm/run $(VLLM_ARGS)

test-vllm-all: build ## the same in every topology
	tests/vllm/run --all $(VLLM_ARGS)

sanitize: ## the tests under address, undefined-behaviour and thread sanitizers
	scripts/install-dependencies build clang
	cmake --preset address
	cmake --build --preset address --parallel $(JOBS)
	ctest --preset address --parallel $(JOBS)
	cmake --preset thread
	cmake --build --preset thread --parallel $(JOBS)
	ctest --preset thread --parallel $(JOBS)

fuzz: ## each fuzzer for FUZZ_SECONDS (60)
	scripts/install-dependencies build clang
	cmake --preset fuzz
	cmake --build --preset fuzz --parallel $(JOBS)
	tests/fuzz/run build-fuzz $(FUZZ_SECONDS)

valgrind: build ## the command once under valgrind
	scripts/install-dependencies build valgrind
	tests/valgrind/run build

bench: build ## the planner and the engines against the machine's own limits
	build/kvferry bench $(BENCH_ARGS)

install: build ## to PREFIX (/usr/local)
	cmake --install build --prefix $(PREFIX)

format: ## clang-format over the C files
	git ls-files '*.[ch]' | xargs clang-format -i

clean: ## removes the build folders
	rm -rf build build-*
