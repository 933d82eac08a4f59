# Two commands set everything up by themselves: `make run` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Packages are compiled when they are first imported (--no-compile): without files to keep that in, every process that
# a test starts would compile all of torch again.
unexport PYTHONDONTWRITEBYTECODE

RELEASE_TOOLS = $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --no-build-isolation --editable '.[release]'

METHODS := hat-dfed,hat-dfed-plus,rnd,d-psgd,full,local

.DEFAULT_GOAL := help
.PHONY: help setup run test lint format test-slow test-processes test-cluster test-browser fast-tests docs dist test-dist lint-release faults faults-all soak dashboard paper-smoke bench fuzz protocol cluster readme-figures screenshots look clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY)  ## Make the environment in .venv (run and test do it by themselves)

# A recent pip first, which resolves in half the time; where it cannot be had, an older one will do. Then torch by its
# pin, so that nothing that depends on it pulls a larger build, and what builds our packages, so that it is installed once
# and not once for each of them.
$(READY): pyproject.toml paper/pyproject.toml benchmarks/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	-$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt torch hatchling editables
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --no-build-isolation \
		--editable '.[sim,deploy,dashboard,energy,search,ray,tensorboard,mlflow,dev]' --editable ./paper --editable ./benchmarks
	touch $@

run: $(READY)  ## Compare hat-dfed with its baselines on the embedded digits
	$(BIN)/hatdfed compare --dataset digits --methods $(METHODS) --seeds 3

test: $(READY)  ## Every check and every fast test
	$(MAKE) --no-print-directory --jobs=2 lint fast-tests

# Tests wait at times; meanwhile the linters use the cores.
fast-tests: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal

lint: $(READY)  ## Format, style, types, direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	nice $(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## Rewrite the code in the one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-slow: $(READY)  ## Tests on real data; set HATDFED_DATA to a folder that has it
	$(BIN)/pytest -m slow

test-processes: $(READY)  ## Tests that start, kill and wait for several processes (minutes)
	$(BIN)/pytest -m processes

test-cluster: $(READY)  ## Two Ray nodes in two network namespaces, one of them killed; wants root and iproute2
	$(BIN)/pytest -m cluster tests/cluster

faults: $(READY)  ## The most important faults with real processes in network namespaces (minutes; wants root and iproute2)
	$(BIN)/python -m tests.faults.matrix

faults-all: $(READY)  ## Every row of the fault matrix, and ten times as many random schedules
	$(BIN)/python -m tests.faults.matrix --all
	$(BIN)/pytest -m 'processes or not processes' tests/faults
	HATDFED_SCHEDULES=20000 HATDFED_SCHEDULES_SEED=$${HATDFED_SCHEDULES_SEED:-1} $(BIN)/pytest -n 2 -o timeout=1800 tests/schedules

soak: $(READY)  ## 45 minutes of random faults, then the checker and the growth of memory, files and descriptors
	$(BIN)/python -m tests.faults.matrix.soak

dashboard: $(READY)  ## Runs in a browser, at http://127.0.0.1:8050/
	mkdir -p runs
	$(BIN)/hatdfed dashboard

test-browser: $(READY)  ## The dashboard in headless Chromium (Debian: chromium, chromium-driver)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt selenium
	$(BIN)/pytest -m browser tests/dashboard

# Pages are written from docs/, other documents and docstrings; a warning is an error. Material's note about its own future
# is no warning about our pages.
docs: $(READY)  ## Build the documentation site in build/site, and check its links
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --no-build-isolation --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python docs/check_site.py build/site

lint-release: $(READY)  ## Check workflows, issue forms, citation and container files
	$(RELEASE_TOOLS)
	$(BIN)/zizmor --offline .github/workflows
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec packaging/compose/compose.yaml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/hadolint packaging/compose/Dockerfile

# The wheel is built from the sdist, so that an sdist from which nothing can be built is noticed.
dist: $(READY)  ## Build the package's wheel and sdist in dist/
	$(RELEASE_TOOLS)
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/twine check --strict dist/*

test-dist: dist  ## Install that wheel into a fresh environment, and run the sdist's tests there, outside the checkout (minutes)
	PYTHON=$(PYTHON) packaging/try_dist dist

paper-smoke: $(READY)  ## All of the paper's experiments, tables and figures at a small scale on digits
	$(BIN)/hatdfed paper run all calibration readings released --scale smoke
	$(BIN)/hatdfed paper tables --scale smoke
	$(BIN)/hatdfed paper figures --scale smoke

cluster: $(READY)  ## A coordinator and five edges on this machine, with certificates: trains on digits, prints the table
	$(BIN)/python examples/three_machines/cluster.py examples/three_machines/run.yaml --edges 5

bench: $(READY)  ## Time the fleets against a loop and the machine's own limit; wants a quiet machine
	$(BIN)/hatdfed bench --device cpu --out benchmarks/results/bench-cpu.json
	$(BIN)/hatdfed bench --device cpu --workload cifar-10 --servers 5,20 --out benchmarks/results/bench-cpu-cifar.json

fuzz: $(READY)  ## Feed 100,000 bad messages and 10,000 bad files to all that reads them (about ten minutes)
	$(BIN)/python benchmarks/fuzz.py --out benchmarks/results/fuzz.json

# Generated code may be older than the runtime, never newer; this generator suits protobuf 6.31 and everything after it.
protocol:  ## Make the network code anew from hatdfed.proto
	test -x build/protocol/bin/python || $(PYTHON) -m venv build/protocol
	build/protocol/bin/pip install --quiet grpcio-tools==1.76.0
	build/protocol/bin/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src --grpc_python_out=src \
		src/hatdfed/deploy/protocol/hatdfed.proto

# What README shows of `make run`: the same command, its table and pictures kept under docs/.
readme-figures: $(READY)  ## Draw the README's pictures anew from a fresh `make run`
	rm -rf build/readme && mkdir -p docs/make_run
	$(BIN)/hatdfed compare --dataset digits --methods $(METHODS) --seeds 3 --out build/readme
	cp build/readme/comparison.json build/readme/accuracy.png build/readme/accuracy_vs_energy.png docs/make_run/
	$(BIN)/hatdfed run --method hat-dfed --out build/readme/run
	cp build/readme/run/topology.png build/readme/run/environment.json docs/make_run/

screenshots: $(READY)  ## Take the pictures of docs/dashboard.md and README anew (wants Chromium, as test-browser)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt selenium
	$(BIN)/python docs/screenshots.py

look: $(READY)  ## Pictures of every page of the dashboard in build/look: screen and phone, light and dark
	$(BIN)/python -m pip install --quiet --constraint constraints.txt selenium
	$(BIN)/python docs/screenshots.py --every build/look

clean:  ## Remove the environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
