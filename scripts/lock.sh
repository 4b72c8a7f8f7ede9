#!/usr/bin/env bash
# Resolves the packages of requirements/ again, for Python 3.11 and later on any platform, with the
# hashes of their files. Versions that still fit do not change. Needs uv.
#
#   scripts/lock.sh [--upgrade | --upgrade-package NAME]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../requirements"

export UV_CUSTOM_COMPILE_COMMAND="scripts/lock.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# torch and torchvision have different builds for CPUs and GPUs, so they are not locked. CUDA's
# packages are not locked either; torch's metadata pins their versions.
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

# Build backends come first, so that source distributions can be built without isolated
# environments. Packages in isolated environments would have no hashes.
lock build.txt "$@" - <<<$'setuptools\nwheel'
# All packages to run and test, and the packages that fairseq needs to build and to run.
lock lock.txt "$@" --constraint build.txt --extra dev ../pyproject.toml - \
    <<<$'bitarray\ncffi\ncython\nninja\nregex\ntqdm\nwheel'
# The packages of a run with the defaults.
lock run.txt "$@" --constraint lock.txt ../pyproject.toml
# fairseq is locked separately: it pins older versions of hydra-core and omegaconf, although it runs
# with the versions in lock.txt.
lock fairseq.txt "$@" --no-deps - <<<'fairseq-fixed==0.12.3.1'
lock bench.txt "$@" --constraint lock.txt --extra bench ../pyproject.toml
lock docs.txt "$@" --constraint lock.txt --extra docs ../pyproject.toml
lock release.txt "$@" --constraint lock.txt - <<<$'build\nmypy\nsetuptools\ntwine\nuv'
