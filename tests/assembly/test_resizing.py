"""Runs that continue with another number of nodes, from the mean model of a saved run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.descent import descend
from helpers.experiments import make_experiment
from helpers.paths import RANKS

from sgp_runner.assembly import execution
from sgp_runner.assembly.real.launch import launch
from sgp_runner.assembly.start import execute
from sgp_runner.cli.main import main
from sgp_runner.core.mean_state import continued_step, mean_worker
from sgp_runner.data.sampler import IID
from sgp_runner.recording.recorder import read_metrics

TINY = (
    *("model=quadratic", "data.samples=96", "data.dimension=4", "batch_size=4", "dtype=float64"),
    *("logger=jsonl", "epochs=2", "optim.schedule=cosine", "optim.momentum=0.9", "eval_every=9"),
    *("checkpoint.every_steps=4", "checkpoint.keep=99", "log_every=1"),
)
# Each of four nodes has 6 steps in an epoch, and each of two has 12.
DILOCO = ("algo=diloco", "algo.period=3")
D_PSGD = ("algo=d_psgd", "algo.topology=ring")


@pytest.fixture(autouse=True)
def interrupted_runs(in_an_empty_folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "keep_only", lambda *_: None)  # as after an interruption


def folder(nodes: int) -> Path:
    (path,) = Path("results/runs").glob(f"*-n{nodes}-*")
    return path


def save(*overrides: str) -> None:
    """Leave a run of four nodes with the checkpoint before their step 4."""
    assert main([*TINY, *overrides, "nodes=4"]) == 0
    keep_checkpoint(4)


def keep_checkpoint(step: int) -> None:
    for path in folder(4).glob("checkpoints/*"):
        if path.name != f"step-{step}":
            shutil.rmtree(path)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def parameters(path: Path) -> dict[int, list[float]]:
    """Return the push-sum vectors before step 20 by rank; in the simulator, of the ranks there."""
    files = (path / f"checkpoints/step-20/rank{rank}.pt" for rank in (0, 1))
    workers = [(state := torch.load(file)).get("worker", state) for file in files]
    return {
        rank: worker["push_sum"].tolist()
        for rank, worker in enumerate(workers)
        if worker["step"] == 19
    }


def losses(path: Path) -> dict[tuple[str, int, int], float]:
    """Return the losses of all ranks, in all steps and at the end."""
    return {
        (record["kind"], record["rank"], record["step"]): record["loss"]
        for record in read_metrics(path)
        if record["kind"] in ("train", "eval")
    }


@pytest.mark.parametrize("overrides", [DILOCO, D_PSGD], ids=["diloco", "d_psgd"])
def test_two_nodes_continue_a_run_of_four(
    overrides: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    save(*overrides)
    former = folder(4)
    before = {path: path.read_bytes() for path in former.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main([*TINY, *overrides, "nodes=2", "resume=resize"]) == 0
    assert f"This run continues from step 4 of {former.name}, which had 4 nodes.\n" in (
        capsys.readouterr().out
    )
    assert {path: path.read_bytes() for path in before} == before
    origin = yaml.safe_load((folder(2) / "config.yaml").read_text())["resized_from"]
    assert (origin["run"], origin["steps"], origin["nodes"]) == (former.name, 4, 4)
    first, *others = records(folder(2))
    assert first.pop("time_s") > 0
    assert first == {
        "kind": "resized",
        "clock": "simulated",
        **{"run": former.name, "step": 4, "nodes_before": 4},
        **{"epoch": 8 / 12, "nodes": 2, "steps": 24},
    }
    trained = [record for record in others if record["kind"] == "train" and record["rank"] == 0]
    assert [record["step"] for record in trained[:-1]] == list(range(8, 24))
    (as_before,) = [
        record
        for record in records(former)
        if (record["kind"], record.get("rank"), record.get("step")) == ("train", 0, 4)
    ][:1]
    assert trained[0]["epoch"] == as_before["epoch"] == 8 / 12
    assert main([*TINY, *overrides, "nodes=2", "resume=resize"]) == 0
    assert "This run has finished already" in capsys.readouterr().out


@pytest.mark.parametrize("overrides", [DILOCO, D_PSGD], ids=["diloco", "d_psgd"])
def test_real_ranks_continue_as_in_the_simulator(overrides: tuple[str, ...]) -> None:
    models, curves = [], []
    for network in ("sim", "gloo"):
        shutil.rmtree("results", ignore_errors=True)
        save(*overrides, f"network={network}")
        assert main([*TINY, *overrides, f"network={network}", "nodes=2", "resume=resize"]) == 0
        models.append(parameters(folder(2)))
        curves.append(losses(folder(2)))
    assert records(folder(2))[0]["epoch"] == 8 / 12
    assert 1 in models[0] and sorted(models[1]) == [0, 1]
    for rank, vector in models[0].items():
        assert vector == pytest.approx(models[1][rank], rel=0, abs=1e-10)
    assert len(curves[0]) == 2 * (24 - 8) + 2
    assert curves[0] == pytest.approx(curves[1], rel=0, abs=1e-10)


@pytest.mark.parametrize(("before", "after"), [((4, 6), (2, 12)), ((2, 12), (4, 6))])
def test_each_sample_of_the_epoch_is_read_once(
    before: tuple[int, int], after: tuple[int, int]
) -> None:
    samplers = {
        nodes: IID().sampler(range(96), nodes, 4, seed=1)  # type: ignore[arg-type]
        for nodes, _ in (before, after)
    }
    step = 8 // before[0] * 2 + before[1]  # in the second epoch
    there = continued_step(step, before, after)
    steps = {before[0]: range(before[1], step), after[0]: range(there, 2 * after[1])}
    read = [
        sample
        for nodes, its_steps in steps.items()
        for k in its_steps
        for worker in range(nodes)
        for sample in samplers[nodes].indices(worker, k).tolist()
    ]
    assert sorted(read) == list(range(96))


def test_fewer_batches_than_nodes_are_left_out() -> None:
    """32 batches: after 5 of 16 steps of two nodes, three nodes have begun 4 of 10 steps."""
    steps = {5: 4, 15: 10, 16 + 16: 20}
    assert {step: continued_step(step, (2, 16), (3, 10)) for step in steps} == steps


def test_the_mean_model_is_weighted() -> None:
    common = {"taken": 3, "model_buffers": [], "comm": {"mailbox": []}}
    workers = [
        {
            **common,
            "steps_taken": steps,
            "push_sum": torch.tensor([value, weight]),
            "buffers": {"momentum": torch.tensor([10 * value])},
            "state": {"outer": torch.tensor([value]), "slowmo_start": steps - 2},
        }
        for value, weight, steps in ((1.0, 0.5, 3), (3.0, 1.5, 4))  # one has dropped a step
    ]
    mean = mean_worker(workers, "DiLoCo")
    tensors = (mean["push_sum"], mean["buffers"]["momentum"], mean["state"]["outer"])
    assert [tensor.tolist() for tensor in tensors] == [[2.5, 1.0], [20.0], [2.0]]
    assert (mean["steps_taken"], mean["state"]["slowmo_start"]) == (3, 1)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ("algo=ad_psgd",),
            "resume: AD-PSGD is asynchronous, so it cannot be resized: use resume=auto with the "
            "former nodes.\n",
        ),
        (
            ("algo=ps_sgd",),
            "resume: PS-SGD has a server, so it cannot be resized: use resume=auto with the "
            "former nodes.\n",
        ),
        (
            ("algo=ar_sgd",),
            "resume: results/runs has no checkpoint of a run that differs only in nodes: "
            "checkpoint.every_steps saves one, or use resume=auto.\n",
        ),
    ],
)
def test_runs_that_cannot_be_resized(
    overrides: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, *overrides, "nodes=2", "resume=resize"]) == 2
    assert capsys.readouterr().err == f"sgp-run: {said}"
    assert not Path("results").exists()


def test_state_without_a_rule_and_the_same_nodes_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    save("algo=osgp")
    capsys.readouterr()
    assert main([*TINY, "algo=osgp", "nodes=2", "resume=resize"]) == 2
    assert capsys.readouterr().err == (
        "sgp-run: resume: OSGP cannot convert expected to another number of ranks: use "
        "resume=auto with the former nodes.\n"
    )
    assert main([*TINY, "algo=osgp", "nodes=4", "resume=resize"]) == 2
    assert capsys.readouterr().err == (
        f"sgp-run: nodes: {folder(4).name} was saved with 4 nodes too: use another number of "
        "nodes, or resume=auto.\n"
    )


SURVIVAL = (
    *("algo=sgp", "algo.topology=complete", "optim.momentum=0", "optim.schedule=constant"),
    *("epochs=4", "on_failure=continue", "cluster.step_seconds.default=0.2"),
)
DIES = "faults.events=[{what: crash, ranks: [3], start: 0.7}]"


@pytest.mark.parametrize(
    ("network", "end", "nodes", "steps"),
    [
        ("sim", 11, 2, range(17, 48)),
        ("sim", 11, 3, range(11, 32)),
        ("sim", 11, 5, range(6, 16)),
        pytest.param("gloo", 12, 2, range(18, 48), marks=pytest.mark.slow),
        ("gloo", 12, 3, range(12, 32)),
    ],
)
def test_nodes_continue_a_run_that_had_lost_one(
    network: str, end: int, nodes: int, steps: range
) -> None:
    """Rank 3 is lost after three steps. An epoch has 6 steps of four nodes, 8 of three, 12 of two,
    and 4 of five. The survivors come to step ``end``.
    """
    overrides = (*TINY, *SURVIVAL, f"network={network}")
    if network == "sim":
        execute(make_experiment(Path("results"), *overrides, DIES, "nodes=4"))
    else:
        experiment = make_experiment(Path("results"), *overrides, "nodes=4")
        launch(experiment, program=(str(RANKS / "real_rank.py"), "3dies"))
    keep_checkpoint(12)
    assert main([*overrides, f"nodes={nodes}", "resume=resize"]) == 0
    first = records(folder(nodes))[0]
    assert (first["nodes_before"], first["epoch"]) == (3, steps[0] / (24 // nodes))
    run = make_experiment(Path("expected"), *overrides, "nodes=4").run
    stages = (4, range(3)), (3, range(4, end)), (nodes, steps)
    curve = [means for _, means in descend(run, stages)][-len(steps) :]
    expected = {
        ("train", rank, step): loss
        for step, means in zip(steps, curve, strict=True)
        for rank, loss in enumerate(means)
    }
    found = {key: loss for key, loss in losses(folder(nodes)).items() if key[0] == "train"}
    assert found == pytest.approx(expected, rel=0, abs=1e-12)


def test_a_machine_that_is_down_stays_down(capsys: pytest.CaptureFixture[str]) -> None:
    """Survivors in the middle of a period of SlowMo, who have dropped unequal numbers of steps."""
    overrides = (
        *TINY,
        "algo=slowmo",
        "algo.tau=5",
        *SURVIVAL[-2:],
        "epochs=4",
        DIES.replace("3", "2"),
    )
    assert main([*overrides, "nodes=4"]) == 0
    keep_checkpoint(12)
    assert main([*overrides, "nodes=3", "resume=resize"]) == 0
    resized, lost = records(folder(3))[:2]
    assert (resized["nodes_before"], resized["nodes"], resized["epoch"]) == (3, 3, 1.25)
    assert (lost["kind"], lost["ranks"], lost["nodes"], lost["epoch"]) == ("lost", [2], 2, 1.25)
    assert lost["time_s"] == resized["time_s"] > 7
