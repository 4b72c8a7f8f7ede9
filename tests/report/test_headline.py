"""Title and first sentence of a report, on runs with known numbers."""

from __future__ import annotations

from pathlib import Path

from helpers.report_runs import settings_of, write_run

from sgp_runner.report.rank.headline import comparison_title, headline
from sgp_runner.report.rank.ranking import rankings

EARLY = [[0.1]] * 5  # evaluations before a target, so that the time to it is ranked
SLOW, FAST = [*EARLY, [0.5], [0.7], [0.9]], [*EARLY, [0.7], [0.9], [0.92]]


def answer(root: Path, target: float | None = 0.8) -> str:
    return headline(rankings(settings_of(root), target))


def title(root: Path) -> str:
    return comparison_title(settings_of(root))


def test_the_fastest_is_named_with_its_time_clock_and_speed_up(tmp_path: Path) -> None:
    write_run(tmp_path, "ar", SLOW, algorithm="AR-SGD")
    write_run(tmp_path, "sgp", FAST)
    assert title(tmp_path) == "AR-SGD and SGP on 2 nodes: mlp on digits"
    assert answer(tmp_path) == (
        "SGP is fastest: 1 min 05 s of simulated time to 80 % accuracy, 1.2 times faster than "
        "AR-SGD."
    )


def test_equal_times_share_the_first_place_and_the_next_is_compared(tmp_path: Path) -> None:
    write_run(tmp_path, "ar", FAST, algorithm="AR-SGD")
    write_run(tmp_path, "sgp", FAST)
    assert answer(tmp_path) == (
        "AR-SGD and SGP are equally fast, and fastest: 1 min 05 s of simulated time to 80 % "
        "accuracy."
    )
    write_run(tmp_path, "osgp", SLOW, algorithm="OSGP")
    assert answer(tmp_path).endswith("accuracy, 1.2 times faster than OSGP.")


def test_seeds_that_overlap_and_seeds_without_the_target_are_told(tmp_path: Path) -> None:
    for seed, seconds in ((1, 10.0), (2, 14.0)):
        write_run(tmp_path, f"sgp{seed}", FAST, seed=seed, seconds=seconds)
        write_run(
            tmp_path, f"ar{seed}", SLOW, algorithm="AR-SGD", seed=seed, seconds=0.96 * seconds
        )
    assert answer(tmp_path).endswith(
        "1.1 times faster than AR-SGD. Its seeds overlap with those of AR-SGD."
    )
    other = tmp_path / "other"
    write_run(other, "sgp1", FAST, seed=1)
    write_run(other, "sgp2", [[0.1]] * 8, seed=2)
    assert answer(other) == (
        "SGP is fastest: 1 min 05 s of simulated time to 80 % accuracy (in 1 of 2 seeds)."
    )


def test_few_evaluations_name_the_best_quality_and_an_unreached_target_nothing(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "ar", [[0.85], [0.9]], algorithm="AR-SGD")
    write_run(tmp_path, "sgp", [[0.9], [0.95]])
    assert answer(tmp_path) == (
        "SGP has the best accuracy: 95.0 %. Fewer than five evaluations before the target: ranked "
        "by accuracy."
    )
    assert answer(tmp_path, 0.99) == "No run reached 99 % accuracy."


def test_more_algorithms_and_tasks_are_counted(tmp_path: Path) -> None:
    for number in range(5):
        write_run(tmp_path, f"r{number}", FAST, algorithm=f"A{number}", nodes=2 + number % 2)
    assert title(tmp_path) == "5 algorithms on 2 and 3 nodes: mlp on digits"
    assert answer(tmp_path).startswith("5 of 5 settings are equally fast, and fastest: ")
