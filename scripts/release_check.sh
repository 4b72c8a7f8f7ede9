#!/usr/bin/env bash
# Builds the distributions of the last commit, checks them, installs the wheel with its dependencies
# into an empty environment, and runs it there. Leaves wheel and source distribution in dist/.
#
#   scripts/release_check.sh [PYTHON]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${1:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "Building $(git describe --always)"
git clone --quiet . "$work/clone"
"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet --disable-pip-version-check \
    --no-deps --require-hashes --requirement requirements/release.txt
rm -rf dist
"$work/tools/bin/python" -m build --no-isolation --outdir dist "$work/clone" >"$work/build.log" || { cat "$work/build.log" >&2; exit 1; }
"$work/tools/bin/twine" check --strict dist/*

echo "Installing into an empty environment (minutes)"
"$python" -m venv "$work/venv"
# Constraints without hashes: with hashes, pip would require hashes of torch and of the wheel too.
sed -n 's/^\([a-z].*\) \\$/\1/p' requirements/lock.txt >"$work/constraints.txt"
pip=("$work/venv/bin/pip" install --quiet --disable-pip-version-check --constraint "$work/constraints.txt")
"${pip[@]}" --requirement requirements/torch.txt
"${pip[@]}" dist/*.whl
"$work/venv/bin/pip" check

cd "$work"
export PATH="$work/venv/bin:$PATH"
unset PYTHONPATH
sgp-run --version
sgp-run --help >help.txt
sgp-run --cfg job algo=sgp >config.yaml
sgp-run algo=sgp nodes=4 model=mlp epochs=1 logger=jsonl
sgp-run algo=sgp nodes=2 model=quadratic epochs=1 network=gloo logger=jsonl
sgp-report results/runs
