"""How benchmarks count: literal values; and each section with small sizes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """``scripts/bench.py``, and ``benchmarks`` importable as it imports it."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    before = set(sys.modules)
    import bench

    yield bench
    for name in set(sys.modules) - before:
        if name == "bench" or name.partition(".")[0] == "benchmarks":
            del sys.modules[name]


def test_medians_quartiles_and_ratios_within_each_turn(bench: ModuleType) -> None:
    from benchmarks.measure import Goal, Result, ratio

    slow = Result("a", "ms", (50.0, 10.0, 20.0, 40.0, 30.0))
    assert (slow.median, slow.quartiles, slow.met) == (30.0, (20.0, 40.0), None)
    assert Result("once", "ms", (7.0,)).quartiles == (7.0, 7.0)
    both = ratio("a over b", slow.values, (25.0, 10.0, 16.0, 10.0, 15.0), Goal("at most", 2.0))
    assert (both.values, both.median, both.met) == ((2.0, 1.0, 1.25, 4.0, 2.0), 2.0, True)
    assert [Goal(relation, 2.0).met(2.0) for relation in ("at most", "less than", "at least")] == [True, False, True]
    assert bench.cells(both) == ["a over b", "2 x", "1.25 to 2", "at most 2", "met"]
    with pytest.raises(ValueError, match="argument 2 is longer"):
        ratio("one is missing", (1.0,), (1.0, 2.0))


def test_turns_are_interleaved_and_the_first_is_thrown_away(bench: ModuleType) -> None:
    from benchmarks.measure import interleaved

    calls: list[str] = []

    def counted(name: str) -> int:
        calls.append(name)
        return len(calls)

    assert interleaved({"a": lambda: counted("a"), "b": lambda: counted("b")}, repeats=2) == {"a": (3, 5), "b": (4, 6)}
    assert calls == ["a", "b"] * 3


def test_a_section_is_written_with_every_repeat_and_read_back(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import start_up
    from benchmarks.measure import Goal, Result, Skipped, Table, from_json

    table = Table("Times", (Result("a", "s", (1.0, 3.0, 2.0), Goal("less than", 2.0)), Result("b", "x", (1.5,))), "Of two things.")

    def measure() -> Iterator[Table]:
        yield table
        raise Skipped("There is no such device here.")

    monkeypatch.setattr(bench, "OUT", tmp_path)
    monkeypatch.setattr(start_up, "measure", measure)
    assert bench.main(["start_up"]) == 0
    facts, tables = from_json((tmp_path / "start_up.json").read_text())
    assert (facts["section"], tables) == ("start_up", [table, Table("Not run", text="There is no such device here.")])
    page = (tmp_path / "README.md").read_text()
    assert "| a | 2 s | 1.5 to 2.5 | less than 2 | missed |\n| b | 1.5 x | once |  |  |\n" in page
    assert "Goals met: 0 of 1." in page and "There is no such device here." in page
    shown = capsys.readouterr().out
    assert "missed" in shown and max(map(len, shown.splitlines())) <= 80


def test_an_unknown_section_is_refused(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["stepp"]) == 2
    assert capsys.readouterr().err.startswith("scripts/bench.py: 'stepp' is none of the sections ")


@pytest.mark.slow
def test_the_simulators_cost_with_small_sizes(bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from benchmarks import simulator

    monkeypatch.setattr(simulator, "RESULTS", tmp_path)
    monkeypatch.setattr(simulator, "WIDE", ("model=mlp", "model.hidden=[1000,1000]", "batch_size=8", "algo=sgp"))
    tables = list(simulator.measure(1, (8, 16), 5, 3, 4, (2, 4)))
    assert [table.title for table in tables] == ["The kernel", "Timing studies", "Learning", "Engines", "Memory"]
    assert all(value > 0 for table in tables for result in table.results for value in result.values)
    assert (tmp_path / "simulator.svg").exists()
