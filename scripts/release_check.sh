#!/usr/bin/env bash
# Builds the distributions of the last commit, checks them, installs the wheel with the dependencies
# that it names into an empty environment, and runs it there, also through uvx. Leaves wheel and
# source distribution in dist/.
#
#   scripts/release_check.sh [PYTHON]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${1:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
quiet=(--quiet --quiet --disable-pip-version-check)

echo "Building $(git describe --always)"
git clone --quiet . "$work/clone"
"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install "${quiet[@]}" --no-deps --require-hashes --requirement requirements/release.txt
rm -rf dist
"$work/tools/bin/python" -m build --no-isolation --outdir dist "$work/clone" >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }
"$work/tools/bin/twine" check --strict dist/*

echo "Installing into an empty environment (minutes)"
"$python" -m venv "$work/venv"
# Constraints without hashes: with hashes, pip would require hashes of torch and of the wheel too.
sed -n 's/^\([a-z].*\) \\$/\1/p' requirements/lock.txt >"$work/constraints.txt"
grep '^torch==' requirements/torch.txt >>"$work/constraints.txt"
wheel=$(realpath dist/*.whl)
"$work/venv/bin/pip" install "${quiet[@]}" --constraint "$work/constraints.txt" "$wheel"
"$work/venv/bin/pip" check

cd "$work"
export HOME=$work
unset PYTHONPATH
sgp-run() { "$work/venv/bin/sgp-run" "$@"; }
sgp-run --version
sgp-run --help >help.txt
sgp-run --cfg job algo=sgp >config.yaml
sgp-run algo=sgp nodes=4 model=mlp epochs=1 logger=jsonl
sgp-run algo=sgp nodes=2 model=quadratic epochs=1 network=gloo logger=jsonl
venv/bin/sgp-runner experiment=compare algo=ar_sgd,sgp nodes=4 epochs=1
venv/bin/sgp-report results/runs

echo "Reading the types from outside"
cat >client.py <<'END'
import sgp_runner

result: sgp_runner.Result = sgp_runner.run("model=mlp", nodes=2)
reveal_type(result.folder)
END
"$work/tools/bin/mypy" --python-executable venv/bin/python --strict client.py | tee types.txt
grep -q 'Revealed type is "pathlib.Path"' types.txt

echo "Running it through uvx"
# The same build of torch: uv would otherwise fetch the one with CUDA.
sed -i '/^torch==/d' constraints.txt
venv/bin/pip freeze | grep '^torch==' >>constraints.txt
UV_CACHE_DIR=$work/uv "$work/tools/bin/uvx" --quiet ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} --python "$work/venv/bin/python" --constraints "$work/constraints.txt" \
    --from "$wheel" sgp-runner experiment=compare algo=ar_sgd,sgp nodes=4 epochs=1 seed=2
