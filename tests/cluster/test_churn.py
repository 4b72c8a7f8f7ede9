"""Churn: the times at which nodes are away, and runs that meet them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers.experiments import make_experiment
from helpers.refusals import refusal
from helpers.tiny import machines, run
from test_simulator import Custom

from sgp_runner.assembly.execution import refuse_other_settings
from sgp_runner.cli.main import main
from sgp_runner.cluster import churn
from sgp_runner.cluster.churn import Absences
from sgp_runner.cluster.faults import Event, Faults
from sgp_runner.cluster.rates import RateSchedule, piecewise
from sgp_runner.cluster.timetable import Timetable
from sgp_runner.config.experiment import digest_of
from sgp_runner.core.worker import Worker
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.seeding import seed_of

INF = float("inf")
OFTEN = Faults(churn_per_hour=360.0, absence_seconds=4.0)  # every 10 s


def times(rank: int, count: int, seed: int = 7) -> list[tuple[float, float]]:
    """The oracle: the first absences of a node."""
    random, now, out = np.random.default_rng(seed_of(seed, 206, rank)), 0.0, []
    for _ in range(count):
        leaves = now + random.exponential(10.0)
        now = leaves + random.exponential(4.0)
        out.append((leaves, now))
    return out


def during(absences: Absences, *where: float) -> list[tuple[float, float]]:
    rank, begin, end = where
    return [(absence.start, absence.stop) for absence in absences.during(int(rank), begin, end)]


def test_absences_depend_on_the_seed_and_the_original_rank_alone() -> None:
    absences, expected = Absences(OFTEN, 7, range(3)), times(2, 400)
    (first, back), (second, _) = expected[:2]
    assert during(absences, 2, 0.0, first) == expected[:1]
    assert during(absences, 2, 0.0, second) == expected[:2]
    assert during(absences, 2, back, second - 1e-9) == []
    assert during(absences, 2, 0.0, expected[399][0]) == expected
    assert during(absences, 2, first, first) == expected[:1]  # as before
    others = Absences(OFTEN, 7, (0, 2))  # without rank 1
    assert during(others, 1, 0.0, expected[9][0]) == expected[:10]
    assert during(others, 2, 0.0, 1000.0) == []  # a server
    assert during(Absences(OFTEN, 8, range(3)), 2, 0.0, expected[9][0]) != expected[:10]


def test_absences_have_the_means_that_they_promise() -> None:
    drawn = times(0, 20_000)
    assert during(Absences(OFTEN, 7, range(1)), 0, 0.0, drawn[-1][0]) == drawn
    away = sum(back - leaves for leaves, back in drawn)
    assert away / len(drawn) == pytest.approx(4.0, rel=0.03)
    assert (drawn[-1][1] - away) / len(drawn) == pytest.approx(10.0, rel=0.03)


def test_work_stands_still_while_its_node_is_away() -> None:
    schedule = Timetable(OFTEN, Absences(OFTEN, 7, range(2))).computing(1)
    known = RateSchedule(tuple((*interval, INF) for interval in times(1, 300)))
    for begin, end in ((0.0, 0.0), (0.0, 1.0), (0.0, 500.0), (37.0, 41.0), (90.5, 90.5)):
        assert schedule.finish(begin, end) == known.finish(begin, end)
    leaves, back = times(1, 1)[0]
    assert schedule.clear(leaves) == back
    assert schedule.finish(0.0, INF) == INF


def test_churn_and_other_faults_are_met_together() -> None:
    faults = Faults({1: 2.0}, {}, churn_per_hour=360.0, absence_seconds=4.0)
    together = Timetable(faults, Absences(faults, 7, range(2))).together(range(2), float)
    slowed = Timetable(faults, Absences(faults, 7, range(2))).computing(1)
    (leaves, back), (again, _) = times(1, 2)
    half = (leaves + min(1.0, again - back)) / 2
    assert slowed.finish(0.0, half) == pytest.approx(back + min(1.0, again - back))
    first = min([*times(0, 1), *times(1, 1)])
    assert together.clear(first[0]) >= first[1]


def test_a_run_meets_the_absences_of_its_nodes() -> None:
    async def body(worker: Worker) -> None:
        for _ in range(50):
            await worker.grad()

    result = run(Custom(body), 2, 1, faults=OFTEN, cluster=machines(seconds=2.0), seed=7)
    for rank in range(2):
        known = RateSchedule(tuple((*interval, INF) for interval in times(rank, 100)))
        now = 0.0
        for _ in range(50):
            now = known.finish(now, now + 2.0)
        assert result.simulation.machines.compute.busy_until[rank] == now


def test_a_node_that_would_leave_too_often_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(churn, "MAX_ABSENCES", 10)
    error = refusal(during, Absences(OFTEN, 7, range(1)), 0, 0.0, 3600.0)
    assert error.key == "faults.churn_per_hour"
    assert "more than 10 times in 1 h 00 min: use a smaller number." in error.sentence


def test_work_that_is_interrupted_too_often_is_refused() -> None:
    schedule = Timetable(OFTEN, Absences(OFTEN, 7, range(2))).link(1)  # 360 absences an hour
    assert schedule.finish(0.0, 100_000.0) > 100_000.0
    assert str(refusal(schedule.finish, 50.0, 100_060.0)) == (
        "faults.churn_per_hour: a message, gradient or collective that takes 27 h 47 min would be "
        "interrupted about 10,001 times, and at most 10,000 are simulated: use a smaller number, "
        "or a faster cluster."
    )
    with pytest.raises(ConfigError, match="about 10,001 times"):
        Timetable(OFTEN, Absences(OFTEN, 7, range(2))).together(range(2), float).finish(0, 50_005)


def test_a_message_that_is_interrupted_too_often_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = (
        "model=timing_only model.sample_steps=3 nodes=5 faults=churn cluster.bandwidth=1000bit/s"
    )
    assert main(overrides.split()) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "sgp-run: faults.churn_per_hour: a message, gradient or collective that takes 227 h 10 min "
        "would be interrupted about 13,630 times, and at most 10,000 are simulated: use a smaller "
        "number, or a faster cluster."
    )


def test_the_schedule_of_many_absences_looks_at_each_a_few_times() -> None:
    looked = 0

    class Counted:
        def __init__(self, start: float) -> None:
            self.start = start

        @property
        def stop(self) -> float:
            nonlocal looked
            looked += 1
            return self.start + 0.5

    schedule = piecewise([Counted(i) for i in range(3000)], lambda now: 2.0 if now else 1.0)
    assert schedule.pieces == tuple((i, i + 0.5, 2.0) for i in range(3000))
    assert looked <= 5 * 3000


def test_intervals_that_overlap_keep_their_order() -> None:
    events = [
        Event("slow_node", (0,), start, start + length, factor=1 + start)
        for start, length in np.random.default_rng(3).integers(1, 9, (40, 2)).tolist()
    ]
    pieces = piecewise(events, lambda now: float(hash(tuple(event.factor for event in now)))).pieces
    bounds = sorted({moment for event in events for moment in (event.start, event.stop)})
    assert [piece[:2] for piece in pieces] == list(pairwise(bounds))
    for start, stop, found in pieces:
        now = [event for event in events if event.start <= start and stop <= event.stop]
        assert found == float(hash(tuple(event.factor for event in now)))


def test_runs_from_before_churn_keep_their_identity(tmp_path: Path) -> None:
    made = make_experiment(tmp_path, "model=timing_only")
    path = made.directory / "config.yaml"
    config = yaml.safe_load(path.read_text())
    assert (config["faults"].pop("churn_per_hour"), config["faults"].pop("absence_seconds")) == (
        0.0,
        600.0,
    )
    path.write_text(yaml.safe_dump(config))
    refuse_other_settings(made)
    assert digest_of({**made.settings, "faults": config["faults"]}) == made.digest
    assert make_experiment(tmp_path, "model=timing_only", "faults=churn").digest != made.digest


def test_events_beside_churn() -> None:
    faults = Faults(events=[Event("pause", (0,), 3.0, 5.0)], churn_per_hour=1e-9)
    schedule = Timetable(faults, Absences(faults, 1, range(1))).awake(0)
    assert (schedule.clear(4.0), schedule.finish(2.0, 4.0)) == (5.0, 6.0)
