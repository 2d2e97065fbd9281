# Two commands do everything on a fresh Debian or Ubuntu machine: `make demo` and `make test`.

VENV := .venv
BIN := $(VENV)/bin
MINUTES := 75
FUZZ_MINUTES := $(if $(filter command line,$(origin MINUTES)),$(MINUTES),10)
BASH_FILES = .ci/run $(wildcard scripts/*.bash kernels/inside/*.bash kernels/inside/*.sh) $(shell find src -name '*.bash')

# Without compiled files each process that a test or a benchmark starts would compile Cove again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup console browser demo test clients cluster check coverage mutants bench beside scale picture soak fuzz kernels docs load wheel packages clean

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1	\2/p' Makefile | expand -t 14

setup: $(VENV)/.ready ## Install what is missing: system packages where allowed, virtual environments
	@$(BIN)/cove setup

$(VENV)/.installed: pyproject.toml scripts/system.bash scripts/python.bash
	@bash scripts/system.bash
	@bash scripts/python.bash $(VENV)
	@touch $@

$(VENV)/.ready: $(VENV)/.installed
	@bash scripts/python.bash $(VENV) --dev
	@bash scripts/console.bash --if-possible
	@touch $@

console: ## Build the web console; needs Node.js 20 and npm
	@bash scripts/console.bash

browser: setup console ## Drive the web console in Chromium, at length
	$(BIN)/python -m pytest tests/browser -m "browser or not browser"

demo: $(VENV)/.installed ## Show what a sandbox can do, in a real one
	@$(BIN)/cove setup
	@$(BIN)/cove demo

test: setup ## Run the tests; when run as root, once more as a plain user
	bash scripts/test.bash $(BIN)/python; as_user=$$?; bash scripts/plain_user.bash && exit $$as_user

clients: setup ## Drive clients that others wrote against a server, at length
	$(BIN)/python -m pytest tests/clients -k "real_clients or inspect or swerex" -m "slow or not slow"

cluster: setup ## Run the contract through a node that does not have the sandbox, and let machines fail
	$(BIN)/python -m pytest tests/contract -m "cluster and not slow" --numprocesses 2 --dist loadfile
	$(BIN)/python -m pytest tests/cluster tests/server/cluster/test_cluster_doctor.py -m "cluster or not slow"

check: setup ## Format, lint, types, import layers, shell scripts, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	shellcheck $(BASH_FILES)
	$(BIN)/python scripts/make_blocking.py --check
	$(BIN)/python scripts/make_reference.py --check
	$(BIN)/python scripts/make_typescript.py --check

coverage: setup ## Measure which branches of the pure packages their tests take
	$(BIN)/coverage run -m pytest tests/core -m "pure and not timed" --hypothesis-profile=coverage -q
	$(BIN)/coverage report

mutants: setup ## Change the parsers one operator at a time, and print what their tests do not notice
	$(BIN)/python scripts/mutants.py

bench: setup ## Measure, each figure beside its floor, then Cove beside its alternatives
	$(BIN)/python -m bench
	$(BIN)/python -m bench.beside --rounds 1

docs: setup ## Make the documentation's site, in site/, with new pictures of the console
	$(BIN)/python scripts/make_reference.py
	$(BIN)/python scripts/make_architecture.py
	$(BIN)/python -m scripts.make_screenshots
	$(BIN)/mkdocs build --quiet

beside: setup ## Measure Cove beside its alternatives; draws docs/figures/beside.svg, writes the tables of the documents
	$(BIN)/python -m bench.beside --json docs/figures/beside.json --svg docs/figures/beside.svg --documents

scale: setup ## Measure how cost grows with numbers; draws docs/figures/scale.svg
	$(BIN)/python -m bench scale --json docs/figures/scale.json --svg docs/figures/scale.svg

picture: setup ## Record the demo as docs/figures/demo.cast and demo.svg; draw architecture.svg
	$(BIN)/python scripts/make_recording.py
	$(BIN)/python scripts/make_architecture.py

soak: setup ## Use sandboxes at random, with faults, for MINUTES (75), and check all that must be true
	$(BIN)/python -m soak --minutes $(MINUTES)

fuzz: setup ## Fuzz every parser that reads bytes of an enemy for MINUTES (10), as many at a time as there are cores
	$(BIN)/python -m fuzz --seconds $$(( $(FUZZ_MINUTES) * 60 ))

load: setup ## Put a server under load for a minute: 200 clients, killed runtimes
	$(BIN)/python scripts/load.py

kernels: setup ## Boot the kernels of distributions in QEMU and try Cove on each; writes docs/platforms.md
	$(BIN)/python -m kernels --page docs/platforms.md

wheel: setup ## Build the wheel and the source package, in dist/
	$(BIN)/python -m hatchling build -t sdist -t wheel

packages: setup ## Install the wheel on clean systems by pip, pipx and uv, and run it; needs root and mmdebstrap
	$(BIN)/python scripts/packages.py $(if $(MIRROR),--mirror $(MIRROR)) $(foreach python,$(PYTHONS),--python $(python))

clean: ## Remove what the other commands made
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .fuzz
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/cove-kernels"
	@bash scripts/plain_user.bash --clean
