# make demo | test | bench | build | install | clean. On a new machine, run it as root: it installs what is missing and says so.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

# Where rustup puts it, when it is not on the search path (yet).
CARGO ?= $(or $(shell command -v cargo),$(HOME)/.cargo/bin/cargo)
PYTHON ?= python3
VENV := .venv
# The library of the demo, in MiB; or MODELS=/path to your own.
DEMO_MB ?= 768
MODELS ?=
# Mounted tests at a time. They share the cores with the daemons that they start.
TEST_THREADS ?= 2

# What is installed, and where. Nothing is built by it: 'make release' first.
PROGRAM ?= target/release/weightfs
PREFIX ?= /usr/local
DESTDIR ?=
ROOT = $(DESTDIR)$(PREFIX)

.PHONY: build release install test unit mounted demo bench venv browser tools clean

build: tools
	$(CARGO) build --workspace --all-targets

release: tools
	$(CARGO) build --release -p weightfs-cli

install:
	@[ -x $(PROGRAM) ] || { echo "$(PROGRAM) is not built: run 'make release' first" >&2; exit 1; }
	install -D -m 755 $(PROGRAM) $(ROOT)/bin/weightfs
	$(PROGRAM) man $(ROOT)/share/man/man1
	install -d $(ROOT)/share/bash-completion/completions $(ROOT)/share/zsh/site-functions $(ROOT)/share/fish/vendor_completions.d
	$(PROGRAM) completions bash > $(ROOT)/share/bash-completion/completions/weightfs
	$(PROGRAM) completions zsh > $(ROOT)/share/zsh/site-functions/_weightfs
	$(PROGRAM) completions fish > $(ROOT)/share/fish/vendor_completions.d/weightfs.fish
	install -d $(ROOT)/lib/systemd/system
	sed 's|/usr/bin/weightfs|$(PREFIX)/bin/weightfs|' packaging/weightfs@.service > $(ROOT)/lib/systemd/system/weightfs@.service

test: unit mounted

# Everything that needs no mount.
unit: tools
	$(CARGO) test --workspace --exclude weightfs-tests --no-fail-fast

# The program itself, mounted. They test the program that is built, and so it is built first.
mounted: tools venv browser
	$(CARGO) build -p weightfs-cli
	$(CARGO) test -p weightfs-tests --no-fail-fast -- --test-threads=$(TEST_THREADS)

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

# A browser and its driver, for the tests of the dashboard. Without them those say that they were skipped.
browser: tools
	@.ci/browser

tools:
	@CARGO="$(CARGO)" PYTHON="$(PYTHON)" .ci/tools

clean:
	$(CARGO) clean
	rm -rf $(VENV) tests/dashboard/node_modules
