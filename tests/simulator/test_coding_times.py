"""The time that coding takes, by hand: 3 numbers take 1 s to encode and 0.5 s to decode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.clusters import changed
from helpers.experiments import make_experiment, summary_of
from helpers.tiny import machines, run

from sgp_runner.algorithms.acp_sgd import ACPSGD
from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.choco_sgd import ChocoSGD
from sgp_runner.algorithms.onebit_adam import OneBitAdam
from sgp_runner.algorithms.pipe_sgd import PipeSGD
from sgp_runner.algorithms.powersgd import PowerSGD
from sgp_runner.cluster.coding_times import CodingTimes
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.config.choices import groups
from sgp_runner.core.codecs.all_codecs import CODECS
from sgp_runner.core.codecs.low_rank import LowRank
from sgp_runner.core.codecs.quantised import Int8
from sgp_runner.core.optim import Adam, Constant
from sgp_runner.topology.graphs import Ring
from sgp_runner.utils.errors import ConfigError


def coding(overlap: bool = False, cluster: Cluster | None = None) -> Cluster:
    """A gradient takes 1 s; a message of three numbers as int8 and a scale takes 1 s."""
    encode, decode = dict.fromkeys(CODECS, 1 / 3), dict.fromkeys(CODECS, 1 / 6)
    return replace(cluster or machines(bandwidth=56.0), codecs=CodingTimes(encode, decode, overlap))


def ends(algo: Any, steps: int, cluster: Cluster, **how: Any) -> list[float]:
    """When each step of each of two nodes ends, by rank and step."""
    trace = run(algo, 2, steps, cluster=cluster, **how).trace
    return [time for _, _, time in sorted((rank, step, time) for time, rank, step in trace)]


def test_every_codec_that_can_be_chosen_may_take_time() -> None:
    variants = {"sign_l2", "top_k_2bit"}  # of sign and top_k
    assert {*groups()["codec"]} - {*CODECS} == {"none", *variants}
    assert LowRank(2).work([(8, 5), (7,), (1, 1)]) == 2 * 8 * 5
    assert CODECS["int8"].work([(8, 5), (7,)]) == 47


def test_coding_takes_no_time_by_default() -> None:
    result = run(ARSGD(codec=Int8()), 2, 2, cluster=machines(bandwidth=56.0))
    assert [time for time, *_ in result.trace] == [2, 2, 4, 4]
    assert result.simulation.coding == {}


@pytest.mark.parametrize("overlap", [False, True])
def test_a_coded_mean_waits_for_coding(overlap: bool) -> None:
    """Gradient 0-1, encoding 1-2, all-gather 2-3, own message decoded 2-2.5, both messages 3-4."""
    result = run(ARSGD(codec=Int8()), 2, 2, cluster=coding(overlap))
    assert [time for time, *_ in result.trace] == [4, 4, 8, 8]
    assert result.simulation.coding == {"coding_s": pytest.approx(2 * 2.5)}


AT_ONCE = machines()  # their messages are instant
CHOCO, INT8 = ChocoSGD(Ring(), Int8(), layout="released"), ARSGD(codec=Int8())


@pytest.mark.parametrize(
    ("algo", "steps", "cluster", "how", "times"),
    [
        # Gossip codes before the next gradient or beside it. In turn: gradient 0-1, encoding 1-2,
        # message 2-3, own decoding 2-2.5, gradient 2.5-3.5, the received message decoded 3.5-4.
        (CHOCO, 2, coding(), {}, 2 * [2.5, 4.0]),
        # Overlapped: gradient 1-2, message 2-3 as before, decoded 3-3.5.
        (CHOCO, 2, coding(overlap=True), {}, 2 * [1.0, 3.5]),
        # Factors take half of the time each: a gradient of 1 s, factors of 0.5 s, and two products
        # of 0.5 s.
        (
            PowerSGD(1),
            2,
            coding(cluster=AT_ONCE),
            {"shapes": {"a": (3, 1)}},
            pytest.approx(2 * [3.0, 6.0]),
        ),
        (
            ACPSGD(1),
            2,
            coding(cluster=AT_ONCE),
            {"shapes": {"a": (3, 1)}},
            pytest.approx(2 * [2.5, 5.0]),
        ),
        # A slow node codes slowly.
        (INT8, 1, coding(cluster=machines(factors={1: 2.0})), {}, [5.0, 7.0]),
        # Coding is a task of shared processors. On one core, gradients end at 2, encoding at 4, own
        # decoding at 5, decoding at 7.
        (
            INT8,
            1,
            coding(cluster=changed(AT_ONCE, cores_per_host=1.0)),
            {},
            pytest.approx([7.0, 7.0]),
        ),
    ],
)
def test_ends_of_steps_with_coding_by_hand(
    algo: Any, steps: int, cluster: Cluster, how: dict[str, Any], times: Any
) -> None:
    assert ends(algo, steps, cluster, **how) == times


def test_coding_on_shared_processors_does_not_overlap() -> None:
    with pytest.raises(ConfigError, match="cluster.codecs.overlap"):
        coding(overlap=True, cluster=changed(machines(), cores_per_host=1.0))


def test_a_gradient_waits_for_coding_in_the_background_unless_it_overlaps() -> None:
    """Messages are instant. The ring's chunks have 2 and 1 numbers. In the first step, rank 0
    encodes 2 numbers 1-1.67 and codes 1 number 1.67-2.33, and rank 1 codes the others in 1.67-3.
    """
    cluster = coding(cluster=machines())
    first = [3 + 1 / 3, 3 + 1 / 6]
    assert ends(PipeSGD(depth=1, compression="truncate16"), 1, cluster) == pytest.approx(first)
    two = PipeSGD(depth=2, compression="truncate16")
    # In thirds: gradients 5-8 and 4-7 follow, rank 1 codes the first chunk 7-11 and encodes 11-12.
    assert ends(two, 2, cluster)[::2] == pytest.approx([5 / 3, 4 / 3])
    # Gradients 3-6 begin at once. Rank 0 codes 3-5, 5-7 and 7-9, and decodes 9-10; rank 1 codes
    # 3-4, 5-9 and 9-10, and decodes 10-10.5.
    beside = coding(overlap=True, cluster=machines())
    assert ends(two, 3, beside)[:2] == pytest.approx([1, 10 / 3])
    assert ends(two, 3, beside)[3:5] == pytest.approx([1, 10.5 / 3])


@pytest.mark.parametrize("overlap", [False, True])
def test_a_mean_of_signs_encodes_a_vector_and_a_chunk_and_decodes_three_vectors_and_a_chunk(
    overlap: bool,
) -> None:
    """Gradient 0-1, encoding 1-2, own message decoded 2-2.5, messages of 5 bytes 2.5-3.5, decoded
    3.5-4, chunks of 1.5 numbers encoded 4-4.5 and decoded 4.5-4.75, gathered 4.75-5.75, decoded
    5.75-6.25. The first step warms up. Messages leave after all earlier coding, so they do not
    overlap it.
    """
    cluster = coding(overlap, machines(bandwidth=40.0))
    times = ends(OneBitAdam(warmup_epochs=0.1), 3, cluster, optim=Adam(Constant()))[:3]
    assert [times[2] - times[1], times[1] - times[0]] == pytest.approx([6.25, 6.25])


def test_coding_scales_with_the_timed_model(tmp_path: Any) -> None:
    """7e9 numbers, 2 ns to encode, 1 ns to decode; two nodes decode three messages in a step."""
    overrides = "nodes=2 batch_size=480 epochs=2 timed_as.model=big timed_as.num_parameters=7e9"
    times = "{encode_seconds: {int8: 2ns}, decode_seconds: {int8: 1ns}}"
    experiment = make_experiment(
        tmp_path,
        *("model=mlp", "algo=ar_sgd", "algo.codec=int8", *overrides.split()),
        *("cluster.step_seconds.big=1s", f"cluster.codecs={times}"),
    )
    summary = summary_of(experiment)
    assert summary["coding_s"] == pytest.approx(summary["steps"] * 7 * (2 + 3))


@pytest.mark.parametrize(
    ("times", "sentence"),
    [
        ({"encode_seconds": {"int8": -1.0}}, "cluster.codecs.encode_seconds.int8: -1.0 must be"),
        (
            {"decode_seconds": {"int9": 1.0}},
            "cluster.codecs.decode_seconds.int9: there is no such codec; remove it, or use one of",
        ),
    ],
)
def test_refused_times(times: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        CodingTimes(**times).check(CODECS)


def test_a_codec_pays_on_slow_links_alone_if_coding_takes_time(tmp_path: Any) -> None:
    times = {}
    for rate in ("100Mbit/s", "100Gbit/s"):
        for codec in ("none", "int8"):
            overrides = ("data.train_size=64", "data.valid_size=32", "logger=jsonl", "nodes=4")
            experiment = make_experiment(
                tmp_path,
                *("model=gpt", "cluster=cpu_nodes", "algo=ar_sgd", f"algo.codec={codec}"),
                *(*overrides, f"cluster.bandwidth={rate}"),
            )
            times[rate, codec] = summary_of(experiment)["time_s"]
    assert times["100Mbit/s", "int8"] < times["100Mbit/s", "none"]
    assert times["100Gbit/s", "int8"] > times["100Gbit/s", "none"]
