# Needs Python 3.11 or newer, git and make. The first target that needs it builds .venv; later calls reuse it.
PYTHON ?= python3
PIP := .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

define CHECK_VERSION
import sys; sys.version_info >= (3, 11) or sys.exit("sgp-runner needs Python 3.11 or newer, but $(PYTHON) is %d.%d: \
name a newer one, for example: make $(MAKECMDGOALS) PYTHON=python3.12" % sys.version_info[:2])
endef

.PHONY: help demo test test-slow test-slurm test-gpu lint clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: .venv/.installed  ## train with SGP on 8 simulated nodes and print the result
	.venv/bin/sgp-run

test: .venv/.installed  ## run the fast tests
	OMP_NUM_THREADS=1 .venv/bin/pytest -n 2 -m "not slow and not slurm and not gpu"

test-slow: .venv/.installed  ## run the slow tests
	OMP_NUM_THREADS=1 .venv/bin/pytest -m "slow and not slurm and not gpu"

test-slurm: .venv/.installed  ## run the tests on a Slurm cluster of this machine alone; skipped without Slurm
	OMP_NUM_THREADS=1 .venv/bin/pytest -m slurm

test-gpu: .venv/.installed  ## run the tests that need GPUs
	.venv/bin/pytest -m gpu

lint: .venv/.installed  ## check style, format and types
	.venv/bin/ruff check . && .venv/bin/ruff format --check .
	.venv/bin/mypy

clean:  ## remove .venv, caches and build products; results stay
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and alone: pip then takes a CPU wheel where one is offered, and torchvision accepts it.
.venv/.installed: setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c '$(CHECK_VERSION)' && echo "Installing into .venv (minutes the first time)"
	$(PYTHON) -m venv .venv && $(PIP) torch && $(PIP) --editable '.[dev]' && touch $@
