#!/usr/bin/env bash
# Answers on a bare machine with a GPU whether sgp-run works there, is right, and how fast it is, in
# at most eight minutes and without a network. The machine has Python 3.12 with a PyTorch of its
# own, of 2.11 or later, its torchvision, NumPy and scikit-learn.
#
#   scripts/gpu_check.sh pack FOLDER               beforehand, with a network: FOLDER holds what is needed, 11 MB
#   scripts/gpu_check.sh run [WHEELS [OUT [PART ...]]]   there: OUT/gpu_check.log and .jsonl
#
# WHEELS, which pack leaves in FOLDER/wheels, is needed for packages that the machine lacks; what it
# has is used. Without a GPU each part answers "no GPU". PYTHON names another interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# What runs and tests import. Those of reports, of W&B, of translation and of large graphs are left
# out, and what a machine with PyTorch has: it is large.
packages=(
    antlr4-python3-runtime hydra-core omegaconf packaging pyyaml
    markdown-it-py mdurl pygments rich
    iniconfig pluggy pytest pytest-timeout
)
present=(torch torchvision numpy scikit-learn)
code=(sgp_runner configs scripts tests requirements/lock.txt setup.cfg pyproject.toml)

pack() {
    local folder=$1
    mkdir -p "$folder"
    git archive HEAD -- "${code[@]}" | tar --extract --directory "$folder"
    git rev-parse HEAD >"$folder/COMMIT"
    wheels "$folder/wheels"
    du --summarize --human-readable --apparent-size "$folder"
}

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
}

run() {
    local folder=${1:-} out=${2:-build/gpu_check} site missing=() name
    shift $(($# < 2 ? $# : 2))
    for name in "${present[@]}"; do
        installed "$name" || {
            echo "gpu_check.sh: $name is missing: install it." >&2
            exit 2
        }
    done
    mkdir -p "$out"
    site=$(mktemp -d)
    for name in "${packages[@]}"; do
        installed "$name" || missing+=("$name")
    done
    if ((${#missing[@]})); then
        [[ -n $folder ]] || {
            echo "gpu_check.sh: ${missing[*]} are missing; name the folder of their wheels." >&2
            exit 2
        }
        "$python" -m pip install --quiet --no-index --no-deps --no-compile --find-links "$folder" --target "$site" "${missing[@]}"
    fi
    export PYTHONPATH=$PWD:$PWD/scripts:$site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 WANDB_MODE=offline
    "$python" scripts/gpu_check.py "$out" "$@"
}

installed() {
    "$python" -c 'import importlib.metadata, sys; importlib.metadata.version(sys.argv[1])' "$1" 2>/dev/null
}

python=${PYTHON:-python3}
case ${1:-} in
    pack) pack "${2:?"name the folder"}" ;;
    run) run "${@:2}" ;;
    *)
        sed -n 's/^# \{0,1\}//p' "$0" | head -12 >&2
        exit 2
        ;;
esac
