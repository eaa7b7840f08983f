# Pascaline's targets. Each hands over to the tool that the field uses; `make help` lists them.
# `make demo` and `make test` do their own setup: on a clean Debian 12, as root, either is enough.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

FAULT ?= none
BUILD := build
VENV := $(BUILD)/venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# A planted fault never shares a build folder with the real thing.
MESON_DIR := $(BUILD)/dpdk_c$(if $(filter-out none,$(FAULT)),-$(FAULT))
C_SOURCES := $(shell find dpdk_c client appliance -name '*.[ch]' -not -path '*/build/*')
DISTRIBUTIONS := appliance client monitoring

.PHONY: help setup build test test-c test-protocol test-python test-softroce lint format demo demo-planted sanitize clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 16

# ---- Setup and build ----

setup: $(BUILD)/.packages $(BUILD)/.requirements ## Install missing Debian packages (root) and make the Python environment

$(BUILD)/.packages: .ci/packages-apt.txt
	@mkdir -p $(BUILD)
	missing=$$(for p in $$(grep -v '^#' $<); do dpkg-query -Wf '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done)
	if [ -n "$$missing" ]; then
	  [ "$$(id -u)" = 0 ] || { echo "missing Debian packages:" $$missing "- run as root: apt-get install" $$missing >&2; exit 1; }
	  apt-get update -q
	  DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $$missing
	fi
	touch $@

$(BUILD)/.requirements: .ci/requirements.txt $(BUILD)/.packages
	/usr/bin/python3 -m venv $(VENV) # Debian's pyverbs is built for this interpreter
	$(BIN)/pip install --quiet --disable-pip-version-check -r $<
	touch $@

build: $(BUILD)/.installed ## Build the data plane and install the three distributions into build/venv
	ninja -C $(MESON_DIR)

$(MESON_DIR)/build.ninja: $(BUILD)/.packages
	meson setup $(MESON_DIR) dpdk_c -Dplanted_fault=$(FAULT)

