"""``sgp-run doctor``: what six public threads state, and the rates and causes that follow.

A thread states times, not rates. These tests are about consistency: the simulator gives back the
stated time at both ends of the range.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sgp_runner.cli.main import main
from sgp_runner.config.overrides import experiment_of
from sgp_runner.plan.comparison import compare
from sgp_runner.plan.diagnosis import Diagnosis, diagnose, text_lines
from sgp_runner.plan.observation import Observation, read_observation
from sgp_runner.plan.request import read_request
from sgp_runner.plan.timing import time_steps

# github.com/huggingface/transformers/issues/3274: BERT-base, 4 V100 per node.
TRANSFORMERS_3274 = "one_node=0.5s two_nodes=4s parameters=110M devices=4 bandwidth=40Gbit/s"
# github.com/huggingface/transformers/issues/3707: 36:33 and 1:45:49 for the same data. Assumed: the
# model, and 1,000 steps on one node.
TRANSFORMERS_3707 = "step.1=2.193s step.2=12.698s model=gpt2 devices=8 bandwidth=25Gbit/s"
# github.com/QwenLM/Qwen3/issues/773: 2 A10 per node, ZeRO-3. Assumed: bfloat16.
QWEN3_773 = (
    "one_node=2.46s two_nodes=8.68s parameters=1.5B bytes_per_parameter=2 devices=2 traffic=zero3"
)
# github.com/mlfoundations/open_clip/issues/466: 30, 10 and 5 samples/s per GPU, 8 V100 per node,
# a batch of 24. Assumed: the number of parameters.
OPEN_CLIP_466 = "samples.1=240 samples.2=160 samples.3=120 batch=24 devices=8 parameters=638M"
# github.com/horovod/horovod/issues/2581: 8 and 16 GPUs. Assumed: 8 in a node, a batch of 64.
HOROVOD_2581 = "samples.1=1531.9 samples.2=546.9 batch=64 devices=8 model=vgg16"
# github.com/horovod/horovod/issues/396: p3.16xlarge. Assumed: a batch of 64.
HOROVOD_396 = "samples.1=1523 samples.2=1529 batch=64 devices=8 parameters=44.5M bandwidth=25Gbit/s"
HOROVOD_396_RESNET50 = "samples.1=2697.29 samples.2=2632.95 batch=64 devices=8 parameters=25.5M"
THREADS = (
    TRANSFORMERS_3274,
    TRANSFORMERS_3707,
    QWEN3_773,
    OPEN_CLIP_466,
    HOROVOD_2581,
    HOROVOD_396,
    HOROVOD_396_RESNET50,
)


def observed(arguments: str) -> Observation:
    return read_observation(arguments.split())


def diagnosed(arguments: str) -> Diagnosis:
    return diagnose(observed(arguments))


def gbit(arguments: str, nodes: int = 2) -> tuple[float, float]:
    low, high = observed(arguments).rates(nodes)
    return low / 1e9, high / 1e9


def simulated_seconds(seen: Observation, nodes: int, rate: float, hidden: bool) -> float:
    run = experiment_of(
        [
            "model=timing_only",
            "algo=ar_sgd",
            f"nodes={nodes}",
            f"timed_as.num_parameters={round(seen.num_bytes / 4)}",
        ]
    ).run
    return time_steps(replace(run, cluster=seen.cluster(rate, hidden))).seconds


@pytest.mark.parametrize("arguments", THREADS)
def test_the_simulator_gives_back_the_stated_time_at_both_ends(arguments: str) -> None:
    seen = observed(arguments)
    for nodes, seconds in seen.together.items():
        low, high = seen.rates(nodes)
        assert low < high
        assert simulated_seconds(seen, nodes, low, hidden=True) == pytest.approx(seconds, rel=1e-6)
        assert simulated_seconds(seen, nodes, high, hidden=False) == pytest.approx(
            seconds, rel=1e-6
        )


def test_ranges_of_rates() -> None:
    assert gbit(TRANSFORMERS_3274) == pytest.approx((1.54, 1.76), abs=0.005)
    assert gbit(HOROVOD_396)[1] == pytest.approx(8.0, abs=0.02)
    assert gbit(HOROVOD_396_RESNET50)[1] == pytest.approx(7.68, abs=0.01)
    # 2 (g - 1) / g of 553 MB in 0.94 s more than alone
    assert gbit(HOROVOD_2581) == pytest.approx((4.43, 5.40), abs=0.01)
    # three quarters of all-reduces: 1.5 x 3 GB, 2 x 3 / 4 of them
    assert gbit(QWEN3_773) == pytest.approx((6.22, 8.68), abs=0.01)


def test_the_rate_of_one_model_predicts_the_step_of_another() -> None:
    """Horovod 396: the rate of ResNet-50 gives ResNet-101's step within 2.1 %."""
    rate = observed(HOROVOD_396_RESNET50).rates(2)[1]
    seen = observed(HOROVOD_396)
    assert simulated_seconds(seen, 2, rate, hidden=False) == pytest.approx(
        seen.together[2], rel=0.021
    )


def test_transformers_3274_carried_four_percent_of_its_link() -> None:
    made = diagnosed(TRANSFORMERS_3274)
    assert made.answer == (
        "A step on 2 nodes takes 8 times as long: the network carried 1.54 to 1.76 Gbit/s, 4 % of "
        "40 Gbit/s."
    )
    assert made.rate_explains is None


def test_a_smaller_model_with_the_same_gap_refutes_a_rate() -> None:
    """The author of transformers 3274 saw the slow-down with one layer instead of twelve."""
    made = diagnosed(f"{TRANSFORMERS_3274} small=0.28 small_gap=3.5s")
    assert made.answer == (
        "A step on 2 nodes takes 8 times as long, and a slow network is not the answer: a smaller "
        "model does not lose the gap in proportion."
    )
    verdicts = {cause.name: cause.verdict for cause in made.causes}
    names = ("input loading", "rate of the link", "one connection")
    assert [verdicts[name] for name in names] == ["possible", "unlikely", "unlikely"]


def test_a_smaller_model_with_a_smaller_gap_supports_a_rate() -> None:
    made = diagnosed(f"{TRANSFORMERS_3274} small=0.5 small_gap=1.75s")
    verdicts = {cause.name: cause.verdict for cause in made.causes}
    assert made.rate_explains is True
    assert (verdicts["one connection"], verdicts["input loading"]) == ("possible", "unlikely")


def test_open_clip_466_has_no_one_rate() -> None:
    made = diagnosed(OPEN_CLIP_466)
    assert made.rates[2][1] / made.rates[3][1] == pytest.approx(2.446, abs=0.001)
    assert made.answer.endswith("not the answer: 2 and 3 nodes need rates 2.4 times apart.")


def test_zero3_has_half_as_much_traffic_again() -> None:
    plain = QWEN3_773.replace("zero3", "all_reduce")
    assert gbit(QWEN3_773) == pytest.approx([1.5 * rate for rate in gbit(plain)], rel=1e-3)


@pytest.mark.parametrize(
    ("more", "cause", "verdict"),
    [
        ("bandwidth=2Gbit/s", "rate of the link", "likely"),
        ("bandwidth=40Gbit/s", "rate of the link", "unlikely"),
        ("bandwidth=1.6Gbit/s", "one connection", "excluded"),
        # 21.25 MB per round trip of 100 ms are 1.7 Gbit/s
        ("latency=50ms window=21.25MB", "one connection", "likely"),
        ("latency=50ms window=2MB", "one connection", "unlikely"),
        ("latency=50ms window=2MB connections=10", "one connection", "likely"),
        ("latency=350ms", "latency", "likely"),
        ("latency=1ms", "latency", "unlikely"),
        ("two_nodes=4.3s bandwidth=40Gbit/s parameters=62M", "another interface", "likely"),
        ("streams.1=1.6Gbit/s streams.8=12Gbit/s", "one connection", "likely"),
        ("streams.1=1.6Gbit/s streams.8=12Gbit/s", "rate of the link", "unlikely"),
        ("streams.1=1.6Gbit/s streams.8=1.7Gbit/s", "one connection", "excluded"),
        ("streams.1=1.6Gbit/s streams.8=1.7Gbit/s", "rate of the link", "likely"),
        ("streams.1=30Gbit/s streams.8=38Gbit/s", "rate of the link", "unlikely"),
        ("loading=2s", "input loading", "likely"),
        ("loading=0.1s", "input loading", "excluded"),
        ("slowest=1.02", "a slow node", "excluded"),
        ("slowest=6", "a slow node", "likely"),
    ],
)
def test_numbers_decide_between_causes(more: str, cause: str, verdict: str) -> None:
    made = diagnosed(f"{TRANSFORMERS_3274.removesuffix(' bandwidth=40Gbit/s')} {more}")
    found = next(candidate for candidate in made.causes if candidate.name == cause)
    assert found.verdict == verdict and found.observation and found.command


def test_no_gap_is_nothing_to_explain() -> None:
    made = diagnosed("one_node=1s two_nodes=1s parameters=1e9")
    assert made.answer == (
        "2 nodes take no longer for a step than one: there is nothing to explain; the network "
        "carried 32 Gbit/s or more."
    )
    assert made.causes == ()


def test_latency_may_take_longer_than_the_gap() -> None:
    made = diagnosed("one_node=1s two_nodes=1.1s parameters=1e6 latency=1s bandwidth=1Gbit/s")
    assert made.answer == (
        "A step on 2 nodes takes 1.1 times as long: latency alone takes longer than the gap."
    )
    seen = observed("samples.1=64 samples.2=32 parameters=1e6")
    assert (seen.alone, seen.together) == (0.5, {2: 2.0})
    assert (
        "A device has 32 samples per step (batch=); with twice as many, the rate is half."
        in seen.assumed
    )


def write_run(folder: Path, algo: str, **summary: float | str) -> None:
    folder.mkdir()
    (folder / "config.yaml").write_text(f"algo:\n  name: {algo}\n")
    (folder / "summary.json").write_text(json.dumps({"clock": "wall", **summary}))


def test_folders_of_runs_are_observations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node of four sends 1.5 times the gradient, and waits for 60 % of a step of 2 s."""
    write_run(
        tmp_path / "four", "ar_sgd", nodes=4, steps=10, time_s=20, bytes_per_node=15e9,
        waiting_share=0.6,
    )  # fmt: skip
    seen = read_observation([str(tmp_path / "four")])
    assert (seen.alone, seen.together, seen.num_bytes) == (pytest.approx(0.8), {4: 2.0}, 1e9)
    write_run(tmp_path / "one", "ar_sgd", nodes=1, steps=10, time_s=5, bytes_per_node=0)
    folders = [str(tmp_path / name) for name in ("four", "one")]
    assert read_observation(folders).alone == read_observation(folders[::-1]).alone == 0.5
    whole = {"nodes": 4, "steps": 10, "time_s": 20, "bytes_per_node": 15e9}
    write_run(tmp_path / "sgp", "sgp", **whole)
    write_run(tmp_path / "sim", "ar_sgd", **whole, clock="simulated")
    for name in ("sgp", "sim"):
        assert main(["doctor", str(tmp_path / name)]) == 2
    sgp, simulated = capsys.readouterr().err.splitlines()
    assert sgp.endswith("/sgp: give a run of algo=ar_sgd, which all-reduces in every step.")
    assert simulated.endswith(
        "/sim: the run is simulated, so its network is known: give a real run."
    )


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a list": lambda run: (run / "summary.json").write_text("[1]"),
    "a pipe": lambda run: ((run / "summary.json").unlink(), os.mkfifo(run / "summary.json")),
    "no steps": lambda run: (run / "summary.json").write_text(summary_of(steps=0)),
    "a time in words": lambda run: (run / "summary.json").write_text(summary_of(time_s="long")),
    "only waiting": lambda run: (run / "summary.json").write_text(summary_of(waiting_share=1)),
    "too many nodes": lambda run: (run / "summary.json").write_text(summary_of(nodes=10**9)),
    "no settings": lambda run: (run / "config.yaml").write_text(""),
    "an algorithm in a word": lambda run: (run / "config.yaml").write_text("algo: ar_sgd"),
}


def summary_of(**changes: object) -> str:
    return json.dumps(
        {"clock": "wall", "nodes": 4, "steps": 10, "time_s": 20, "bytes_per_node": 15e9, **changes}
    )


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_refused_in_one_sentence(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("algo: {name: ar_sgd}")
    (run / "summary.json").write_text(summary_of())
    read_observation([str(run), "step.1=1s"])
    DAMAGE[damage](run)
    assert main(["doctor", str(run), "step.1=1s"]) == 2
    assert capsys.readouterr().err == f"sgp-run: {run}: this is not the folder of a finished run.\n"


def test_the_command_prints_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *TRANSFORMERS_3274.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "A step on 2 nodes takes 8 times as long: the network carried 1.54 to 1.76",
        "Gbit/s, 4 % of 40 Gbit/s.",
    ]
    assert max(map(len, lines)) <= 80
    assert lines[-3:] == [
        "Which method would help at this rate: sgp-run plan parameters=110000000",
        "bytes_per_parameter=4 step=0.5s nodes=2 devices=4 bandwidth=1.76Gbit/s",
        "cluster.collectives.ring_over=devices cluster.collectives.overlap=0",
    ]


def test_a_plan_at_the_rate_begins_with_the_observed_step() -> None:
    last = list(text_lines(diagnosed(TRANSFORMERS_3274)))[-1]
    made = compare(read_request([*last.split("sgp-run plan ")[1].split(), "methods=ar_sgd"]))
    assert made.data_parallel.timing.seconds == pytest.approx(4, rel=1e-3)


def test_the_command_imports_neither_hydra_nor_torch() -> None:
    code = (
        "import sys; from sgp_runner.cli.main import main; "
        f"main(['doctor', *{TRANSFORMERS_3274.split()}]); "
        "sys.exit(bool({'torch', 'hydra'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "two_nodes=4s parameters=1e9",
            "one_node: the time of a step on one node is missing: write one_node=0.5s.",
        ),
        (
            "one_node=4s parameters=1e9",
            "two_nodes: the time of a step on several nodes is missing: write two_nodes=4s, or "
            "step.8=4s for eight.",
        ),
        (
            "one_node=1s two_nodes=4s",
            "model: missing: write model=gpt2, or parameters=1e9.",
        ),
        (f"{TRANSFORMERS_3274} one_node=-1s", "one_node: '-1s' is negative; write for example "
         "10s or 1ms."),
        (
            f"{TRANSFORMERS_3274} bandwidth=40",
            "bandwidth: 40 without a unit is 40 bit/s: did you mean 40Gbit/s? Otherwise write "
            "40bit/s.",
        ),
        (f"{TRANSFORMERS_3274} traffic=zero", "traffic: 'zero' is not one of all_reduce, zero3."),
        (
            f"{TRANSFORMERS_3274} small=0.5",
            "small_gap: a smaller model needs its size and its gap: write small_gap=1s.",
        ),
        (
            f"{TRANSFORMERS_3274} small=2 small_gap=1s",
            "small: 2 must be less than 1: the smaller model's size.",
        ),
        (
            f"{TRANSFORMERS_3274} step.0=1s",
            "step.0: there is no such setting here. Did you mean 'step.N'? --help lists all.",
        ),
        ("nowhere", "nowhere: this is not the folder of a finished run."),
        (
            f"{TRANSFORMERS_3274} parameters=1_",
            "parameters: '1_' is not a number; write for example 7e9 or 110M.",
        ),
    ],
)  # fmt: skip
def test_a_request_that_cannot_work_is_one_sentence(
    arguments: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *arguments.split()]) == 2
    assert capsys.readouterr().err == f"sgp-run: {sentence}\n"
