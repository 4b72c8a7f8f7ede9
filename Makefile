# Needs Python 3.11 or newer, git and make. The first target that needs it builds .venv; later calls reuse it.
PYTHON ?= python3
# Twice quiet: without the warnings of the package index. Python compiles what is imported, a small part of the packages.
PIP := .venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check --no-build-isolation --no-compile
# The files name all packages. Pip would look for newer ones of those that others want with extras.
LOCKED := $(PIP) --no-deps --require-hashes --requirement

# Compiled modules are kept, also where a container asks not to write them.
export PYTHONDONTWRITEBYTECODE :=

define CHECK_VERSION
import sys; sys.version_info >= (3, 11) or sys.exit("sgp-runner needs Python 3.11 or newer, but $(PYTHON) is %d.%d: \
name a newer one, for example: make $(MAKECMDGOALS) PYTHON=python3.12" % sys.version_info[:2])
endef

.PHONY: help demo picture test coverage test-slow test-slurm test-gpu reproduce claims faults explorer docs audit board bench lint lock release-check clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: .venv/.run  ## compare eight algorithms on 16 simulated nodes; under a minute
	.venv/bin/sgp-run experiment=compare

picture: .venv/.installed  ## take the pictures of the README from the report of make demo's command
	rm -rf build/compare && .venv/bin/sgp-run experiment=compare results=build/compare
	cp build/compare/sweeps/*/report/plots/accuracy-against-time-*.svg docs/pictures/compare.svg
	cp build/compare/sweeps/*/report/plots/time_to_target-*.svg docs/pictures/compare_times.svg
	.venv/bin/sgp-run download fashion_mnist
	rm -rf build/fashion && .venv/bin/sgp-run experiment=fashion_compare results=build/fashion
	cp build/fashion/sweeps/*/report/plots/time_to_target-*.svg docs/pictures/fashion_times.svg

# A test worker waits for the processes of its tests for a fifth of the time or more: three keep two cores busy. A file is run
# by one worker, so its fixtures are made once; tests/conftest.py sorts the files.
WORKERS := -n 3 --dist loadfile --no-loadscope-reorder
test: .venv/.fairseq  ## run the fast tests
	OMP_NUM_THREADS=1 .venv/bin/pytest $(WORKERS) -m "not slow and not slurm and not gpu"

coverage: .venv/.fairseq  ## run the fast tests, and list the lines of the package that none of them runs
	OMP_NUM_THREADS=1 .venv/bin/pytest $(WORKERS) -m "not slow and not slurm and not gpu" --cov

test-slow: .venv/.fairseq  ## run the slow tests; those that need Slurm are skipped without it
	OMP_NUM_THREADS=1 .venv/bin/pytest -m "slow and not gpu"
	SGP_TEST_DEEP=1 OMP_NUM_THREADS=1 .venv/bin/pytest tests/algorithms/test_invariants.py

test-slurm: .venv/.installed  ## run the tests that need Slurm on a local cluster; skipped without Slurm
	OMP_NUM_THREADS=1 .venv/bin/pytest -m "slurm and not slow"

test-gpu: .venv/.installed  ## run the tests that need GPUs
	.venv/bin/pytest -m gpu

reproduce: .venv/.installed  ## simulate the papers' times again, into results/README.md; minutes
	.venv/bin/python scripts/reproduce.py

claims: .venv/.installed  ## judge the papers' conclusions that follow from formulas; minutes
	.venv/bin/python scripts/claims.py

faults: .venv/.installed  ## simulate each fault with each algorithm and write docs/faults.md; minutes
	.venv/bin/python scripts/fault_table.py

explorer: .venv/.installed  ## simulate the plans of docs/explorer.html again, and draw the README's map of them; minutes
	.venv/bin/python scripts/explorer.py

docs: .venv/.docs  ## write the generated parts of docs/ and build the site into site/; a warning is an error
	OMP_NUM_THREADS=1 .venv/bin/python scripts/write_pages.py
	OMP_NUM_THREADS=1 NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

audit: .venv/.installed  ## judge the archives of the audit's rows again, into results/audit.md
	.venv/bin/python scripts/audit_page.py

board: .venv/.installed  ## verify the archives in studies/board/ and build their site into site-board/
	set -e; for archive in $(wildcard studies/board/*.zip); do .venv/bin/sgp-run study verify "$$archive"; done
	.venv/bin/sgp-run study board studies/board site-board

bench: .venv/.bench  ## benchmark real runs against other libraries, into results/benchmarks/
	.venv/bin/python scripts/bench.py

lint: .venv/.installed  ## check style, format, wording, types and commit messages
	.venv/bin/ruff check . && .venv/bin/ruff format --check .
	.venv/bin/python scripts/check_prose.py
	.venv/bin/python scripts/hooks/commit-msg
	.venv/bin/mypy

lock:  ## resolve the packages in requirements/ again, with their hashes; needs uv
	scripts/lock.sh

release-check:  ## build, check, install and run the distributions of the last commit; minutes
	scripts/release_check.sh $(PYTHON)

clean:  ## remove .venv, caches and build products; results stay
	rm -rf .venv build dist site site-board *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# All but torch and torchvision is checked against the hashes of requirements/, also what builds. Those
# two differ between CPU and GPUs; their dependencies are there when they come. These packages are
# enough for make demo.
.venv/.run: pyproject.toml $(wildcard requirements/*.txt)
	@$(PYTHON) -c '$(CHECK_VERSION)' && echo "Installing into .venv (a minute or two the first time)"
	@$(PYTHON) -m venv .venv && $(LOCKED) requirements/build.txt && $(LOCKED) requirements/run.txt && \
	$(PIP) --constraint requirements/torch.txt torch && $(PIP) --no-deps --editable . && touch $@

.venv/.installed: .venv/.run
	@echo "Installing the packages of tests and checks into .venv (a minute or two the first time)"
	@$(LOCKED) requirements/lock.txt && $(PIP) --requirement requirements/torch.txt && touch $@

# What it shares with lock.txt is there.
.venv/.docs: .venv/.installed
	@$(LOCKED) requirements/docs.txt && touch $@

# Libraries that the benchmarks compare with; a missing one is left out and named.
.venv/.bench: .venv/.installed
	@$(LOCKED) requirements/bench.txt && touch $@

# fairseq-fixed pins hydra-core==1.3.2 and omegaconf==2.3.0, though it runs with those of lock.txt.
# Only the extensions that training needs are compiled (requirements/fairseq_build).
.venv/.fairseq: .venv/.installed
	@command -v c++ >/dev/null || { echo "fairseq is compiled: install a C++ compiler (Debian: apt-get install g++)" >&2; exit 1; }
	@echo "Compiling fairseq into .venv (a minute the first time)"
	@PYTHONPATH=$(CURDIR)/requirements/fairseq_build $(LOCKED) requirements/fairseq.txt && touch $@ || { \
	echo "fairseq did not build: what pip says above is the reason. It needs a C++ compiler and Python's headers" \
	"(Debian: apt-get install g++ python3-dev). make demo and everything but the tests do without it." >&2; exit 1; }
