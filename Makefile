# make demo | test | test-torch | test-comfyui | bench | build | install | clean. On a new machine, run it as root: it installs what
# is missing and says so.

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
# A checkout of ComfyUI, and the Python that runs it.
COMFYUI ?=
COMFYUI_PYTHON ?= $(firstword $(wildcard $(COMFYUI)/venv/bin/python $(COMFYUI)/.venv/bin/python) $(shell command -v $(PYTHON)))
# Mounted tests at a time. They share the cores with the daemons that they start.
TEST_THREADS ?= 2

# What is installed, and where. Nothing is built by it: 'make release' first.
PROGRAM ?= target/release/weightfs
PREFIX ?= /usr/local
DESTDIR ?=
ROOT = $(DESTDIR)$(PREFIX)

.PHONY: build release install test unit mounted python lint-python test-torch test-comfyui demo bench venv tools clean

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

test: unit mounted python

# Everything that needs no mount.
unit: tools
	$(CARGO) test --workspace --exclude weightfs-tests --no-fail-fast

# The program itself, mounted. They test the program that is built, and so it is built first.
mounted: tools venv
	$(CARGO) build -p weightfs-cli
	$(CARGO) test -p weightfs-tests --no-fail-fast -- --test-threads=$(TEST_THREADS)

# The Python package, against the real program where it can be mounted. Its tests with torch say that they are skipped.
python: tools venv
	$(CARGO) build -p weightfs-cli
	cd pycompat && ../$(VENV)/bin/python -m pytest

lint-python: venv
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r tests/requirements-lint.txt
	cd pycompat && ../$(VENV)/bin/ruff check . && ../$(VENV)/bin/mypy

# The tests of the Python package that need torch: several GB, and so in an environment of their own. TORCH_INDEX names an
# index with builds for the CPU alone, which are much smaller.
test-torch: tools $(VENV)-torch/.made
	$(CARGO) build -p weightfs-cli
	cd pycompat && ../$(VENV)-torch/bin/python -m pytest -m torch

$(VENV)-torch/.made: tests/requirements.txt tests/requirements-torch.txt | tools
	$(PYTHON) -m venv $(VENV)-torch
	$(VENV)-torch/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	$(VENV)-torch/bin/pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) \
		-r tests/requirements-torch.txt
	touch $@

# With a real ComfyUI, on the CPU: make test-comfyui COMFYUI=/path/to/checkout. Its Python must have ComfyUI's
# requirements, and pytest.
test-comfyui: tools
	@[ -f "$(COMFYUI)/main.py" ] || { echo "COMFYUI=/path/to/checkout is needed: a folder with ComfyUI's main.py" >&2; exit 1; }
	@$(COMFYUI_PYTHON) -c 'import torch, pytest, PIL, safetensors, transformers' || { \
		echo "$(COMFYUI_PYTHON) lacks that: '$(COMFYUI_PYTHON) -m pip install -r $(COMFYUI)/requirements.txt pytest'," \
			"or name another with COMFYUI_PYTHON=..." >&2; exit 1; }
	$(CARGO) build -p weightfs-cli
	cd pycompat && COMFYUI="$(abspath $(COMFYUI))" $(abspath $(COMFYUI_PYTHON)) -m pytest comfyui_test

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
	rm -rf $(VENV) $(VENV)-torch
