"""How benchmarks count: literal values; and each section with small sizes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import bench
from benchmarks import gpu, growth, hosts, memory, processes, start_up, step
from benchmarks.measure import (
    Result,
    Skipped,
    Table,
    as_json,
    from_json,
    interleaved,
    ratio,
)


def test_medians_quartiles_and_ratios_within_each_turn() -> None:
    slow = Result("a", "ms", (50.0, 10.0, 20.0, 40.0, 30.0))
    assert (slow.median, slow.quartiles, slow.met) == (30.0, (20.0, 40.0), None)
    assert Result("once", "ms", (7.0,)).quartiles == (7.0, 7.0)
    both = ratio("a over b", slow.values, (25.0, 10.0, 16.0, 10.0, 15.0), 2.0)
    assert (both.values, both.median, both.met) == ((2.0, 1.0, 1.25, 4.0, 2.0), 2.0, True)
    assert Result("a", "ms", (2.0,), goal=1.9).met is False
    assert bench.cells(both) == ["a over b", "2 x", "1.25 to 2", "at most 2", "met"]
    with pytest.raises(ValueError, match="argument 2 is longer"):
        ratio("one is missing", (1.0,), (1.0, 2.0))


def test_turns_are_interleaved_and_the_first_is_thrown_away() -> None:
    calls: list[str] = []

    def counted(name: str) -> int:
        calls.append(name)
        return len(calls)

    assert interleaved({"a": lambda: counted("a"), "b": lambda: counted("b")}, repeats=2) == {
        "a": (3, 5),
        "b": (4, 6),
    }
    assert calls == ["a", "b"] * 3


def test_a_section_is_written_with_every_repeat_and_read_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = Table(
        "Times",
        (Result("a", "s", (1.0, 3.0, 2.0), 1.9), Result("b", "x", (1.5,))),
        "Of two things.",
    )

    def measure() -> Iterator[Table]:
        yield table
        raise Skipped("There is no such device here.")

    monkeypatch.setattr(bench, "OUT", tmp_path)
    monkeypatch.setattr(start_up, "measure", measure)
    assert bench.main(["start_up"]) == 0
    facts, tables = from_json((tmp_path / "start_up.json").read_text())
    assert (facts["section"], tables) == (
        "start_up",
        [table, Table("Not run", text="There is no such device here.")],
    )
    page = (tmp_path / "README.md").read_text()
    assert "| a | 2 s | 1.5 to 2.5 | at most 1.9 | missed |\n| b | 1.5 x | once |  |  |\n" in page
    assert "Goals met: 0 of 1." in page and "There is no such device here." in page
    shown = capsys.readouterr().out
    assert "missed" in shown and max(map(len, shown.splitlines())) <= 80


def test_ratios_are_shown_as_a_matrix_of_ours_over_the_others() -> None:
    ratios = Result("a / b", "x", (0.5, 0.7, 0.6)), Result("c / d", "x", (2.0,))
    assert list(bench.lines_of(Table("Ratios", ratios, is_matrix=True))) == [
        "### Ratios",
        "",
        "|  | b | d |\n| --- | ---: | ---: |\n| a | 0.60 |  |\n| c |  | 2.00 |",
        "",
    ]


def test_a_picture_has_a_rivals_better_time_and_the_page_begins_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = dict.fromkeys([*step.OURS, step.AVERAGER], 60.0)
    times |= {"DDP": 107.0, "DDP, fused SGD": 92.0, step.PLAIN: 50.0}
    table = Table("Times", tuple(Result(name, "ms", (value,)) for name, value in times.items()))
    svg = step.picture(table)
    assert svg.count("<rect") == 7 and ">92 ms<" in svg and ">107 ms<" not in svg
    monkeypatch.setattr(bench, "OUT", tmp_path)
    (tmp_path / "step.json").write_text(as_json([table], bench.facts_of("step")))
    assert bench.main(["--page"]) == 0
    assert (tmp_path / "step.svg").read_text() == svg
    assert "\n## step\n\n![Times](step.svg)\n" in (tmp_path / "README.md").read_text()


def test_a_process_that_makes_several_runs_is_measured() -> None:
    after = dict.fromkeys(processes.UNITS, 3 * 2**20)
    table = processes.table("Runs", [[after] * 5 + [{**after, "threads": after["threads"] + 1}]])
    assert [
        (result.what, result.median, result.met) for result in table.results if result.goal == 0
    ] == [
        ("growth of tensors", 0.0, True),
        ("growth of threads", 1.0, False),
        ("growth of files", 0.0, True),
    ]


def test_an_unknown_section_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["stepp"]) == 2
    assert capsys.readouterr().err.startswith(
        "scripts/bench.py: 'stepp' is not a section; choose from "
    )


def test_the_images_per_second_of_a_card_are_set_against_its_published_rate() -> None:
    table = gpu.throughput("NVIDIA A100-SXM4-80GB", {"SGP": (1271.3936430317848,)})
    assert [(result.what, round(result.median, 6)) for result in table.results] == [
        ("SGP", 1271.393643),
        ("SGP, of the bound", 10.0),
    ]
    other = gpu.throughput("NVIDIA H100 PCIe", {}), gpu.throughput("another card", {"SGP": (1.0,)})
    assert [made.text for made in (table, *other)] == [
        "NVIDIA A100-SXM4-80GB: 312 Tflop/s (NVIDIA A100 datasheet), at most 12714 images/s.",
        "NVIDIA H100 PCIe: 756.5 Tflop/s (NVIDIA H100 datasheet, PCIe), at most 30827 images/s.",
        "There is no published rate for the another card here.",
    ]


@pytest.mark.slow
@pytest.mark.timeout(9000)
def test_steps_are_measured_beside_what_one_would_use_instead() -> None:
    tables = {
        table.title: table
        for table in step.measure(repeats=2, steps=2, processes=2, hidden=8, batch_size=4)
    }
    assert [result.what for result in tables["Time of a step"].results[:8]] == [
        *(*step.OURS, "SGP by Averager", "DDP", "DDP, fused SGD")
    ]
    assert [(result.what, result.goal) for result in tables["Goals"].results] == [
        ("SGP / DDP, fused SGD", 0.60),
        ("AR-SGD / DDP, fused SGD", 0.72),
        ("SGP over TCP / DDP, fused SGD", 0.90),
        ("OSGP / SGP", 1.02),
        ("SGP by Averager / SGP", 1.1),
        ("our SGD / PyTorch's SGD, fused", 1.1),
    ]
    assert all(value > 0 for result in tables["Time of a step"].results for value in result.values)
    assert {len(result.values) for table in tables.values() for result in table.results} == {2}


@pytest.mark.slow
def test_start_up_is_measured_from_the_start_of_the_process() -> None:
    [table] = start_up.measure(repeats=1)
    assert [result.what for result in table.results] == [
        *start_up.ANSWERS,
        *start_up.FIRST_STEPS,
    ]
    assert all(result.values[0] > 0 for result in table.results)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_memory_of_a_worker_with_a_smaller_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "WIDE", ("model=mlp", "model.hidden=[1000,1000]", "batch_size=8"))
    monkeypatch.setattr(memory, "KEPT", {"algo=sgp": 3})
    (table,) = memory.measure(1, (2, 4))
    assert all(value > 0 for result in table.results for value in result.values)


def test_exponents_follow_from_increases() -> None:
    for sizes, seconds, found in (
        ([10, 100, 1000], [5.0, 5.9, 14.9], 1.0),
        ([10, 20, 40], [3.0, 6.0, 18.0], 2.0),
        ([10, 100, 1000], [3.0, 2.9, 3.0], 1.0),  # 10 ms, then 100
    ):
        assert growth.exponent(sizes, seconds) == pytest.approx(found)


@pytest.mark.slow
def test_growth_is_measured_in_processor_time() -> None:
    times, exponents = growth.measure(nodes=(4, 8, 16), steps=(5, 10, 20), runs=(2, 4, 8))
    assert len(times.results) == 3 * len(exponents.results) == 15
    assert all(result.median > 0.1 for result in times.results)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_loops_of_other_libraries_are_measured_with_few_steps() -> None:
    if not all(map(find_spec, ("accelerate", "transformers", "lightning"))):
        pytest.skip("needs the extra hosts")
    times, ratios = hosts.measure(steps=8, repeats=1)
    assert [result.what for result in times.results] == [*hosts.LOOPS]
    assert all(result.values[0] > 0 for result in times.results)
    assert [result.what for result in ratios.results] == [f"{x} / DDP" for x in [*hosts.LOOPS][1:]]
