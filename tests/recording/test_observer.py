"""What a run records: when workers are evaluated, what of, and that watching changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from helpers.experiments import final_parameters, instrumented, make_experiment

import sgp_runner as sgp
from sgp_runner.assembly.build import build_problem
from sgp_runner.assembly.start import execute
from sgp_runner.core.problem import Problem
from sgp_runner.plugin import Algorithm, Worker
from sgp_runner.recording.epoch_average import EpochAverage
from sgp_runner.recording.observer import results
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.report.read.runs import curve_of

TINY = ("model=mlp", "nodes=4", "batch_size=32", "epochs=3", "log_every=5")  # 11 steps per epoch


def run(
    tmp_path: Path, *overrides: str
) -> tuple[dict[str, object], list[dict[str, object]], list[torch.Tensor]]:
    experiment = make_experiment(tmp_path, *TINY, *overrides)
    summary = execute(instrumented(experiment))
    assert summary is not None
    return summary, read_metrics(experiment.directory), final_parameters(experiment)


def of_kind(records: list[dict[str, object]], kind: str) -> list[dict[str, object]]:
    return [record for record in records if record["kind"] == kind]


def test_every_worker_is_evaluated_at_every_epoch_and_so_is_the_average(tmp_path: Path) -> None:
    summary, records, _ = run(tmp_path)
    evaluations = of_kind(records, "eval")
    assert sorted((r["epoch"], r["rank"]) for r in evaluations) == [
        (e, r) for e in (1, 2, 3) for r in range(4)
    ]
    assert {r["step"] for r in evaluations} == {10, 21, 32}
    averages = of_kind(records, "average")
    assert [r["epoch"] for r in averages] == [1, 2, 3]
    last = [float(str(r["accuracy"])) for r in evaluations if r["epoch"] == 3]
    assert summary["worker_mean"] == pytest.approx(sum(last) / 4)
    assert (summary["worker_min"], summary["worker_max"]) == (min(last), max(last))
    assert summary["average"] == averages[-1]["accuracy"]
    assert summary["consensus_distance"] == averages[-1]["consensus_distance"] != 0
    assert summary["time_s"] == max(float(str(r["time_s"])) for r in records)


@dataclass(frozen=True)
class Logging(Algorithm):
    """Local steps that log."""

    title: ClassVar[str] = "Logging"

    async def run(self, worker: Worker) -> None:
        for k in worker.steps():
            await worker.descend()
            worker.log("seen", k)
            worker.log("loss", -1.0)


def test_logged_values_are_in_the_next_record_and_replace_none(tmp_path: Path) -> None:
    overrides = (
        "model=mlp nodes=4 batch_size=32 epochs=1 log_every=5 eval_workers=false logger=jsonl"
    )
    result = sgp.run(overrides, algo=Logging, results=str(tmp_path), verbose=False)
    train = [r for r in of_kind(read_metrics(result.folder), "train") if r["rank"] == 0]
    assert [(r["step"], r["seen"]) for r in train] == [(0, 0.0), (4, 2.5), (9, 7.0), (10, 10.0)]
    assert min(float(str(r["loss"])) for r in train) > 0


@pytest.mark.parametrize("network", ["sim", "gloo"])
def test_evaluations_may_be_a_fraction_of_an_epoch_apart(network: str, tmp_path: Path) -> None:
    overrides = ("epochs=1", "nodes=2", "batch_size=64", "eval_every=0.3", f"network={network}")
    experiment = make_experiment(tmp_path, *TINY, *overrides)
    assert execute(experiment) is not None
    records = of_kind(read_metrics(experiment.directory), "eval")
    assert sorted((r["epoch"], r["step"], r["rank"]) for r in records) == [
        (epoch, step, rank)
        for epoch, step in ((0.3, 3), (0.6, 6), (0.9, 9), (1.0, 10))
        for rank in (0, 1)
    ]


@pytest.mark.parametrize(("have", "used"), [(6000, 5000), (300, 300)])
def test_batch_norms_statistics_are_re_estimated_on_thousands_of_samples(
    have: int, used: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = (
        "model=resnet8",
        "data=shapes",
        "data.image_size=8",
        f"data.train_size={have}",
        "data.valid_size=20",
        "nodes=2",
    )
    problem = build_problem(make_experiment(tmp_path, *overrides).run)
    seen: list[int] = []
    batch = type(problem.dataset.train).batch

    def noted(split: object, indices: torch.Tensor, *rest: int) -> object:
        if split is problem.dataset.train:
            seen.extend(indices.tolist())
        return batch(split, indices, *rest)

    monkeypatch.setattr(type(problem.dataset.train), "batch", noted)
    problem.evaluate_re_estimated(problem.start())
    assert len(seen) == len(set(seen)) == used


def test_bytes_are_those_of_the_step_of_an_evaluation(tmp_path: Path) -> None:
    """PowerSGD sends the parameters in 30 of 66 steps, then factors; no record lies between."""
    _, records, _ = run(
        tmp_path,
        *("algo=powersgd", "algo.rank=1", "algo.start=30", "nodes=2", "log_every=1000000"),
        *("cluster.collectives.algorithm=ring",),
    )
    sent = [record["bytes_sent"] for record in of_kind(records, "average")]
    steps = [record["step"] for record in of_kind(records, "eval") if record["rank"] == 0]
    assert steps == [21, 43, 65]
    by_hand = [4 * (4810 * min(n, 30) + 276 * max(0, n - 30)) for n in (22, 44, 66)]
    assert sent == by_hand
    assert curve_of(records, "average")["bytes"].tolist() == by_hand


def test_without_eval_workers_only_the_average_is_evaluated_before_the_end(tmp_path: Path) -> None:
    _, everything, _ = run(tmp_path / "all")
    _, records, _ = run(tmp_path / "average", "eval_workers=false")
    assert [(r["epoch"], r["rank"]) for r in of_kind(records, "eval")] == [(3, r) for r in range(4)]
    names = ("epoch", "loss", "accuracy", "consensus_distance")
    averages, before = (
        [[r[name] for name in names] for r in of_kind(recorded, "average")]
        for recorded in (records, everything)
    )
    assert averages == before and len(averages) == 3


def test_training_records_hold_what_they_promise(tmp_path: Path) -> None:
    _, records, parameters = run(tmp_path, "algo=osgp")
    training = of_kind(records, "train")
    assert [r["step"] for r in training if r["rank"] == 0] == [0, 4, 9, 14, 19, 24, 29, 32]
    assert all(r["clock"] == "simulated" for r in training)
    bytes_per_step = (
        parameters[0].numel() + 1
    ) * 4  # one message of float32 parameters and a weight
    assert {int(str(r["bytes_sent"])) for r in training} == {
        bytes_per_step * k for k in (1, 5, 10, 15, 20, 25, 30, 33)
    }
    assert any(float(str(r["push_sum_weight"])) < 1 for r in training)  # mass in flight
    assert any(r["staleness"] == 1 for r in training)


def test_evaluation_neither_takes_simulated_time_nor_changes_the_run(tmp_path: Path) -> None:
    often, _, parameters = run(tmp_path / "often", "model=resnet8", "epochs=1", "eval_every=1")
    once, _, same = run(
        tmp_path / "once", "model=resnet8", "epochs=1", "eval_every=100", "log_every=1"
    )
    assert often["time_s"] == once["time_s"]
    assert all(torch.equal(a, b) for a, b in zip(parameters, same, strict=True))


@pytest.mark.parametrize("algorithm", ["gap_aware", "ps_sgd"])
def test_a_parameter_server_is_the_average(algorithm: str, tmp_path: Path) -> None:
    summary, records, _ = run(tmp_path, f"algo={algorithm}")
    averages = of_kind(records, "average")
    assert [r["epoch"] for r in averages] == [1, 2, 3]
    assert summary["server"] is True
    assert summary["average"] == averages[-1]["accuracy"]
    assert "consensus_distance" not in summary


def test_a_server_records_how_stale_its_gradients_are(tmp_path: Path) -> None:
    _, records, _ = run(tmp_path, "algo=gap_aware")
    server = of_kind(records, "server")
    assert [r["step"] for r in server] == [
        0,
        *range(19, 4 * 33, 20),
        131,
    ]  # its own steps are gradients; every log_every of a node
    assert server[0]["staleness"] == 0
    assert 2.5 < float(str(server[3]["staleness"])) < 3.5  # four workers in turn


def test_asynchronous_epochs_are_counted_globally(tmp_path: Path) -> None:
    _, records, _ = run(tmp_path, "algo=ad_psgd", "faults=slow_node")
    training = of_kind(records, "train")
    assert max(int(str(r["step"])) for r in training) == 4 * 11 * 3 - 1
    slow, *others = ([r["rank"] for r in training].count(rank) for rank in range(4))
    assert slow < min(others)  # it did fewer gradients


def test_a_timing_study_has_times_and_bytes_and_no_quality(tmp_path: Path) -> None:
    experiment = make_experiment(
        tmp_path, "model=timing_only", "nodes=4", "epochs=0.01", "cluster=ideal"
    )
    summary = execute(experiment)
    assert summary is not None
    assert summary["time_s"] == pytest.approx(
        13 * 0.23, rel=1e-6
    )  # 1,251 steps per epoch, nothing but compute time
    assert summary["bytes_per_node"] == 13 * 4 * (25_557_032 + 1)
    assert "average" not in summary
    assert all(r["loss"] is None for r in of_kind(read_metrics(experiment.directory), "train"))


def test_two_runs_write_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for name in ("one", "two"):
        experiment = make_experiment(tmp_path / name, *TINY, "algo=ad_psgd")
        execute(experiment)
        *lines, _ = (experiment.directory / "metrics.jsonl").read_bytes().splitlines()
        written.append(lines)  # without the summary, which holds the real time
    assert written[0] == written[1] and len(written[0]) > 40


def test_averaging_equal_models_finds_no_distance() -> None:
    model = torch.tensor([1e4, -2.0, 3e-4])
    average = EpochAverage(5)
    for rank in range(5):
        average.add(rank, model, 1.0, {"loss": 1.0}, 8)
    mean, spread = average.result()
    assert torch.equal(mean, model)
    assert spread["consensus_distance"] == 0.0


def test_an_average_does_not_depend_on_the_order_of_arrival() -> None:
    models = torch.randn(7, 50, generator=torch.Generator().manual_seed(1))
    results = []
    for order in ((0, 1, 2, 3, 4, 5, 6), (6, 5, 4, 3, 2, 1, 0), (3, 0, 6, 1, 5, 2, 4)):
        average = EpochAverage(7)
        for rank in order:
            assert not average.complete
            average.add(rank, models[rank], 1.0, {"accuracy": 0.1 * rank}, rank)
        results.append(average.result())
    assert all(
        torch.equal(mean, results[0][0]) and spread == results[0][1] for mean, spread in results
    )
    mean, spread = results[0]
    assert torch.allclose(mean, models.mean(dim=0), atol=1e-6)
    assert spread["consensus_distance"] == pytest.approx(
        float((models - models.mean(dim=0)).square().sum() / 7) ** 0.5
    )


def test_an_average_has_the_root_mean_square_distance() -> None:
    average = EpochAverage(3)
    for rank, (x, accuracy) in enumerate(((0.0, 0.5), (2.0, 0.7), (4.0, 0.9))):
        model = torch.tensor([x, 1.0], dtype=torch.float64)
        average.add(rank, model, x, {"accuracy": accuracy}, 10 * rank)
    mean, spread = average.result()
    assert mean.tolist() == [2.0, 1.0]
    assert spread["consensus_distance"] == pytest.approx((8 / 3) ** 0.5)
    assert spread["bytes_sent"] == 10.0
    assert (spread["accuracy_mean"], spread["accuracy_min"], spread["accuracy_max"]) == (
        pytest.approx(0.7),
        0.5,
        0.9,
    )
    assert (spread["push_sum_weight_min"], spread["push_sum_weight_max"]) == (0.0, 4.0)


@pytest.mark.parametrize(
    ("overrides", "number"),
    [
        ("algo=ar_sgd", 1),
        ("algo=sgp", 5),
        ("algo=ar_sgd model.dropout=0.5", 1),
        ("algo=ar_sgd model=resnet8", 5),  # workers have their own running statistics
    ],
)
def test_equal_models_are_evaluated_once_in_a_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: str, number: int
) -> None:
    calls: list[torch.Tensor] = []
    evaluate = Problem.evaluate

    def noting(
        problem: Problem, params: torch.Tensor, buffers: list[torch.Tensor]
    ) -> dict[str, float]:
        calls.append(params)
        return evaluate(problem, params, buffers)

    monkeypatch.setattr(Problem, "evaluate", noting)
    _, records, _ = run(tmp_path, *overrides.split(), "epochs=0.2")
    assert len(calls) == number
    assert len(of_kind(records, "eval")) == 4


def test_bits_per_byte_are_results_unless_the_entropy_is_known() -> None:
    average = {"loss": 1.5, "bits_per_byte": 2.25}
    known = average | {"excess_loss": 0.25}
    expected = {
        **{"metric": "loss", "average": 1.5, "average_loss": 1.5},
        **{"worker_mean": 1.5, "worker_min": 1.5, "worker_max": 1.5},
    }
    assert results("loss", [average], average) == expected | {"bits_per_byte": 2.25}
    assert results("loss", [average], known) == expected
