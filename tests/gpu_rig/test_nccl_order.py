"""The calls that NCCL would get never wait for each other in a circle, whenever headers arrive.

Real ranks note the calls over gloo, and `nccl_order` executes them by NCCL's rules.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from gpu_rig.nccl_order import (
    Call,
    Execution,
    Logs,
    Tensor,
    WouldFail,
    check,
    unstarted,
    unsuitable,
)
from gpu_rig.seeded_bugs import BUGS
from helpers.experiments import make_experiment
from helpers.paths import ROOT
from helpers.variants import LOW_COMMUNICATION, SYNCHRONOUS, launch_real, run_in_turn

from sgp_runner.config.experiment import Experiment
from sgp_runner.recording.recorder import read_summary
from sgp_runner.utils.errors import ConfigError

PROGRAM = str(ROOT / "tests" / "gpu_rig" / "noted_rank.py")
STEPS, BATCH = 11, 8
TINY = (
    "network=gloo",
    "model=mlp",
    f"batch_size={BATCH}",
    "epochs=1",
    "log_every=4",
    "data=synthetic",
    "data.image_size=8",
    "data.num_classes=10",
    "data.valid_size=32",
)
LAYOUTS = {
    **{f"{nodes} x 1": (f"nodes={nodes}",) for nodes in (2, 4, 8)},
    **{
        f"{nodes} x 2 {gossip}": (f"nodes={nodes}", "gpus_per_node=2", f"network.gossip={gossip}")
        for nodes in (2, 4)
        for gossip in ("shards", "leader")
    },
    **{
        f"{nodes} x 2 parts": (f"nodes={nodes}", "gpus_per_node=2", "network.shard=state")
        for nodes in (2, 4)
    },
}
OSGP = {
    "osgp one step late": ("algo.tau=1",),
    "osgp two steps late": ("algo.tau=2",),
    "osgp late as released": ("algo.layout=released",),
}
ALL = {
    **{name: options for name, options in SYNCHRONOUS.items() if name != "ps_sgd"},
    **LOW_COMMUNICATION,
    **OSGP,
    "hybrid": ("algo.switch_epoch=0.5",),
    "pipe_sgd clipped": ("algo.clip=0.05",),
    "pipe_sgd three deep": ("algo.depth=3", "algo.compression=truncate16"),
}
WHOLE = (  # not in parts
    *("pipe_sgd compressed", "pipe_sgd three deep", "choco_sgd as released"),
    *("powersgd", "powersgd as released", "acp_sgd"),
)
GRAPHS = (
    *("ring", "static_exponential", "torus", "complete", "exponential", "exponential_both"),
    *("equi_dyn", "hyper_hypercube", "random_matching", "bipartite", "base"),
)
OVER_GRAPHS = (
    *("sgp", *OSGP, "d_psgd", "d_psgd adapting first", "choco_sgd", "choco_sgd as released"),
    *("qg_dsgdm", "d_squared", "gradient_tracking", "gossip_pga", "noloco"),
)
SAMPLE = {
    "2 x 2 shards": (
        *OSGP,
        *("d_psgd", "noloco", "choco_sgd", "hybrid", "streaming_diloco coded"),
        *("onebit_adam", "zero_one_adam", "acco", "accum_adam"),
        "pipe_sgd compressed",
    ),
    "2 x 2 leader": ("osgp two steps late", "gossip_pga"),
    "2 x 2 parts": (
        *("osgp two steps late", "d_psgd", "streaming_diloco coded", "pipe_sgd clipped"),
    ),
    "4 x 1": ("osgp two steps late over equi_dyn",),
}


def make(folder: Path, layout: str, name: str) -> Experiment:
    """A run of ``STEPS`` steps. Raises ConfigError for what does not exist."""
    variant, _, graph = (name, "", "") if name in ALL else name.partition(" over ")
    machines = LAYOUTS[layout]
    return make_experiment(
        folder,
        *TINY,
        f"data.size={STEPS * BATCH * int(machines[0][6:])}",
        f"algo={name.split(maxsplit=1)[0]}",
        *ALL[variant],
        *([f"algo.topology={graph}"] if graph else []),
        *machines,
    )


def run(experiments: Mapping[str, Experiment], seed: int = 1) -> dict[str, Logs]:
    """Return the calls of those runs that have ended."""
    run_in_turn(experiments.values(), partial(launch_real, program=PROGRAM, words=(str(seed),)))
    ended = [name for name, experiment in experiments.items() if read_summary(experiment.directory)]
    return {name: read_logs(experiments[name]) for name in ended}


def read_logs(experiment: Experiment) -> Logs:
    texts = [
        (experiment.directory / f"calls.{rank}.json").read_text()
        for rank in range(experiment.run.ranks)
    ]
    return {
        rank: [
            Call(communicator, members, [Tensor(*tensor) for tensor in tensors])
            for communicator, members, tensors in json.loads(text)
        ]
        for rank, text in enumerate(texts)
    }


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Logs]:
    """The calls of `SAMPLE`, of OSGP once more, and of runs with a bug, by four processes."""
    folder = tmp_path_factory.mktemp("sample")
    experiments = {
        f"{layout} {name}": make(folder, layout, name)
        for layout, names in SAMPLE.items()
        for name in names
    }
    experiments["again"] = make(folder / "again", "2 x 2 shards", "osgp two steps late")
    bugs = {bug: make(folder / bug, "2 x 2 shards", "osgp one step late") for bug in BUGS}
    for bug, experiment in bugs.items():
        (experiment.directory / "bug").write_text(bug)
    return run({**experiments, **bugs})


def check_all(logs: Logs) -> None:
    check(logs)
    assert unsuitable(logs) == unstarted(logs) == []


@pytest.mark.parametrize(
    "name", [f"{layout} {name}" for layout, names in SAMPLE.items() for name in names]
)
def test_calls_end_on_any_gpu(name: str, sample: dict[str, Logs]) -> None:
    check_all(sample[name])


def test_calls_do_not_depend_on_when_headers_arrive(sample: dict[str, Logs]) -> None:
    assert sample["again"] == sample["2 x 2 shards osgp two steps late"]


# What a process of two nodes of two devices calls, with the members.
GRADIENT, EXCHANGE = ("all_reduce", (0, 1)), ("send + recv", (0, 1, 2, 3))
ASSEMBLY, AVERAGE = ("all_gather", (0, 1)), ("all_reduce", (0, 1, 2, 3))
PEERS = ("all_reduce", (0, 2))
STARTS = [AVERAGE, PEERS, GRADIENT]  # of the groups
BUCKETS = [GRADIENT, *[("broadcast", (0, 1))] * 2]


def summary(calls: Sequence[Call]) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (" + ".join(tensor.verb for tensor in call.tensors), (*call.members,)) for call in calls
    ]


def test_all_calls_are_noted(sample: dict[str, Logs]) -> None:
    """OSGP, two steps late. Data parallelism agrees on its buckets after a first pass. A step has a
    gradient, an exchange of half a message, and, two steps later, the assembly of the message.
    """
    calls = sample["2 x 2 shards osgp two steps late"][0]
    assert summary(calls) == [
        *STARTS,
        *BUCKETS,
        *[GRADIENT, EXCHANGE] * 2,
        *[GRADIENT, EXCHANGE, ASSEMBLY] * (STEPS - 2),
        *[ASSEMBLY] * 2,
        AVERAGE,
    ]
    assert {tensor.peer for call in calls for tensor in call.tensors} == {None, 2}


def test_all_calls_of_parts_are_noted(sample: dict[str, Logs]) -> None:
    """In a step each device of a node sends its part of the parameters and receives that of the
    gradient, the last one first, and exchanges messages with the same device of the other node. A
    record adds up the sent bytes.
    """
    gather, total, average = ("broadcast", (0, 1)), GRADIENT, ("all_reduce", (1, 3))
    step = [gather, gather, *[("reduce", (0, 1))] * 2, ("send + recv", (1, 3))]
    # The parameters that the test saves; bytes, model, average, its distance and average model.
    end = [*[gather] * 2, total, total, *[gather] * 2, average, total, *[gather] * 2]
    assert summary(sample["2 x 2 parts osgp two steps late"][1]) == [
        average,
        total,
        *step,
        total,
        *3 * step,
        total,
        *4 * step,
        total,
        *3 * step,
        *end,
    ]


@pytest.mark.parametrize("name", ["d_psgd", "osgp late as released"])
def test_messages_travel_during_the_gradient(name: str, sample: dict[str, Logs]) -> None:
    calls = summary(sample[f"2 x 2 shards {name}"][0])
    assert calls[:8] == [*STARTS, EXCHANGE, *BUCKETS, GRADIENT]
    assert [before for before, call in pairwise(calls[7:]) if call == GRADIENT] == (
        [EXCHANGE] * (STEPS - 1)
    )


@pytest.mark.parametrize(
    ("bug", "one_queue", "sentence"),
    [
        ("exchange in pieces", False, r"^stuck on one queue per communicator: process 0 waits in "),
        ("late start", True, r"^stuck on one queue per GPU: .* waits in all_reduce of \d+ bytes "),
        ("short part", False, r"^process 2: send of \d+ bytes to 0 \+ recv .*; process 0: send "),
    ],
)
def test_bugs_of_the_transport_are_found(
    bug: str, one_queue: bool, sentence: str, sample: dict[str, Logs]
) -> None:
    if one_queue:
        Execution(sample[bug], one_queue=False).run()
    with pytest.raises(WouldFail, match=sentence):
        check(sample[bug])


def test_a_group_that_begins_with_messages_is_found(sample: dict[str, Logs]) -> None:
    check(sample["no first call"])
    found = unstarted(sample["no first call"])
    assert len(found) == 4 and found[0].startswith("process 0: send of ")


def test_parts_at_any_element_are_found(sample: dict[str, Logs]) -> None:
    """Half of a message of 13,003 elements begins at one that 4 does not divide."""
    logs = sample["any element"]
    check(logs)
    assert [len(unsuitable({rank: calls})) for rank, calls in logs.items()] == [0, 11, 0, 11]


@pytest.mark.slow
@pytest.mark.timeout(36000)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_calls_of_every_algorithm_end_on_any_gpu(layout: str, seed: int, tmp_path: Path) -> None:
    names = [name for name in ALL if "parts" not in layout or name not in WHOLE]
    logs = run({name: make(tmp_path, layout, name) for name in names}, seed)
    for name in names:
        check_all(logs[name])


@pytest.mark.slow
@pytest.mark.timeout(36000)
@pytest.mark.parametrize(("layout", "count"), [("8 x 1", 107), ("4 x 2 shards", 109)])
def test_calls_over_every_graph_end_on_any_gpu(layout: str, count: int, tmp_path: Path) -> None:
    experiments = {}
    for name in (f"{variant} over {graph}" for variant in OVER_GRAPHS for graph in GRAPHS):
        try:
            experiments[name] = make(tmp_path, layout, name)
        except ConfigError:  # the algorithm does not allow the graph
            continue
    assert len(experiments) == count
    logs = run(experiments)
    for name in experiments:
        check_all(logs[name])
