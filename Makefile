# `make demo` and `make test` do all the set-up they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: setup demo test quick lint types tests docs docs-test gpu-test campaign owner release-check clean

setup: $(VENV)/.ready

# The constraints pin every version, so the same environment installs every time. pip would compile every module of
# torch and its dependencies, one after the other; most of them are never imported.
INSTALL = $(PIP) install --quiet --no-compile -c constraints.txt

# What the demonstration needs, without the developers' tools.
$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) setuptools hatchling editables
	$(INSTALL) --no-build-isolation -e '.[demo]'
	touch $@

# Everything. The tests start hundreds of processes, so all modules are compiled, on all cores. Some packages have
# templates that are no valid modules: compileall goes on and fails at the end.
$(VENV)/.ready: $(VENV)/.demo
	$(INSTALL) --no-build-isolation -e '.[dev]'
	$(BIN)/python -m compileall -q -q -j 0 $(VENV)/lib dragoman || true
	touch $@

# The demonstration keeps the modules that it compiles, even where the environment forbids it: the next command starts
# seconds sooner.
demo: $(VENV)/.demo
	PYTHONDONTWRITEBYTECODE= $(BIN)/dragoman demo

# Types and tests at the same time: mypy has one core and seldom needs it long. Where one fails, the other still ends.
test: lint
	$(MAKE) --no-print-directory -j 2 types tests

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: setup
	$(BIN)/mypy

# Processes with one thread each: half the time of two threads in one process. One more than cores, since tests also wait.
# The modules that they compile are kept, even where the environment forbids it: else every process compiles all tests.
TESTING = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1
WORKERS = $(shell $(PYTHON) -c 'import os; print(os.cpu_count() + 1)')
# What failed beside others runs once more alone, and fails the build if it fails again: shared machines stop processes for
# seconds. Both runs are shown.
AGAIN = --last-failed --last-failed-no-failures none -n 0 -x
tests: setup
	$(TESTING) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not slow and not page' || { test $$? = 1 && \
		$(TESTING) $(BIN)/python -m pytest $(AGAIN) -m 'not slow and not page'; }

# Between two edits: lint, types, and tests that take seconds and train, predict and evaluate once, in under two minutes.
QUICK = $(addprefix tests/,test_architecture.py test_api.py test_end_to_end.py base/config data models/layers models/kernels inspect runs/test_folder.py \
	runs/test_plan.py)
quick: lint types
	$(TESTING) $(BIN)/python -m pytest -n auto --dist worksteal -m 'not slow' $(QUICK)

# The documentation site, in site/: a broken link, anchor or example is an error. `tools/build_docs.py` alone is a trial.
$(VENV)/.docs: $(VENV)/.demo
	$(INSTALL) --no-build-isolation -e '.[docs]'
	touch $@

# The first time six small models are trained for the gallery, in runs/gallery: about ten minutes of one core.
docs: docs-test $(VENV)/.docs
	$(BIN)/python tools/gallery.py docs/gallery
	$(BIN)/python tools/build_docs.py

# The pages: links, names of options, settings and files, and every command that they show. `make test` leaves out the
# tests marked `page`, which train: there, pages are compared with the outputs that were recorded.
PAGES = $(addprefix tests/,test_docs.py test_moving_pages.py test_site.py test_readme.py test_library_page.py test_extending.py \
	test_decoding_page.py test_tutorials.py test_lectures.py lecture/test_toys.py serving/test_repl_and_docs.py \
	commands/test_inspect_example.py test_python_page.py training/test_trackers.py inference/test_pickling.py)
docs-test: setup
	$(TESTING) $(BIN)/python -m pytest -n auto --dist worksteal -m 'not slow' $(PAGES) || { test $$? = 1 && \
		$(TESTING) $(BIN)/python -m pytest $(AGAIN) -m 'not slow' $(PAGES); }

# Writes the owner of the repository into every address, once: make owner OWNER=NAME
owner:
	test -n "$(OWNER)"
	git grep -lE 'github(\.com)?/OWNER/|OWNER\.github\.io' -- ':!tools' ':!Makefile' | xargs \
		sed -i.bak -e 's|github\.com/OWNER/|github.com/$(OWNER)/|g' -e 's|/github/OWNER/|/github/$(OWNER)/|g' -e 's|OWNER\.github\.io|$(OWNER).github.io|g'
	git ls-files --others '*.bak' | xargs rm -f

# What must hold before a version is published, one line for each point. POINTS="version wheel" checks these alone.
release-check: setup
	$(BIN)/python tools/release_check.py $(POINTS)

# The tests marked `gpu`, with warnings as errors. Only files that have such tests are collected, and no plugin of pytest is needed, so
# it also runs with the Python of a machine that has torch and pytest alone.
GPU_TESTS = $(shell grep -lrE 'mark\.gpu|needs_gpu|on_gpu|DEVICES' tests --include='test_*.py')
gpu-test:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m pytest -o addopts='' -q -m gpu -W error \
		-W ignore::pytest.PytestConfigWarning -p no:cacheprovider --durations=5 $(GPU_TESTS)

# Long proofs, each with a count and a time (docs/explanation/security.md lists them). Not part of `make test`.
# MUTATIONS=1000000 takes about two hours of one quiet core.
MUTATIONS ?= 100000
STOPS ?= 500
PROCESSES ?= 2
campaign: setup
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/campaign/faults.py 0 --processes $(PROCESSES)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/campaign/kills.py 1000 --processes $(PROCESSES)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/campaign/stops.py $(STOPS) --processes $(PROCESSES)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/campaign/links.py --processes $(PROCESSES)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/campaign/shards.py 300 --processes $(PROCESSES)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/campaign/mutations.py $(MUTATIONS) --processes $(PROCESSES)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/campaign/invariance.py 1000 --processes $(PROCESSES)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/campaign/differential.py 1000 --processes $(PROCESSES)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/campaign/documents.py 100000 --processes $(PROCESSES)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/campaign/linear_time.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/campaign/segments.py 100000 --processes $(PROCESSES)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/campaign/matrix.py --processes $(PROCESSES)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/campaign/ensembles.py 3
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/campaign/soak.py 30
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/hostile_commands.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/serving_fuzz.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/campaign/request_limits.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/campaign/corrections.py 60
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/serving.py --seconds 2 --tries 20 --requests 20000
	$(BIN)/python benchmarks/flat_memory.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/small_task.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m slow

clean:
	rm -rf $(VENV) runs site build
