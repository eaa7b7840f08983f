# Pascaline's targets. Each hands over to the tool that the field uses; `make help` lists them.
# `make demo` and `make test` do their own setup: on a clean Debian 12, as root, either is enough.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# A planted fault is built beside the real thing, never into it.
FAULT ?= none
# For example: make demo DEMO_OPTIONS='--codec thc --steps 50 --workers 4'
DEMO_OPTIONS ?=
LEARNING_OPTIONS ?=
BUILD := $(CURDIR)/build
MESON_DIR := $(BUILD)/dpdk_c
FAULT_DIR := $(BUILD)/dpdk_c-$(FAULT)
SANITIZE_DIR := $(BUILD)/dpdk_c-sanitize
THREADS_DIR := $(BUILD)/dpdk_c-tsan
FUZZ_DIR := $(BUILD)/dpdk_c-fuzz
KERNELS := client/kernels
STRICT := -std=c11 -ffp-contract=off -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror
SECONDS := 60
# Another number is another fuzzing run, and the same number the same one, as far as the time goes; 0: a new one.
FUZZ_SEED ?= 0
BIN := $(BUILD)/venv/bin
DISTRIBUTIONS := client monitoring appliance
PYTEST := $(BIN)/python -m pytest
# Limits for what hangs, not for a machine that is busy or a mirror that is late.
MESON_TEST := meson test --print-errorlogs --timeout-multiplier 20
APT_GET := apt-get -q -o Acquire::Retries=5 -o DPkg::Lock::Timeout=600
export PIP_RETRIES ?= 10
export PIP_DEFAULT_TIMEOUT ?= 60
# $(FIGURES) TARGET COMMAND fails unless the command has filled the target's keys of build/faults/summary.json.
FIGURES := $(BIN)/python -m tests.summary
SEEDS ?= 10000

# What an installed distribution is made from, beyond the Python files that it is linked to.
INSTALL_INPUTS := $(wildcard $(DISTRIBUTIONS:=/pyproject.toml) appliance/*.py client/*.py client/kernels/*.[ch] appliance/src/*/*build*.py dpdk_c/*/*.h)

.PHONY: help
help: ## List the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

# ---- Setup and build ----

.PHONY: setup
setup: $(BUILD)/.requirements ## Install missing Debian packages (as root) and make the Python environment build/venv

# Installs those of the Debian packages listed in the prerequisite that are missing.
define INSTALL_PACKAGES
	@mkdir -p $(BUILD)
	missing=
	for package in $$(grep -v '^#' $<); do
	    dpkg-query -Wf '$${Status}' $$package 2>/dev/null | grep -q ' installed' || missing+=" $$package"
	done
	if [ -n "$$missing" ]; then
	    if [ "$$(id -u)" != 0 ]; then
	        echo "Debian packages are missing; as root: apt-get install$$missing$(1)" >&2
	        exit 1
	    fi
	    if ! { $(APT_GET) update && DEBIAN_FRONTEND=noninteractive $(APT_GET) install -y --no-install-recommends $$missing; }; then
	        echo "apt-get cannot install$$missing, of Debian 12's main: see above for why$(1)" >&2
	        exit 1
	    fi
	fi
	touch $@
endef

$(BUILD)/.packages: .ci/packages-apt.txt
	$(call INSTALL_PACKAGES)

$(BUILD)/.packages-learning: .ci/packages-learning-apt.txt
	$(call INSTALL_PACKAGES,; or LEARNING_OPTIONS='--fashion-mnist FOLDER' with its four .gz files in FOLDER)

# Peers to compare with: nothing but the bench that names them needs this list.
$(BUILD)/.packages-bench: .ci/packages-bench.txt
	$(call INSTALL_PACKAGES)

# /usr/bin/python3: Debian's pyverbs is built for this interpreter and for no other.
$(BUILD)/.requirements: .ci/requirements.txt $(BUILD)/.packages
	@/usr/bin/python3 -m venv $(BUILD)/venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

$(MESON_DIR)/build.ninja: $(BUILD)/.packages
	@meson setup $(MESON_DIR) dpdk_c

# --no-build-isolation: the extension module links against the data plane that has just been built here.
$(BUILD)/.installed: $(BUILD)/.requirements $(MESON_DIR)/build.ninja $(INSTALL_INPUTS)
	@ninja -C $(MESON_DIR)
	export PKG_CONFIG_PATH=$(MESON_DIR)/meson-uninstalled
	export PASCALINE_REQUIRE_KERNELS=1 # here a kernel that does not compile is a fault, elsewhere only slow
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps $(addprefix -e ./,$(DISTRIBUTIONS))
	touch $@

.PHONY: build
build: $(BUILD)/.installed ## Build the data plane and install the three distributions into build/venv
	@ninja -C $(MESON_DIR)

# ---- Tests ----

.PHONY: test
test: test-c ## Everything: C unit tests, then all pytest suites (soft-RoCE natively or in the VM)
	@$(PYTEST) tests

.PHONY: test-c
test-c: build ## C unit tests (meson test, cmocka)
	@$(MESON_TEST) -C $(MESON_DIR)

.PHONY: test-protocol
test-protocol: build ## Frames in, frames out: the core without DPDK
	@$(PYTEST) tests/protocol

.PHONY: malformed
malformed: build ## Malformed frames: every field, opcode, length and state; figures in build/faults/summary.json
	@$(FIGURES) malformed $(PYTEST) tests/malformed

.PHONY: fuzz
fuzz: build ## Fuzz parser, lane and control plane for SECONDS=60 in all; figures in build/faults/summary.json
	@[ -f $(FUZZ_DIR)/build.ninja ] || CC=clang-14 meson setup $(FUZZ_DIR) dpdk_c -Dfuzz=true \
	    -Ddpdk=disabled -Db_sanitize=address,undefined -Db_lundef=false -Doptimization=2
	ninja -C $(FUZZ_DIR)
	$(FIGURES) fuzz $(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed $(FUZZ_SEED) --binaries $(FUZZ_DIR)/fuzz

.PHONY: test-softroce
test-softroce: build ## Real RoCE, real DPDK, in one visit to the bench
	@$(PYTEST) tests/softroce

.PHONY: softroce-faults
softroce-faults: build ## The whole table of faults over soft-RoCE; figures in build/faults/summary.json
	@$(FIGURES) softroce-faults $(PYTEST) tests/softroce/test_faults.py -m 'long or not long'

.PHONY: perftest
perftest: build ## perftest's ib_write_bw and ib_write_lat against our queue pairs; figures in build/faults/summary.json
	@$(FIGURES) perftest $(PYTEST) tests/perftest tests/softroce/test_perftest.py -m 'long or not long'

# SEED=42: one run's trace. SEEDS=100000: so many runs. A violated rule fails either.
.PHONY: sim
sim: build ## A rack in one process with every fault: SEEDS=10000 runs, or the trace of one with SEED=42
ifdef SEED
	@$(MESON_DIR)/sim/psc_sim --trace $(SEED)
else
	@$(FIGURES) sim $(BIN)/python -m tests.sim --seeds $(SEEDS)
endif

.PHONY: sim-long
sim-long: build ## A million seeds; goes on where it was interrupted, while the commit is the same
	@$(FIGURES) sim $(BIN)/python -m tests.sim --seeds 1000000 --resume $(BUILD)/faults/sim-long.json

.PHONY: mutants
mutants: build ## Planted faults of the data plane, each of which some suite must catch; report in build/faults/mutants.json
	@$(FIGURES) mutants $(BIN)/python -m tests.mutants

# ThreadSanitizer: only ctl/, io/ and what lanes share with them have more than one thread. DPDK must be there.
.PHONY: sanitize-threads
sanitize-threads: build ## Lanes, a dispatcher and a control thread beside them under ThreadSanitizer
	@[ -f $(THREADS_DIR)/build.ninja ] || meson setup $(THREADS_DIR) dpdk_c -Db_sanitize=thread -Db_lundef=false
	ninja -C $(THREADS_DIR) tests/test_ctl
	export TSAN_OPTIONS=halt_on_error=1:suppressions=$(CURDIR)/dpdk_c/tests/tsan.supp
	meson test -C $(THREADS_DIR) --no-rebuild --print-errorlogs ctl ctl_lanes

.PHONY: ratings
ratings: $(BUILD)/.ratings ## Unpack the recommender's ratings into build/ratings, out of Debian packages

# Data sets of R packages: R itself is not needed to read them, so they are unpacked and not installed.
$(BUILD)/.ratings: .ci/packages-ratings-apt.txt
	@rm -rf $(BUILD)/ratings
	mkdir -p $(BUILD)/ratings
	cd $(BUILD)/ratings
	packages=$$(grep -v '^#' $(CURDIR)/$<)
	$(APT_GET) download $$packages 2>/dev/null || { $(APT_GET) update && $(APT_GET) download $$packages; }
	for package in *.deb; do dpkg -x $$package .; done
	rm -- *.deb
	touch $@

.PHONY: numerics
numerics: build $(BUILD)/.ratings ## Accuracy of the codecs: docs/numerics.*, build/numerics/summary.json; fails where a bound is missed
	@$(BIN)/python -m tests.numerics

.PHONY: numerics-long
numerics-long: build ## lhc with 67 M elements and 64 ranks, row by row, goes on where it was interrupted; into docs/lhc.json
	@$(BIN)/python -m tests.numerics.lhc_long

# LEARNING_OPTIONS='--budget-minutes 20' for a part of it.
.PHONY: learning
learning: build $(if $(findstring --fashion-mnist,$(LEARNING_OPTIONS)),,$(BUILD)/.packages-learning) ## Training with every codec, 150 minutes at most, goes on where it was interrupted: docs/learning.*, build/learning/summary.json
	@$(BIN)/python -m tests.learning $(LEARNING_OPTIONS)

.PHONY: sanitize
sanitize: build sanitize-threads ## C unit, protocol and malformed tests, kernels and simulated racks under AddressSanitizer and UndefinedBehaviorSanitizer; threads too
	@[ -f $(SANITIZE_DIR)/build.ninja ] || meson setup $(SANITIZE_DIR) dpdk_c \
	    -Ddpdk=disabled -Db_sanitize=address,undefined -Db_lundef=false
	ninja -C $(SANITIZE_DIR)
	export ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
	$(MESON_TEST) -C $(SANITIZE_DIR)
	LD_PRELOAD=$$(gcc -print-file-name=libasan.so) PSC_CORE_TEST_LIB=$(SANITIZE_DIR)/libpsc_core_test.so $(PYTEST) tests/protocol tests/malformed
	gcc $(STRICT) -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -I$(KERNELS) -o $(SANITIZE_DIR)/test_exact \
	    $(KERNELS)/*.c $(KERNELS)/tests/test_exact.c -lm
	$(SANITIZE_DIR)/test_exact
	gcc $(STRICT) -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -I$(KERNELS) -o $(SANITIZE_DIR)/test_sketch \
	    $(KERNELS)/*.c $(KERNELS)/tests/test_sketch.c -lm
	$(SANITIZE_DIR)/test_sketch
	PSC_SIM=$(SANITIZE_DIR)/sim/psc_sim $(BIN)/python -m tests.sim --seeds 500 --no-summary

.PHONY: lint
lint: build ## ruff, mypy and clang-format: nothing is changed
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(DISTRIBUTIONS:=/src)
	find dpdk_c tests $(KERNELS) -name '*.[ch]' -print0 | xargs -0 clang-format --dry-run -Werror
	gcc $(STRICT) -O1 -fsyntax-only -I$(KERNELS) $(KERNELS)/*.c $(KERNELS)/tests/*.c

.PHONY: format
format: setup ## Format C and Python
	@$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .
	find dpdk_c tests $(KERNELS) -name '*.[ch]' -print0 | xargs -0 clang-format -i

# ---- Measurements ----

# PASCALINE_KERNELS=avx2 measures another variant than this CPU's best.
.PHONY: bench-codecs
bench-codecs: build ## The C kernels of thc and sparse against one memcpy of 256 MiB, those of lhc against plain C, one thread; figures in build/bench/codecs.json
	@$(BIN)/python -m tests.bench.codecs --out $(BUILD)/bench/codecs.json

.PHONY: bench-kernels
bench-kernels: build ## The data plane's ops and CRC, each variant, against memcpy and reading in L1, L2, L3 and memory: build/bench/kernels.json
	@$(BIN)/python -m tests.bench.kernels

.PHONY: bench-lane
bench-lane: build ## One lane on rings, fed on its own core: against memcpy, by op, streams, ranks, MTU, window and chunk; idle pauses; build/bench/lane.json
	@$(BIN)/python -m tests.bench.lane

.PHONY: bench-lanes
bench-lanes: build ## Two lanes on two cores against one, and against two copies of memory; dispatcher; two jobs; build/bench/lanes.json
	@$(BIN)/python -m tests.bench.lanes

# Two cores of their own, best with huge pages: sysctl vm.nr_hugepages=256. PSC_BENCH_LOCK=FILE: not while others measure.
.PHONY: bench-wire
bench-wire: build $(BUILD)/.packages-bench ## A lane's packet on memif and af_packet beside rings and testpmd; Gloo and MPI on the same veths
	@$(BIN)/python -m tests.bench.wire
	$(BIN)/python -m tests.bench.peers

.PHONY: bench-client
bench-client: build ## What the client costs in a soft-RoCE guest beside memcpy there, user and system apart
	@$(BIN)/python -m tests.bench.client

# MINUTES=1. The load generator and an appliance, which share the machine with whatever else runs; exit status 1: a count
# differs, a sum was wrong, or something was left over.
MINUTES ?= 5
.PHONY: soak
soak: build ## Jobs of the load generator for MINUTES=5 on a memif and a lossy veth: exact counts, right sums, nothing left over
	@$(BIN)/python -m tests.bench.soak --minutes $(MINUTES) --out $(BUILD)/bench/soak.json

# ---- The demonstration ----

.PHONY: demo
demo: build ## Train with DDP through the appliance over RoCE, then over Gloo, and compare; FAULT=add_one must fail
ifeq ($(FAULT),none)
	@$(BIN)/python -m tests.demo --out $(BUILD)/demo $(DEMO_OPTIONS)
else
	@[ -f $(FAULT_DIR)/build.ninja ] || meson setup $(FAULT_DIR) dpdk_c -Dplanted_fault=$(FAULT)
	ninja -C $(FAULT_DIR)
	$(BIN)/python -m tests.demo --out $(BUILD)/demo-$(FAULT) --library-path $(FAULT_DIR) $(DEMO_OPTIONS)
endif

# The same as make demo DEMO_OPTIONS='--codec thc', as a test.
.PHONY: demo-thc
demo-thc: build ## The demonstration with gradients in 4 bits: equal to the emulated link's bit for bit, and as good as Gloo's
	@$(PYTEST) tests/demo -m long -s

.PHONY: demo-planted
demo-planted: ## Succeeds if the demonstration notices an appliance that adds one to a sum
	@$(MAKE) --no-print-directory demo FAULT=add_one DEMO_OPTIONS=--expect-objections

.PHONY: clean
clean: ## Remove everything that was built
	@rm -rf $(BUILD)
	find . -name __pycache__ -prune -exec rm -rf {} +
	find $(DISTRIBUTIONS) \( -name '*.egg-info' -o -name '*.so' \) -prune -exec rm -rf {} +
