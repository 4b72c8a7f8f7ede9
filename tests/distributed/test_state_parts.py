"""Nodes whose devices hold parts of the state: they end as nodes of one device do."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import yaml
from helpers.experiments import distance, final_parameters, make_experiment
from helpers.variants import (
    LOW_COMMUNICATION,
    SYNCHRONOUS,
    Results,
    launch_real,
    run_in_turn,
    said,
    simulate_all,
)

from sgp_runner.algorithms import Algorithm
from sgp_runner.assembly.networks import check_shard
from sgp_runner.config.experiment import Experiment, load_experiment
from sgp_runner.core.fragments import fragments_of
from sgp_runner.core.parts import PartShapes, cut, norm
from sgp_runner.core.worker import Worker
from sgp_runner.recording.recorder import read_metrics, read_summary
from sgp_runner.utils.errors import ConfigError

STATE = "network.shard=state"
# Eight steps of a perceptron of 4,810 parameters. With eight parameters all but one part are empty.
PERCEPTRON = ("model=mlp", "data=digits", "epochs=0.09")
QUADRATIC = ("model=quadratic", "data.dimension=8", "epochs=0.02")
REFUSED = ("ps_sgd", "pipe_sgd compressed", "choco_sgd as released", "powersgd", "acp_sgd")
REFUSED += ("powersgd as released",)
VARIANTS = {
    **{
        name: overrides
        for name, overrides in (SYNCHRONOUS | LOW_COMMUNICATION).items()
        if name not in REFUSED and "rounds" not in name
    },
    # Of the largest numbers of one chunk, rounding may choose others.
    "ar_sgd coded": ("algo.codec=int8",),
    "choco_sgd as released": ("algo.layout=released", "algo.codec=fp4", "algo.gamma=0.1"),
    "pipe_sgd clipped": ("algo.clip=0.05",),
}
OPTIMIZERS = {
    "sgd": ("optim=sgd",),
    "adam": ("optim=adam",),
    "adamw": ("optim=adamw", "optim.clip=0.05"),
    "muon": ("optim=muon", "optim.clip=0.05"),
}
ONLY_SGD = ("qg_dsgdm", "demo")
ONLY_ADAM = ("accum_adam", "des_loc", "onebit_adam", "zero_one_adam")
# Number of devices -> algorithm, optimizer and problem.
SAMPLE = {
    2: [
        ("sgp", "adamw", PERCEPTRON),
        ("streaming_diloco", "sgd", PERCEPTRON),
        ("choco_sgd as released", "adam", PERCEPTRON),
        ("pipe_sgd clipped", "sgd", PERCEPTRON),
    ],
    3: [
        ("hybrid", "adamw", PERCEPTRON),
        ("demo", "sgd", QUADRATIC),
        ("noloco", "adam", QUADRATIC),
        ("sparseloco", "muon", PERCEPTRON),
    ],
}
WITH_MUON = ("sgp", "ar_sgd", "pipe_sgd clipped", "streaming_diloco coded", "sparseloco")
ALL = [
    *((name, "sgd", PERCEPTRON) for name in VARIANTS if name not in ONLY_ADAM),
    *((name, "muon", PERCEPTRON) for name in WITH_MUON),
    *(
        (name, optim, problem)
        for name in VARIANTS
        for optim, problem in (
            *(("adam", PERCEPTRON), ("adamw", PERCEPTRON)),
            ("adamw", QUADRATIC),
        )
        if name.split()[0] not in ONLY_SGD
    ),
]
Case = tuple[str, str, tuple[str, ...]]


def run_all(folder: Path, devices: int, cases: list[Case]) -> Results:
    machines = ("nodes=2", f"gpus_per_node={devices}", STATE)
    variants = {
        f"{name} {optim} {problem[0]}": (*problem, *VARIANTS[name], *OPTIMIZERS[optim])
        for name, optim, problem in cases
    }
    tiny = ("dtype=float64", "nodes=2", f"batch_size={4 * devices}", "log_every=1")
    results = simulate_all(folder, "gloo", *machines, tiny=tiny, variants=variants)
    run_in_turn(real for _, real in results.values())
    return results


def check_as_whole(simulated: Experiment, real: Experiment) -> None:
    """The results are those of nodes with one device, except for bytes of push-sum weights."""
    assert distance(simulated, real) < 1e-12
    there, here = (said(read_summary(experiment.directory)) for experiment in (simulated, real))
    del there["bytes_per_node"], here["bytes_per_node"]
    assert here == pytest.approx(there, abs=1e-12)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Results]:
    folder = tmp_path_factory.mktemp("sample")
    return {devices: run_all(folder / str(devices), devices, SAMPLE[devices]) for devices in (2, 3)}


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        (devices, f"{name} {optim} {problem[0]}")
        for devices, cases in SAMPLE.items()
        for name, optim, problem in cases
    ],
)
def test_parts_end_as_the_whole(devices: int, name: str, sample: dict[int, Results]) -> None:
    check_as_whole(*sample[devices][name])


def test_each_device_sends_its_own_push_sum_weight(sample: dict[int, Results]) -> None:
    """Eight messages of 4,810 parameters, of eight bytes each."""
    bytes_sent = [
        read_summary(experiment.directory)["bytes_per_node"]  # type: ignore[index]
        for experiment in sample[2]["sgp adamw model=mlp"]
    ]
    assert bytes_sent == [8 * 8 * 4811, 8 * 8 * 4812]


@pytest.mark.slow
@pytest.mark.timeout(72000)
@pytest.mark.parametrize("devices", [2, 3])
def test_parts_of_every_algorithm_and_optimizer_end_as_the_whole(
    devices: int, tmp_path: Path
) -> None:
    for simulated, real in run_all(tmp_path, devices, ALL).values():
        check_as_whole(simulated, real)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Experiment]:
    """Runs that leave checkpoints after the third and the sixth of eight steps."""
    folder = tmp_path_factory.mktemp("saved")
    overrides = (
        *PERCEPTRON,
        "network=gloo",
        "nodes=2",
        "gpus_per_node=2",
        "batch_size=8",
        "name=mine",
    )
    more = ("checkpoint.every_steps=3", "eval_every=0.03", "log_every=2", "optim=adamw")
    algorithms = {
        "sgp": ("algo=sgp", STATE),
        "sgp whole": ("algo=sgp",),
        "slowmo": ("algo=slowmo", "algo.tau=4", STATE),
        "streaming_diloco": ("algo=streaming_diloco", "algo.period=3", "algo.delay=1", STATE),
    }
    runs = {
        name: make_experiment(folder / name.replace(" ", "_"), *overrides, *more, *extra)
        for name, extra in algorithms.items()
    }
    run_in_turn(runs.values())
    return runs


def test_parts_resume_to_the_same_bytes(
    saved: dict[str, Experiment], capfd: pytest.CaptureFixture[str]
) -> None:
    experiments = [saved[name] for name in ("sgp", "slowmo", "streaming_diloco")]
    before = [(final_parameters(experiment), evaluations(experiment)) for experiment in experiments]
    for path in (
        path for experiment in experiments for path in experiment.directory.glob("rank*.pt")
    ):
        path.unlink()
    run_in_turn(experiments)
    assert capfd.readouterr().out.count("resumes from step 6") == 3
    for experiment, (parameters, records) in zip(experiments, before, strict=True):
        for a, b in zip(parameters, final_parameters(experiment), strict=True):
            assert torch.equal(a, b)
        assert evaluations(experiment) == records


def evaluations(experiment: Experiment) -> list[tuple[object, ...]]:
    return sorted(
        (record["rank"], record["epoch"], record["loss"])
        for record in read_metrics(experiment.directory)
        if record["kind"] == "eval"
    )


def test_parts_are_evaluated_as_the_whole(saved: dict[str, Experiment]) -> None:
    parts, whole = evaluations(saved["sgp"]), evaluations(saved["sgp whole"])
    assert [evaluation[:2] for evaluation in parts] == [evaluation[:2] for evaluation in whole]
    assert [evaluation[1] for evaluation in parts if evaluation[0] == 1] == [0.03, 0.06, 0.09]
    assert [evaluation[2] for evaluation in parts] == pytest.approx(
        [evaluation[2] for evaluation in whole], abs=1e-5
    )


def numbers_held(experiment: Experiment) -> list[int]:
    """Return how many numbers each process has in its parameters and its state.

    Of devices with whole vectors only the first saves them.
    """

    files = [experiment.checkpoints / "step-6" / f"rank{process}.pt" for process in range(4)]
    return [
        sum(map(count, (worker["push_sum"], worker["buffers"], worker["state"])))
        for worker in [torch.load(file, weights_only=True)["worker"] for file in files]
        if "push_sum" in worker
    ]


def count(value: Any) -> int:
    """Return the numbers of all tensors in a value of a worker's state."""
    if isinstance(value, torch.Tensor):
        return value.numel()
    return sum(map(count, value.values())) if isinstance(value, dict) else 0


def test_a_device_holds_its_part_of_all_vectors(saved: dict[str, Experiment]) -> None:
    """4,810 = 2,432 + 2,378, both multiples of 128 as far as they can be. AdamW has two vectors
    and a number, SlowMo two vectors; the push-sum weight is on every device.
    """
    assert numbers_held(saved["sgp whole"]) == [3 * 4810 + 2] * 2
    assert numbers_held(saved["sgp"]) == [3 * 2432 + 2, 3 * 2378 + 2] * 2
    assert numbers_held(saved["slowmo"]) == [5 * 2432 + 2, 5 * 2378 + 2] * 2


@pytest.mark.parametrize(
    ("name", "shard"),
    [("sgp whole", "state"), pytest.param("sgp", "none", marks=pytest.mark.slow)],
)
def test_a_checkpoint_of_other_parts_is_refused(
    name: str,
    shard: str,
    saved: dict[str, Experiment],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(saved[name].run.results, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "runs" / "mine" / "config.yaml"
    tree = yaml.safe_load(file.read_text())
    tree["results"], tree["network"]["shard"] = str(tmp_path), shard
    file.write_text(yaml.safe_dump(tree))
    other = load_experiment(file, None)
    assert other.digest == saved[name].digest  # the result is the same
    divided = "not divided" if shard == "state" else "divided"
    back = "none" if shard == "state" else "state"
    sentence = f"(its state is {divided}: continue it with network.shard={back})"
    with pytest.raises(ConfigError, match=rf"^resume: .*{re.escape(sentence)}\. Remove its folder"):
        launch_real([other])
    printed = capfd.readouterr()
    assert sentence in printed.out + printed.err


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("gpus_per_node=1", "one device cannot divide its state: use gpus_per_node=2 or more, or"),
        ("algo=ad_psgd", "AD-PSGD is asynchronous, so one device holds all the state of its node:"),
        ("algo=ps_sgd", "PS-SGD has a server, so one device holds all the state of its node:"),
        ("network.gossip=leader", "SGP has network.gossip=leader, so one device holds all the"),
        ("algo=powersgd", "PowerSGD factorizes whole vectors: use network.shard=none."),
        (
            "algo=choco_sgd algo.codec=low_rank",
            "algo.codec=low_rank codes whole vectors: use network.shard=none.",
        ),
        (
            "algo=pipe_sgd algo.compression=truncate16",
            "algo.compression codes chunks of whole vectors: use algo.compression=none, or",
        ),
    ],
)
def test_state_that_cannot_be_divided_is_refused(
    settings: str, sentence: str, tmp_path: Path
) -> None:
    overrides = ("network=gloo", STATE, "algo=sgp", "nodes=2", "gpus_per_node=2", *settings.split())
    with pytest.raises(ConfigError, match=f"^network.shard: {sentence}"):
        make_experiment(tmp_path, *overrides)


@dataclass(frozen=True)
class Mine(Algorithm):
    """An algorithm that is not of the package."""

    title: ClassVar[str] = "Mine"

    async def run(self, worker: Worker) -> None:
        worker.params.div_(worker.params.norm())


def test_an_algorithm_of_a_plug_in_is_refused(tmp_path: Path) -> None:
    run = make_experiment(tmp_path, "network=gloo", "nodes=2", "gpus_per_node=2").run
    sentence = "network.shard: Mine is a plug-in, which may need whole vectors: use network.shard="
    with pytest.raises(ConfigError, match=f"^{sentence}none.$"):
        check_shard(replace(run, algo=Mine()), "state", "auto")


# A device of two; the other one has the number 16 and the part [5.0].
ONE_OF_TWO: Any = SimpleNamespace(
    total=lambda x: x + 16, gathered=lambda part: torch.cat([part, torch.tensor([5.0])])
)
SHAPES = {"a.weight": (4, 3), "a.bias": (4,), "b.weight": (2, 4), "b.scale": ()}  # 12, 4, 8, 1


def test_pieces_of_tensors_keep_their_kind() -> None:
    part = PartShapes(SHAPES, slice(5, 14), ONE_OF_TWO)
    assert part == {"a.weight": (7, 1), "a.bias": (2,)}
    assert PartShapes(SHAPES, slice(14, 25), ONE_OF_TWO) == {
        "a.bias": (2,),
        "b.weight": (2, 4),
        "b.scale": (),
    }
    assert PartShapes(SHAPES, slice(25, 25), ONE_OF_TWO) == {}
    assert part.inside(slice(0, 8)) == slice(0, 3)
    assert part.inside(slice(20, 25)) == slice(9, 9)


@pytest.mark.parametrize(
    ("shapes", "by", "parts"),
    [
        (SHAPES, "elements", [slice(0, 25), slice(25, 25)]),
        ({"w": (300,)}, "elements", [slice(0, 256), slice(256, 300)]),
        (SHAPES, "tensors", [slice(0, 16), slice(16, 25)]),
        (SHAPES, "tensors", [slice(0, 12), slice(12, 24), slice(24, 25)]),
        (
            {"w": (300,), "b": (3,)},
            "tensors",
            [slice(0, 300), slice(300, 300), slice(300, 303)],
        ),
    ],
)
def test_parts_end_between_tensors_or_at_multiples(
    shapes: Any, by: Any, parts: list[slice]
) -> None:
    assert cut(shapes, len(parts), by) == parts


def test_a_norm_is_over_all_parts() -> None:
    x = torch.tensor([3.0, 0.0])
    assert float(norm(x, {"x": (2,)})) == 3
    assert float(norm(x, PartShapes({"x": (2,), "y": (1,)}, slice(0, 2), ONE_OF_TWO))) == 5


def test_fragments_of_a_part_are_parts_of_the_fragments() -> None:
    part = PartShapes(SHAPES, slice(5, 14), ONE_OF_TWO)
    assert [fragment.spans for fragment in fragments_of(SHAPES, 1, "strided", 2)] == [
        [slice(0, 12)],
        [slice(12, 16), slice(16, 24), slice(24, 25)],
    ]
    fragments = fragments_of(part, 1, "strided", 2)
    assert [fragment.spans for fragment in fragments] == [[slice(0, 7)], [slice(7, 9)]]
    assert [fragment.shapes for fragment in fragments] == [{"a.weight": (7, 1)}, {"a.bias": (2,)}]
    x = torch.arange(9.0)
    with fragments[1].inside(x) as parts:
        parts[0] += 1
    assert x.tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9]
