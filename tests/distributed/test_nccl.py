"""GPUs over NCCL, one process each: the same results as in the simulator (make test-gpu)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.experiments import make_experiment
from helpers.paths import RANKS
from helpers.variants import (
    SYNCHRONOUS,
    Results,
    check_same_end,
    launch_real,
    run_in_turn,
    simulate_all,
)

from sgp_runner.assembly.real.launch import launch
from sgp_runner.recording.recorder import read_summary

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.timeout(9000),
]
GPUS = torch.cuda.device_count()
TINY = ("dtype=float64", "model=mlp", "data=digits", "batch_size=8", "epochs=0.09", "log_every=4")
# Every message is folded in as late as it may be; so it is in the simulator with steps of 50 ms.
LATE = ("algo.tau=2", "compute_time@cluster.compute_time=constant", "cluster.latency_seconds=0.075")
VARIANTS = {
    **SYNCHRONOUS,
    "osgp two steps late": LATE,
    "sgp over a ring": ("topology@algo.topology=ring",),
}


@pytest.fixture(scope="module")
def one_gpu_per_node(tmp_path_factory: pytest.TempPathFactory) -> Results:
    results = simulate_all(
        tmp_path_factory.mktemp("nccl"), "nccl", tiny=(*TINY, f"nodes={GPUS}"), variants=VARIANTS
    )
    run_in_turn(real for _, real in results.values())
    return results


@pytest.mark.sanitizer
@pytest.mark.parametrize("name", VARIANTS)
def test_synchronous_algorithms_end_with_the_simulators_parameters(
    name: str, one_gpu_per_node: Results
) -> None:
    check_same_end(*one_gpu_per_node[name])


@pytest.fixture(scope="module")
def two_gpus_per_node(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    folder = tmp_path_factory.mktemp("nodes")
    machines = (f"nodes={GPUS // 2}", "gpus_per_node=2")
    results = {
        gossip: simulate_all(
            folder / gossip,
            "nccl",
            *machines,
            f"network.gossip={gossip}",
            tiny=(*TINY, machines[0]),
            variants=variants,
        )
        for gossip, variants in (
            ("shards", {name: VARIANTS[name] for name in VARIANTS if name != "ps_sgd"}),
            ("leader", VARIANTS),
        )
    }
    run_in_turn(real for some in results.values() for _, real in some.values())
    return results


@pytest.mark.skipif(GPUS < 2, reason="one GPU")
@pytest.mark.parametrize("gossip", ["shards", "leader"])
def test_nodes_of_two_gpus_end_as_nodes_of_one(
    gossip: str, two_gpus_per_node: dict[str, Results]
) -> None:
    for simulated, real in two_gpus_per_node[gossip].values():
        check_same_end(simulated, real)


@pytest.mark.parametrize("algorithm", ["gap_aware", "ad_psgd"])
def test_asynchronous_algorithms_learn_over_pinned_memory(algorithm: str, tmp_path: Path) -> None:
    if algorithm == "ad_psgd" and GPUS % 2:
        pytest.skip("AD-PSGD needs an even number of nodes")
    experiment = make_experiment(
        tmp_path,
        "network=nccl",
        f"nodes={GPUS}",
        "model=mlp",
        "batch_size=16",
        "epochs=3",
        f"algo={algorithm}",
    )
    launch_real([experiment])
    assert read_summary(experiment.directory)["average"] > 0.93  # type: ignore[index, operator]


@pytest.mark.no_sync
@pytest.mark.parametrize("algorithm", ["ar_sgd", "sgp", "osgp", "diloco"])
def test_no_step_waits_for_the_gpu(algorithm: str, tmp_path: Path) -> None:
    """PyTorch raises an error at every operation that waits, from the third step on."""
    overrides = ("network=nccl", f"nodes={GPUS}", "model=mlp", "batch_size=16", "epochs=1")
    experiment = make_experiment(tmp_path, *overrides, f"algo={algorithm}", "log_every=20")
    launch(experiment, program=(str(RANKS / "unwaiting_rank.py"), "-1"))
    assert read_summary(experiment.directory) is not None


def test_bf16_channels_last_and_compile_learn(tmp_path: Path) -> None:
    options = ("network.autocast=bf16", "network.channels_last=true", "network.compile=true")
    experiment = make_experiment(
        tmp_path,
        "network=nccl",
        f"nodes={GPUS}",
        "algo=sgp",
        "model=resnet8",
        "epochs=10",
        *options,
    )
    launch_real([experiment])
    assert read_summary(experiment.directory)["average"] > 0.8  # type: ignore[index, operator]
