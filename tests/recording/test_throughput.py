"""Throughput of real runs: rates between records, FLOPs, and waits for messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.experiments import make_experiment
from helpers.paths import RANKS
from torch.utils.flop_counter import FlopCounterMode

from sgp_runner.assembly.build import build_problem
from sgp_runner.assembly.real.launch import launch
from sgp_runner.assembly.start import execute
from sgp_runner.config.overrides import experiment_of
from sgp_runner.console.summary import throughput_text
from sgp_runner.core.flops import flops_per_sample
from sgp_runner.core.problem import Compute, Problem
from sgp_runner.core.scheduler import RealClock
from sgp_runner.core.wait_meter import WaitMeter
from sgp_runner.core.worker import Progress
from sgp_runner.distributed.gradients import Gradients
from sgp_runner.distributed.rank_layout import RankLayout
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.recording.throughput import RATES, Amounts, Throughput, amounts, mean_rates
from sgp_runner.utils.devices import peak_flops, published_rate

REAL_RANK = str(RANKS / "real_rank.py")


def problem_of(tmp_path: Path, *overrides: str) -> Problem:
    return build_problem(make_experiment(tmp_path, "nodes=2", *overrides).run)


@pytest.fixture
def digits(tmp_path: Path) -> Problem:
    return problem_of(tmp_path, "model=mlp", "model.hidden=[32]", "batch_size=8")


def since(
    throughput: Throughput, problem: Problem, now: float, gradients: int
) -> dict[str, float | None]:
    """The rates of worker 1, which has begun so many gradients by now."""
    worker: Any = SimpleNamespace(rank=1, progress=Progress(gradients=gradients))
    return throughput.since_last_record(worker, problem, now)


# Rates, with a clock that the test sets.


def test_rates_cover_the_time_since_the_last_record(digits: Problem) -> None:
    waited = [0.0]
    throughput = Throughput(lambda: waited[0], flops=100.0, peak=4000.0)
    assert since(throughput, digits, 2.0, 1) == {
        "samples_per_s": 4.0,
        "tokens_per_s": None,
        "flops_per_s": 400.0,
        "mfu": 0.1,
        "waiting_share": 0.0,
    }
    waited[0] = 1.0
    assert since(throughput, digits, 6.0, 11) == {
        "samples_per_s": 20.0,
        "tokens_per_s": None,
        "flops_per_s": 2000.0,
        "mfu": 0.5,
        "waiting_share": 0.25,
    }
    waited[0] = 2.0
    since(throughput, digits, 10.0, 16)
    assert throughput.total == Amounts(8.0, 120, None, 2.0)  # without the first step
    rates = throughput.rates(throughput.total)
    assert (rates["samples_per_s"], rates["waiting_share"]) == (15.0, 0.25)


def test_nothing_is_known_without_a_gradient(digits: Problem) -> None:
    throughput = Throughput()
    since(throughput, digits, 1.0, 1)
    assert since(throughput, digits, 2.0, 1) == dict.fromkeys(RATES)


def test_a_resumed_run_continues_its_rates(digits: Problem) -> None:
    waited = [3.0]
    before = Throughput(lambda: waited[0], time_s=4.0, gradients=2, waited_before=1.0)
    before.total = Amounts(3.0, 16, None, 1.0)
    state = before.state_dict()
    waited[0] = 0.5  # the clock of another process
    after = Throughput(lambda: waited[0])
    after.load_state_dict(state)
    waited[0] = 1.5
    rates = since(after, digits, 10.0, 5)
    assert (rates["samples_per_s"], rates["waiting_share"]) == (4.0, 0.5)
    assert after.total == Amounts(9.0, 40, None, 4.0)


def test_rates_begin_again_after_lost_ranks_and_after_old_checkpoints(digits: Problem) -> None:
    for begin_again in (Throughput.restart, lambda throughput: throughput.load_state_dict(None)):
        throughput = Throughput(time_s=4.0, gradients=2)
        begin_again(throughput)
        assert since(throughput, digits, 10.0, 1) == dict.fromkeys(RATES)
        assert since(throughput, digits, 12.0, 2)["samples_per_s"] == 4.0


def test_tokens_are_those_that_the_loss_counts(tmp_path: Path) -> None:
    problem = problem_of(tmp_path / "a", "model=transformer", "batch_size=4")
    task: Any = problem.dataset.task
    targets = [problem.batch(1, step)[1] for step in (3, 4)]
    count = sum(int((target != task.pad).sum()) for target in targets)
    assert amounts(problem, 1, range(3, 5)) == (8, count)
    assert count < sum(target.numel() for target in targets)
    gpt = problem_of(tmp_path / "b", "model=gpt", "batch_size=4", "data.block=16")
    assert amounts(gpt, 1, range(3, 5)) == (8, 128)


def test_the_mean_over_nodes_is_unknown_if_one_is(digits: Problem) -> None:
    throughput = Throughput()
    known = throughput.rates(Amounts(1.0, 8, None, 0.25))
    mean = mean_rates([known, throughput.rates(Amounts(1.0, 4, None, 0.75))])
    assert (mean["samples_per_s"], mean["waiting_share"], mean["mfu"]) == (6.0, 0.5, None)
    assert mean_rates([known, dict.fromkeys(RATES)]) == dict.fromkeys(RATES)
    assert mean_rates([{"time_s": 1.0}]) == {}


def test_rates_as_text() -> None:
    rates = dict(zip(RATES, (1234.4, None, 1.23e12, 0.412, 0.1), strict=True))
    assert throughput_text(rates) == "1,234 samples/s, 1.23 TFLOP/s, MFU 41 %, waiting 10 %"
    assert throughput_text({**rates, "tokens_per_s": 9.876}) == (
        "9.88 tokens/s, 1.23 TFLOP/s, MFU 41 %, waiting 10 %"
    )
    assert throughput_text({}) is None


# Operations.


@pytest.mark.parametrize("large", [False, True])
def test_operations_of_two_layers_by_hand(
    large: bool, digits: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sgp_runner.core.problem.LARGE", 0 if large else 10**6)
    forward, weights, hidden = 64 * 32 + 32 * 10, 64 * 32 + 32 * 10, 32 * 10
    assert flops_per_sample(digits, 0) == 2 * (forward + weights + hidden)


def test_counting_leaves_no_trace(tmp_path: Path) -> None:
    problem = problem_of(
        tmp_path, "model=resnet8", "data=shapes", "data.image_size=8", "batch_size=4"
    )
    module, random = problem.flat.module, torch.get_rng_state()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    count = flops_per_sample(problem, 0)
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())
    assert torch.equal(torch.get_rng_state(), random)
    assert module.training and all(p.grad is None for p in module.parameters())
    inputs, targets = problem.batch(0, 0)
    with FlopCounterMode(display=False) as counter:
        problem.dataset.task.loss(module(*inputs), targets).backward()  # type: ignore[no-untyped-call]
    assert count == counter.get_total_flops() / 4


def test_what_cannot_be_counted_is_unknown(digits: Problem) -> None:
    def fail(*inputs: object) -> None:
        raise ZeroDivisionError

    digits.flat.module.register_forward_hook(fail)
    assert flops_per_sample(digits, 0) is None
    rates = since(Throughput(flops=None, peak=1.0), digits, 1.0, 1)
    assert rates["flops_per_s"] is rates["mfu"] is None


def test_the_peak_is_of_16_bit_numbers_on_known_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    assert peak_flops("cuda:0", True) == 989.4e12
    assert peak_flops("cuda:0", False) is peak_flops("cpu", True) is None
    assert published_rate("NVIDIA H100 PCIe") == (756.5e12, "NVIDIA H100 datasheet, PCIe")
    assert published_rate("Voodoo 2") is None


@pytest.mark.parametrize(
    ("card", "rate"),
    [
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA L40S", 362.05e12),
        ("NVIDIA GeForce RTX 5090", 209.5e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
    ],
)
def test_a_card_has_the_rate_of_its_own_datasheet(card: str, rate: float) -> None:
    assert (published_rate(card) or ())[:1] == (rate,)


def test_other_cards_of_a_family_have_no_rate() -> None:
    cards = ("RTX 4090 Laptop GPU", "RTX 4090 D", "RTX 5090 Laptop GPU")
    assert [published_rate(f"NVIDIA GeForce {card}") for card in cards] == [None] * 3


def test_a_problem_on_a_device_is_counted_without_it(digits: Problem) -> None:
    elsewhere = dataclasses.replace(digits, compute=Compute("cuda:0"))
    assert flops_per_sample(elsewhere, 0) == flops_per_sample(digits, 0)


# Waits.


def test_the_clock_counts_waits_except_for_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now = RealClock(), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def handle() -> None:
        now[0] += 100.0  # what an event does is no wait

    def waited_after(seconds: float) -> float:
        def get() -> Callable[[], None]:
            now[0] += seconds
            return handle

        clock.posted = SimpleNamespace(get=get)  # type: ignore[assignment]
        clock.advance()
        return clock.meter.seconds()

    assert waited_after(2.0) == 2.0
    clock.computing = True
    assert waited_after(3.0) == 2.0
    clock.computing = False
    assert waited_after(4.0) == 6.0
    clock.meter.counting = False
    assert waited_after(5.0) == 6.0


def test_data_parallelism_waits_at_the_end_of_its_backward_pass(
    digits: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def takes(seconds: float) -> None:
        now[0] += seconds

    def last_gradient_is_ready(gradient: object) -> None:
        takes(5.0)
        torch.autograd.Variable._execution_engine.queue_callback(lambda: takes(3.0))

    world: Any = SimpleNamespace(layout=RankLayout(0, 2), cut=None)
    gradients = Gradients(digits, world)
    digits.flat.module.register_forward_hook(gradients.watch_backward)
    digits.flat.parameters[0].register_hook(last_gradient_is_ready)
    digits.gradient(digits.start(), digits.flat.fresh_buffers(), 0, 0)
    assert (now[0], gradients.meter.seconds()) == (8.0, 3.0)


class FakeEvent:
    """An event of a GPU that has passed or not."""

    def __init__(self, ms: float, passed: bool = True) -> None:
        self.ms, self.passed = ms, passed

    def query(self) -> bool:
        return self.passed

    def elapsed_time(self, end: FakeEvent) -> float:
        return end.ms - self.ms


def test_waits_of_a_stream_count_once_the_device_has_passed_them() -> None:
    meter = WaitMeter()
    meter.counting = False  # the host's
    end: Any = FakeEvent(1500.0, passed=False)
    begin: Any = FakeEvent(500.0)
    meter.add_between(begin, end)
    meter.add_between(1.0, 2.0)
    assert meter.seconds() == 0.0
    end.passed = True
    assert meter.seconds() == meter.seconds() == 1.0


# Real runs.


@pytest.mark.parametrize("algo", ["ar_sgd", "ad_psgd"])
def test_records_of_a_real_run_have_rates(algo: str, tmp_path: Path) -> None:
    options = ("model=mlp", "nodes=2", "network=gloo", "epochs=0.3", "log_every=4", "batch_size=16")
    experiment = make_experiment(tmp_path, *options, f"algo={algo}")
    summary = launch(experiment, program=(REAL_RANK, "-1"))
    records = read_metrics(experiment.directory)
    flops = flops_per_sample(build_problem(experiment.run), 0)
    for rank in (0, 1):
        training = [r for r in records if r["kind"] == "train" and r["rank"] == rank]
        samples, before = 0.0, 0.0
        for record in training:
            if record["samples_per_s"] is not None:
                samples += record["samples_per_s"] * (record["time_s"] - before)
                assert record["flops_per_s"] == pytest.approx(flops * record["samples_per_s"])
                assert 0 <= record["waiting_share"] <= 1
            before = record["time_s"]
            assert record["tokens_per_s"] is record["mfu"] is None
        assert samples / 16 == pytest.approx(round(samples / 16))
        if algo == "ar_sgd":
            assert round(samples / 16) == summary["steps"]
    assert {r["kind"] for r in records if "samples_per_s" in r} == {"train", "summary"}
    if algo == "ar_sgd":  # of other ranks, one may have taken all steps
        assert float(str(summary["samples_per_s"])) > 0


def test_modules_that_may_change_in_a_forward_pass_are_not_counted() -> None:
    class Counting(torch.nn.Linear):
        """A module from elsewhere."""

    problem = build_problem(experiment_of(["model=mlp", "nodes=2"]).run)
    assert flops_per_sample(problem, 0) is not None
    problem.flat.module.add_module("more", Counting(1, 1))
    assert flops_per_sample(problem, 0) is None


def test_records_in_simulated_time_have_no_rates(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path, "model=mlp", "nodes=2", "epochs=0.3")
    summary = execute(experiment)
    assert summary is not None
    for record in [summary, *read_metrics(experiment.directory)]:
        assert not record.keys() & set(RATES)
