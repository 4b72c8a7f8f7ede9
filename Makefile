# Needs Python 3.11 or newer, git and make. The first target that needs it builds .venv; later calls reuse it.
PYTHON ?= python3
PIP := .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

define CHECK_VERSION
import sys; sys.version_info >= (3, 11) or sys.exit("sgp-runner needs Python 3.11 or newer, but $(PYTHON) is %d.%d: \
name a newer one, for example: make $(MAKECMDGOALS) PYTHON=python3.12" % sys.version_info[:2])
endef

.PHONY: help demo test test-slow test-slurm test-gpu reproduce claims logs faults bench lint release-check clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: .venv/.installed  ## train with SGP on 8 simulated nodes and print the result
	.venv/bin/sgp-run

test: .venv/.fairseq  ## run the fast tests
	OMP_NUM_THREADS=1 .venv/bin/pytest -n 2 --dist loadfile -m "not slow and not slurm and not gpu"

test-slow: .venv/.fairseq  ## run the slow tests
	OMP_NUM_THREADS=1 .venv/bin/pytest -m "slow and not slurm and not gpu"

test-slurm: .venv/.installed  ## run the tests that need Slurm on a local cluster; skipped without Slurm
	OMP_NUM_THREADS=1 .venv/bin/pytest -m slurm

test-gpu: .venv/.installed  ## run the tests that need GPUs
	.venv/bin/pytest -m gpu

reproduce: .venv/.installed  ## reproduce the papers' tables in results/; about an hour, resumable
	.venv/bin/python scripts/reproduce.py

claims: .venv/.installed  ## test the papers' conclusions, into results/reproduced/; resumable
	.venv/bin/python scripts/claims.py

logs:  ## unpack the runs behind both into results/reproduced/runs/
	PYTHONPATH=scripts $(PYTHON) -m reproduce.archives results/reproduced

faults: .venv/.installed  ## simulate each fault with each algorithm and write docs/faults.md; minutes
	.venv/bin/python scripts/fault_table.py

bench: .venv/.bench  ## benchmark real runs against other libraries, into results/benchmarks/
	.venv/bin/python scripts/bench.py

lint: .venv/.installed  ## check style, format, wording and types
	.venv/bin/ruff check . && .venv/bin/ruff format --check .
	.venv/bin/python scripts/check_prose.py
	.venv/bin/mypy

release-check:  ## build, check, install and run the distributions of the last commit; minutes
	scripts/release_check.sh $(PYTHON)

clean:  ## remove .venv, caches and build products; results stay
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and alone: pip then takes a CPU wheel where one is offered, and torchvision accepts it.
.venv/.installed: setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c '$(CHECK_VERSION)' && echo "Installing into .venv (minutes the first time)"
	$(PYTHON) -m venv .venv && $(PIP) torch && $(PIP) --editable '.[dev]' && touch $@

# Libraries that the benchmarks compare with; a missing one is left out and named.
.venv/.bench: .venv/.installed
	@$(PIP) --editable '.[bench]' && touch $@

# fairseq-fixed pins hydra-core==1.3.2 and omegaconf==2.3.0, though it runs with those of constraints.txt, hence --no-deps; and an
# isolated build would compile against another torch than the one that is here.
.venv/.fairseq: .venv/.installed
	@command -v c++ >/dev/null || { echo "fairseq is compiled: install a C++ compiler (Debian: apt-get install g++)" >&2; exit 1; }
	@echo "Compiling fairseq into .venv (minutes the first time)"
	@$(PIP) bitarray cffi cython ninja regex setuptools tqdm wheel && \
	$(PIP) --no-build-isolation --no-deps fairseq-fixed==0.12.3.1 && touch $@ || { \
	echo "fairseq did not build: what pip says above is the reason. It needs a C++ compiler and Python's headers" \
	"(Debian: apt-get install g++ python3-dev). make demo and everything but the tests do without it." >&2; exit 1; }
