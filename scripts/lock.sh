#!/usr/bin/env bash
# Resolves the packages of requirements/ again, for Python 3.11 and later on any platform, with the
# hashes of their files. Versions stay where they still fit. Needs uv.
#
#   scripts/lock.sh [--upgrade | --upgrade-package NAME]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../requirements"

export UV_CUSTOM_COMPILE_COMMAND="scripts/lock.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# torch and torchvision differ between CPU and GPUs, and so do the packages of CUDA, which torch's
# own metadata pins.
cat >"$work/cuda.txt" <<END
cuda-bindings
cuda-toolkit
nvidia-cudnn-cu13
nvidia-cusparselt-cu13
nvidia-nccl-cu13
nvidia-nvshmem-cu13
triton
END

lock() {
    local name=$1
    shift
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
        --constraint torch.txt --excludes "$work/cuda.txt" \
        --no-emit-package torch --no-emit-package torchvision --output-file "$name" "$@"
}

# Build backends first: source distributions are then built without isolated environments, whose
# packages would have no hashes.
lock build.txt "$@" - <<<$'setuptools\nwheel'
# All that is needed to run and test, and what fairseq needs in order to build and to run.
lock lock.txt "$@" --constraint build.txt --extra dev ../setup.cfg - \
    <<<$'bitarray\ncffi\ncython\nninja\nregex\ntqdm\nwheel'
# Alone: it pins older versions of hydra-core and omegaconf, though it runs with those of lock.txt.
lock fairseq.txt "$@" --no-deps - <<<'fairseq-fixed==0.12.3.1'
lock bench.txt "$@" --constraint lock.txt --extra bench ../setup.cfg
lock docs.txt "$@" --constraint lock.txt --extra docs ../setup.cfg
lock release.txt "$@" --constraint lock.txt - <<<$'build\nsetuptools\ntwine'
