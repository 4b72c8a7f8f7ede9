#!/usr/bin/env bash
# Answers on a bare machine with a GPU whether sgp-run works there, is right, and how fast it is, in
# at most eight minutes and without a network. The machine has Python 3.12 with a PyTorch of its
# own, of 2.11 or later, and its torchvision.
#
#   scripts/gpu_check.sh wheels FOLDER        beforehand, with a network: the other packages, 30 MB
#   scripts/gpu_check.sh run [FOLDER [OUT]]   there, in the clone: OUT/gpu_check.log and .json
#
# FOLDER is also needed for packages that the machine lacks; what it has is used. Without a GPU the
# steps that need one are skipped, and reported as skipped. PYTHON names another interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# What runs and tests import. Those of reports, of W&B and of large graphs are left out, and torch
# and torchvision, which belong together.
packages=(
    antlr4-python3-runtime hydra-core omegaconf packaging pyyaml
    markdown-it-py mdurl pygments rich
    joblib numpy scikit-learn threadpoolctl
    iniconfig pluggy pytest pytest-timeout
)

wheels() {
    local folder=$1 name constraints
    constraints=$(mktemp)
    sed -n 's/^\([a-z].*\) \\$/\1/p' requirements/lock.txt >"$constraints"
    mkdir -p "$folder"
    # antlr4 is published as source only, and is Python alone.
    "$python" -m pip wheel --quiet --no-deps --wheel-dir "$folder" --constraint "$constraints" antlr4-python3-runtime
    for name in "${packages[@]:1}"; do
        "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
            --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
            --platform manylinux2014_x86_64 --dest "$folder" --constraint "$constraints" "$name"
    done
    rm -f "$constraints"
    du --summarize --human-readable "$folder"
}

run() {
    local folder=${1:-} out=${2:-build/gpu_check} site missing=() name
    mkdir -p "$out"
    site=$(mktemp -d)
    for name in "${packages[@]}"; do
        "$python" -c 'import importlib.metadata, sys; importlib.metadata.version(sys.argv[1])' "$name" 2>/dev/null || missing+=("$name")
    done
    if ((${#missing[@]})); then
        [[ -n $folder ]] || {
            echo "gpu_check.sh: ${missing[*]} are missing; name the folder of gpu_check.sh wheels." >&2
            exit 2
        }
        "$python" -m pip install --quiet --no-index --no-deps --no-compile --find-links "$folder" --target "$site" "${missing[@]}"
    fi
    export PYTHONPATH=$PWD:$site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 WANDB_MODE=offline
    "$python" scripts/gpu_check.py "$out"
}

python=${PYTHON:-python3}
case ${1:-} in
    wheels) wheels "${2:?"name the folder of the wheels"}" ;;
    run) run "${@:2}" ;;
    *)
        sed -n 's/^# \{0,1\}//p' "$0" | head -12 >&2
        exit 2
        ;;
esac
