"""Nodes of several devices, and messages in pairs: real processes end as nodes of one device do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.commands import run_command
from helpers.experiments import final_parameters, make_experiment
from helpers.paths import RANKS
from helpers.processes import check_no_rank_is_left, run_world
from helpers.variants import (
    SYNCHRONOUS,
    Results,
    check_budget,
    check_same_end,
    launch_real,
    run_in_turn,
    simulate_all,
)

from sgp_runner.assembly.build import build_problem
from sgp_runner.assembly.real.launch import launch
from sgp_runner.cli.main import main
from sgp_runner.config.experiment import Experiment
from sgp_runner.core.problem import Compute
from sgp_runner.distributed.gradients import LossScale
from sgp_runner.distributed.rank_layout import RankLayout
from sgp_runner.recording.recorder import read_metrics, read_summary
from sgp_runner.utils.errors import ConfigError, RankFailed
from sgp_runner.utils.shard import Shard

# Eight steps of a network without BatchNorm, whose statistics are each device's own.
TINY = (
    "dtype=float64",
    "model=mlp",
    "data=digits",
    "nodes=2",
    "batch_size=8",
    "epochs=0.09",
    "log_every=1",
)
TWO = ("nodes=2", "gpus_per_node=2")
WITHOUT_SERVER = {name: options for name, options in SYNCHRONOUS.items() if name != "ps_sgd"}
LED = {name: options for name, options in SYNCHRONOUS.items() if " " not in name}
AVERAGING = {
    name: SYNCHRONOUS[name] for name in ("ar_sgd", "ar_sgd of parameters", "local_sgd", "pipe_sgd")
}
HIERARCHICAL = "network.all_reduce=hierarchical"
# How devices exchange messages -> settings, and variants.
GOSSIP: dict[str, tuple[tuple[str, ...], dict[str, tuple[str, ...]]]] = {
    "shards": (TWO, WITHOUT_SERVER),
    "leader": ((*TWO, "network.gossip=leader"), LED),
    "hierarchical": ((*TWO, HIERARCHICAL), AVERAGING),
    "leader hierarchical": (
        (*TWO, HIERARCHICAL, "network.gossip=leader"),
        {name: LED[name] for name in ("ar_sgd", "local_sgd", "ps_sgd")},
    ),
    "three": (("nodes=2", "gpus_per_node=3"), AVERAGING),
    "three hierarchical": (("nodes=2", "gpus_per_node=3", HIERARCHICAL), AVERAGING),
}
# Of each, all kinds of calls: averages of gradients and of parameters, coded ones, one peer, late
# messages, a server. The slow tests run the others too.
SAMPLE: dict[str, tuple[str, ...]] = {
    "shards": (
        *("ar_sgd", "local_sgd", "pipe_sgd compressed", "d_psgd", "sgp", "osgp as released"),
        "slowmo of local_sgd",
    ),
    "leader": ("d_psgd", "osgp", "slowmo", "ps_sgd"),
    "hierarchical": ("ar_sgd", "local_sgd"),
    "leader hierarchical": ("ar_sgd", "ps_sgd"),
    "three": ("ar_sgd", "pipe_sgd"),
    "three hierarchical": ("ar_sgd", "pipe_sgd"),
}
# Several peers in a step, in every order that the graphs have; and a node that sits out.
PAIRED = {
    **WITHOUT_SERVER,
    # Steps of 50 ms: in the simulator too, every message comes after the second step and before the
    # third.
    "osgp two steps late": (
        "algo.tau=2",
        "compute_time@cluster.compute_time=constant",
        "cluster.latency_seconds=0.075",
    ),
    **{
        f"sgp over {graph}": (f"topology@algo.topology={graph}",)
        for graph in ("ring", "static_exponential", "torus", "complete")
    },
    "sgp over pairs of three": ("topology@algo.topology=random_matching", "nodes=3"),
    "sgp with devices": ("nodes=2", "gpus_per_node=2"),
    "pipe_sgd with devices": ("algo.compression=truncate16", "nodes=2", "gpus_per_node=2"),
}
FEW_PAIRED = (
    *("d_psgd", "osgp as released", "slowmo", "hybrid", "osgp two steps late", "sgp over torus"),
    *("sgp over complete", "sgp over pairs of three", "sgp with devices", "pipe_sgd with devices"),
)


PAIRS = partial(launch_real, program="paired_rank.py", words=())
Devices = tuple[dict[str, Results], dict[str, Experiment]]
ASYNCHRONOUS = ("ad_psgd", "gap_aware")
MORE_ASYNCHRONOUS = ("osgp", "async_diloco algo.period=2 algo.momentum=0 algo.lr=1")


def run_devices(
    folder: Path, names: Mapping[str, Collection[str]], algorithms: Sequence[str]
) -> Devices:
    """Synchronous runs by how they gossip, and asynchronous ones; three launches, of four to six
    processes, run them all.
    """
    synchronous = {
        gossip: simulate_all(
            folder / gossip,
            "gloo",
            *settings,
            tiny=(*TINY, *(("batch_size=6",) if "three" in gossip else ())),
            variants={name: variants[name] for name in names[gossip]},
        )
        for gossip, (settings, variants) in GOSSIP.items()
    }
    overrides = ("network=gloo", *TWO, "model=mlp", "batch_size=16", "epochs=2")
    asynchronous = {
        algorithm: make_experiment(folder, *overrides, *f"algo={algorithm}".split())
        for algorithm in algorithms
    }
    every_real = [
        *(real for some in synchronous.values() for _, real in some.values()),
        *asynchronous.values(),
    ]
    run_in_turn(every_real)
    return synchronous, asynchronous


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> Devices:
    return run_devices(tmp_path_factory.mktemp("devices"), SAMPLE, ASYNCHRONOUS)


@pytest.mark.parametrize(
    ("gossip", "name"), [(gossip, name) for gossip, names in SAMPLE.items() for name in names]
)
def test_nodes_of_two_devices_end_as_nodes_of_one(gossip: str, name: str, devices: Devices) -> None:
    synchronous, _ = devices
    check_same_end(*synchronous[gossip][name])


@pytest.mark.slow
def test_all_nodes_of_two_devices_end_as_nodes_of_one(tmp_path: Path) -> None:
    every = {gossip: (*variants,) for gossip, (_, variants) in GOSSIP.items()}
    synchronous, asynchronous = run_devices(tmp_path, every, MORE_ASYNCHRONOUS)
    for results in synchronous.values():
        for simulated, real in results.values():
            check_same_end(simulated, real)
    for real in asynchronous.values():
        check_budget(real, 2 * 2 * 44)
    check_hierarchical(synchronous)


def check_hierarchical(synchronous: Mapping[str, Results]) -> None:
    """All-reduces over two levels equal rings, of 2 x 2 and of 2 x 3 devices."""
    for ring, hierarchical in (("shards", "hierarchical"), ("three", "three hierarchical")):
        assert synchronous[hierarchical].keys() <= synchronous[ring].keys()
        for name, (_, real) in synchronous[hierarchical].items():
            flat = torch.stack(final_parameters(synchronous[ring][name][1]))
            levels = torch.stack(final_parameters(real))
            assert torch.allclose(flat, levels, rtol=0, atol=1e-12), f"{hierarchical} {name}"


def test_hierarchical_all_reduces_equal_rings(devices: Devices) -> None:
    synchronous, _ = devices
    check_hierarchical(synchronous)


def test_a_node_of_two_devices_is_recorded_as_one(devices: Devices) -> None:
    synchronous, _ = devices
    simulated, real = synchronous["shards"]["sgp"]
    records = read_metrics(real.directory)
    assert sorted(path.name for path in real.directory.glob("metrics*")) == [
        "metrics.jsonl",
        "metrics.rank1.jsonl",
    ]
    expected = [record for record in read_metrics(simulated.directory) if record["kind"] == "train"]
    for rank in (0, 1):
        ours, theirs = (
            [record for record in some if record["kind"] == "train" and record["rank"] == rank]
            for some in (records, expected)
        )
        assert [record["bytes_sent"] for record in ours] == [
            record["bytes_sent"] for record in theirs
        ]
        assert [record["step"] for record in ours] == [record["step"] for record in theirs]
    assert read_summary(real.directory)["bytes_per_node"] == ours[-1]["bytes_sent"]  # type: ignore[index]


def run_paired(folder: Path, names: Collection[str]) -> tuple[Results, Experiment]:
    """The runs of `PAIRED`, and one that leaves checkpoints; two launches, of three and of four
    processes, run them all.
    """
    tiny = (*TINY, "nodes=4", "epochs=0.18")
    variants = {name: PAIRED[name] for name in names}
    results = simulate_all(folder, "gloo", tiny=(*tiny, "gpus_per_node=1"), variants=variants)
    saved = make_experiment(
        folder, *tiny, "network=gloo", "algo=osgp", "algo.tau=2", "checkpoint.every_steps=3"
    )
    run_in_turn([*(real for _, real in results.values()), saved], PAIRS)
    return results, saved


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Experiment]:
    return run_paired(tmp_path_factory.mktemp("paired"), FEW_PAIRED)


@pytest.mark.slow
def test_all_messages_in_pairs_end_with_the_simulators_parameters(tmp_path: Path) -> None:
    results, _ = run_paired(tmp_path, [name for name in PAIRED if name not in FEW_PAIRED])
    for simulated, real in results.values():
        check_same_end(simulated, real)


@pytest.mark.parametrize("name", FEW_PAIRED)
def test_messages_in_pairs_end_with_the_simulators_parameters(
    name: str, paired: tuple[Results, Experiment]
) -> None:
    results, _ = paired
    check_same_end(*results[name])


def test_messages_on_their_way_in_pairs_are_part_of_a_checkpoint(
    paired: tuple[Results, Experiment], capfd: pytest.CaptureFixture[str]
) -> None:
    _, experiment = paired
    whole = final_parameters(experiment)
    for path in experiment.directory.glob("rank*.pt"):
        path.unlink()
    PAIRS([experiment])
    assert "resumes from step 6" in capfd.readouterr().out
    assert all(torch.equal(a, b) for a, b in zip(whole, final_parameters(experiment), strict=True))


@pytest.mark.parametrize("algorithm", ASYNCHRONOUS)
def test_asynchronous_algorithms_learn_on_nodes_of_two_devices(
    algorithm: str, devices: Devices
) -> None:
    _, asynchronous = devices
    check_budget(asynchronous[algorithm], 2 * 2 * 44)  # nodes x epochs x steps per epoch


@pytest.mark.parametrize("gossip", ["shards", "leader"])
def test_an_error_ends_all_devices(
    gossip: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    experiment = make_experiment(
        tmp_path, "network=gloo", *TWO, "model=mlp", "epochs=50", f"network.gossip={gossip}"
    )
    with pytest.raises(RankFailed, match=r"^rank 1, step 2: ZeroDivisionError: made to fail$"):
        launch(experiment, program=(str(RANKS / "real_rank.py"), "1"))
    assert "made to fail" in capfd.readouterr().out
    check_no_rank_is_left(tmp_path)


def test_the_devices_of_a_node_agree_on_what_has_arrived(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_world(tmp_path, 4, str(RANKS / "device_messages.py"))
    long = [float(number) for number in range(200)]  # in two parts
    assert capfd.readouterr().out == f"alike after waiting {[long, long[:4], long[:1], []]}\n"


def test_the_devices_of_a_node_gather_each_message_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two nodes of two devices: half of each message over the network, then halves in the node."""
    run_world(tmp_path, 4, str(RANKS / "gather_rank.py"))
    said = [[True, True, 38400, 76800], [True, True, 384, 768], [True, True, 0, 0]]
    assert capfd.readouterr().out == f"{said} True\n"


def test_places() -> None:
    """Two nodes of three devices and two servers."""
    places = [RankLayout(process, 2, 3) for process in range(8)]
    assert [place.node_rank for place in places] == [0, 0, 0, 1, 1, 1, 2, 3]
    assert [place.device for place in places] == [0, 1, 2, 0, 1, 2, 0, 0]
    assert [place.is_server for place in places] == [False] * 6 + [True] * 2
    assert [places[1].process_of(rank) for rank in range(4)] == [1, 4, 6, 7]
    assert [places[6].process_of(rank) for rank in range(4)] == [0, 3, 6, 7]
    assert places[0].node(1) == [3, 4, 5]


@pytest.mark.parametrize(
    ("total", "multiple", "parts"),
    [
        (7, 1, [slice(0, 3), slice(3, 6), slice(6, 7)]),
        (6, 1, [slice(0, 2), slice(2, 4), slice(4, 6)]),
        (2, 1, [slice(0, 1), slice(1, 2), slice(2, 2)]),
        (0, 1, [slice(0, 0)] * 3),
        (768, 128, [slice(0, 256), slice(256, 512), slice(512, 768)]),
        (700, 128, [slice(0, 256), slice(256, 512), slice(512, 700)]),
        (130, 128, [slice(0, 128), slice(128, 130), slice(130, 130)]),
    ],
)
def test_parts_of_whole_multiples(total: int, multiple: int, parts: list[slice]) -> None:
    assert [Shard(i, 3, multiple).of(total) for i in range(3)] == parts


def test_a_part_of_one_is_the_whole() -> None:
    assert Shard(multiple=128).of(130) == slice(0, 130)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            "gpus_per_node=3 batch_size=8",
            (
                "batch_size: 8 samples per node do not divide among 3 devices: use batch_size=6, "
                "or another"
            ),
        ),
        (
            "gpus_per_node=4 batch_size=2",
            (
                "batch_size: 2 samples per node do not divide among 4 devices: use batch_size=4, "
                "or another"
            ),
        ),
        (
            "gpus_per_node=2 algo=ad_psgd network.gossip=shards",
            "network.gossip: AD-PSGD is asynchronous, so one device must communicate for its node",
        ),
        (
            "gpus_per_node=2 algo=ps_sgd network.gossip=shards",
            "network.gossip: PS-SGD has a server, so one device must communicate for its node",
        ),
        (
            "network.autocast=bf16 dtype=float64",
            "network.autocast: applies only to float32: use dtype=float32, or ",
        ),
        (
            "network.all_reduce=hierarchical",
            (
                "network.all_reduce: hierarchical averages over the devices of a node first: use "
                "gpus_per_node=2 or more, or network.all_reduce=ring."
            ),
        ),
        (
            "network.all_reduce=hierarchical gpus_per_node=2 network.shard=state",
            (
                "network.all_reduce: devices that hold parts of the state each average their own "
                "part: use network.all_reduce=ring."
            ),
        ),
        (
            "network=mpi gpus_per_node=2",
            (
                "gpus_per_node: network=mpi runs one process per node: use gpus_per_node=1, or "
                "network=gloo."
            ),
        ),
    ],
)
def test_what_cannot_work_is_refused(settings: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        make_experiment(tmp_path, "network=gloo", "nodes=2", *settings.split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nccl_is_refused_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Once, also by the two ranks that a launcher starts."""
    overrides = ["network=nccl", "nodes=2", "model=mlp", "logger=jsonl"]
    monkeypatch.chdir(tmp_path)
    assert main(overrides) == 2
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    ranks = [
        run_command(*overrides, variables={**world, "RANK": rank, "LOCAL_RANK": rank})
        for rank in "01"
    ]
    assert [rank.returncode for rank in ranks] == [2, 2]
    errors = [capfd.readouterr().err, *(rank.stderr for rank in ranks)]
    refusal = (
        "sgp-run: network: nccl needs a GPU, and PyTorch finds none on this machine: use "
        "network=gloo.\n"
    )
    assert errors == [refusal, refusal, ""]
    assert not list(tmp_path.iterdir())


def test_devices_of_a_node_drop_different_elements_and_read_different_samples(
    tmp_path: Path,
) -> None:
    from dataclasses import replace

    run = make_experiment(tmp_path, *TINY).run
    whole = build_problem(run)
    parts = [replace(whole, part=Shard(device, 2)) for device in range(2)]
    assert len({part.dropout_seed(0, 0) for part in parts}) == 2
    assert parts[0].dropout_seed(1, 5) == whole.dropout_seed(1, 5)
    (inputs,), targets = whole.batch(1, 5)
    read = [part.batch(1, 5) for part in parts]
    assert torch.equal(torch.cat([inputs for (inputs,), _ in read]), inputs)
    assert torch.equal(torch.cat([targets for _, targets in read]), targets)


@pytest.mark.slow
def test_a_compiled_model_has_the_same_gradients(tmp_path: Path) -> None:
    """Alone and averaged: a hybrid computes both."""
    variant = {"hybrid": ("algo.switch_epoch=0.05",)}
    ((simulated, real),) = simulate_all(
        tmp_path, "gloo", "network.compile=true", tiny=TINY, variants=variant
    ).values()
    launch_real([real])
    check_same_end(simulated, real)


def gradient_with(
    compute: Compute, tmp_path: Path, formats: list[bool] | None = None
) -> torch.Tensor:
    """Return a gradient; add to ``formats`` whether each convolution's input was contiguous."""
    overrides = ("model=resnet8", "batch_size=8")
    problem = build_problem(make_experiment(tmp_path / str(hash(compute)), *overrides).run, compute)
    seen = [] if formats is None else formats
    for layer in problem.flat.module.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.register_forward_pre_hook(lambda _, x: seen.append(x[0].is_contiguous()))
    return problem.gradient(problem.start() + 0.01, problem.flat.fresh_buffers(), 0, 0)[0]


def test_precision_and_memory_format_change_a_gradient_by_rounding(tmp_path: Path) -> None:
    contiguous: list[bool] = []
    expected = gradient_with(Compute(), tmp_path, contiguous)
    assert contiguous == [True] * 7
    contiguous.clear()
    images_last = gradient_with(Compute(channels_last=True), tmp_path, contiguous)
    assert contiguous == [True] + [False] * 6  # an image of one channel is both
    bf16, fp16 = (gradient_with(Compute(autocast=dtype), tmp_path) for dtype in ("bf16", "fp16"))
    assert bf16.dtype == fp16.dtype == torch.float32
    assert float((images_last - expected).norm() / expected.norm()) < 1e-5
    assert 1e-4 < float((bf16 - expected).norm() / expected.norm()) < 0.1
    assert 1e-5 < float((fp16 - expected).norm() / expected.norm()) < 0.02


def test_an_overflow_halves_the_scale_and_counts_as_no_gradient() -> None:
    scale = LossScale("cpu")
    assert scale.removed(torch.tensor([65536.0, 131072.0])).tolist() == [1.0, 2.0]
    assert scale.removed(torch.tensor([65536.0, float("inf")])).tolist() == [0.0, 0.0]
    assert (float(scale.factor), int(scale.in_a_row)) == (32768.0, 0)
    # The other part of the gradient overflows.
    assert LossScale("cpu").removed(torch.tensor([1.0]), lambda x: x + 1).tolist() == [0.0]
    for _ in range(2000):
        assert scale.removed(torch.tensor([32768.0])).tolist() == [1.0]
    assert float(scale.factor) == 65536.0


@pytest.mark.slow
def test_a_real_run_learns_in_half_precision(tmp_path: Path) -> None:
    real = make_experiment(
        tmp_path, "network=gloo", "network.autocast=fp16", "nodes=2", "model=resnet8", "epochs=3"
    )
    launch_real([real])
    assert read_summary(real.directory)["average"] > 0.9  # type: ignore[index, operator]
