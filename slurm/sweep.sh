#!/usr/bin/env bash
# One sweep per number of nodes, side by side, since the jobs of a sweep all get the same resources:
#
#   slurm/sweep.sh 4,8,16 algo=ar_sgd,sgp,osgp network=gloo
#   slurm/sweep.sh 4,8 algo=ar_sgd,sgp network=nccl gpus_per_node=8 hydra.launcher.timeout_min=600
#
# Each ends with its own table. The last setting of a key wins: hydra.launcher.nodes=5 makes room
# for a parameter server. Ctrl-C cancels the jobs; the same command repeats none that has finished.
set -euo pipefail

if [[ ! ${1:-} =~ ^[0-9]+(,[0-9]+)*$ ]]; then
    echo "usage: slurm/sweep.sh NODES[,NODES...] GROUP=A,B KEY=1,2 ...   for example: slurm/sweep.sh 4,8 algo=sgp,osgp network=gloo" >&2
    exit 2
fi
IFS=, read -ra counts <<<"$1"
shift
if [[ -f .venv/bin/activate ]]; then
    # shellcheck disable=SC1091
    source .venv/bin/activate
fi

devices=1 gpus=false
for word in "$@"; do
    [[ $word == gpus_per_node=* ]] && devices=${word#*=}
    [[ $word == network=* && ,${word#*=}, == *,nccl,* ]] && gpus=true
    [[ $word == network.device=* && $word != *=cpu ]] && gpus=true
done
resources=("hydra.launcher.tasks_per_node=$devices")
if $gpus; then
    resources+=("hydra.launcher.gpus_per_node=$devices")
fi

# Job control lets the sweeps receive Ctrl-C although they run in the background.
set -m
name=$(date +%Y-%m-%d_%H-%M-%S)

children=()
trap 'kill -INT "${children[@]}" 2>/dev/null || true' INT TERM
for nodes in "${counts[@]}"; do
    # shellcheck disable=SC2016
    sgp-run -m hydra/launcher=slurm "nodes=$nodes" "hydra.launcher.nodes=$nodes" "${resources[@]}" \
        'hydra.sweep.dir=${results}/sweeps/'"$name-n$nodes" "$@" &
    children+=($!)
done
code=0
for child in "${children[@]}"; do
    wait "$child" || code=$?
done
exit "$code"
