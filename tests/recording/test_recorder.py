from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from sgp_runner.recording.recorder import (
    Position,
    Recorder,
    read_metrics,
    read_summary,
    write_summary,
)


class Listening:
    def __init__(self) -> None:
        self.records: list[dict[str, object]] = []
        self.ends: list[Mapping[str, object] | None] = []

    def write(self, record: Mapping[str, object]) -> None:
        self.records.append(dict(record))

    def finish(self, summary: Mapping[str, object] | None) -> None:
        self.ends.append(summary)


def train(rank: int, step: int, time_s: float, loss: float = 0.5) -> dict[str, object]:
    return {"kind": "train", "rank": rank, "step": step, "time_s": time_s, "loss": loss}


def test_each_record_is_a_line_on_disk_before_the_listeners_see_it(tmp_path: Path) -> None:
    listener = Listening()
    recorder = Recorder(tmp_path / "new" / "run", 0, (listener,))
    recorder.write(train(0, 1, 0.25))
    assert (tmp_path / "new" / "run" / "metrics.jsonl").read_text() == (
        '{"kind": "train", "rank": 0, "step": 1, "time_s": 0.25, "loss": 0.5}\n'
    )
    recorder.finish({"time_s": 0.25, "average": 0.75})
    recorder.finish(None)
    assert read_metrics(tmp_path / "new" / "run")[-1] == {
        "kind": "summary",
        "time_s": 0.25,
        "average": 0.75,
    }
    assert (listener.records, listener.ends) == (
        [train(0, 1, 0.25)],
        [{"time_s": 0.25, "average": 0.75}],
    )


def test_leaving_without_finish_tells_the_listeners(tmp_path: Path) -> None:
    listener = Listening()
    with pytest.raises(ZeroDivisionError), Recorder(tmp_path, 0, (listener,)):
        raise ZeroDivisionError
    assert listener.ends == [None]
    assert read_metrics(tmp_path) == []


def test_the_ranks_are_merged_in_order_of_time_with_the_summary_last(tmp_path: Path) -> None:
    for rank, times in ((0, (1.0, 3.0)), (2, (1.0, 4.0)), (10, (0.5, 3.0))):
        recorder = Recorder(tmp_path, rank, ())
        for step, time_s in enumerate(times):
            recorder.write(train(rank, step, time_s))
        recorder.finish({"time_s": 3.0} if rank == 0 else None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "metrics.jsonl",
        "metrics.rank10.jsonl",
        "metrics.rank2.jsonl",
    ]
    merged = [(record.get("rank"), record["time_s"]) for record in read_metrics(tmp_path)]
    assert merged == [(10, 0.5), (0, 1.0), (2, 1.0), (0, 3.0), (10, 3.0), (2, 4.0), (None, 3.0)]


def test_a_half_written_line_is_ignored_and_then_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = json.dumps(train(0, 1, 0.5)) + "\n"
    path.write_text(whole + whole[:20])
    assert read_metrics(tmp_path) == [train(0, 1, 0.5)]
    with Recorder(tmp_path, 0, (), Position(len(whole))) as recorder:
        recorder.write(train(0, 2, 1.0))
    assert read_metrics(tmp_path) == [train(0, 1, 0.5), train(0, 2, 1.0)]

    path.write_text("{\n" + whole)
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 1: not a JSON object"):
        read_metrics(tmp_path)


def test_values_that_json_lacks_are_null_and_spelt_out(tmp_path: Path) -> None:
    listener = Listening()
    with Recorder(tmp_path, 0, (listener,)) as recorder:
        recorder.write(
            {"kind": "average", "time_s": 1.0, "loss": math.inf, "accuracy": None, "bleu": math.nan}
        )
    assert read_metrics(tmp_path) == [
        {
            "kind": "average",
            "time_s": 1.0,
            "loss": None,
            "accuracy": None,
            "bleu": None,
            "nonfinite": {"loss": "inf", "bleu": "nan"},
        }
    ]
    assert listener.records[0]["loss"] == math.inf


def test_a_record_that_cannot_be_written_leaves_no_trace(tmp_path: Path) -> None:
    with Recorder(tmp_path, 0, ()) as recorder:
        for record, error, message in (
            ({"kind": "trian", "time_s": 1.0}, ValueError, "needs a kind"),
            ({"kind": "train"}, ValueError, "and a time_s"),
            (
                {"kind": "train", "time_s": 1.0, "loss": object()},
                TypeError,
                "not JSON serializable",
            ),
        ):
            with pytest.raises(error, match=message):
                recorder.write(record)
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_a_resumed_run_records_again_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    with Recorder(tmp_path, 0, ()) as recorder:
        recorder.write(train(0, 1, 0.5))
        recorder.write(train(0, 2, 1.0))
        start = recorder.position()
        recorder.write(train(0, 3, 1.5))
        recorder.finish({"time_s": 0.5})
    with Recorder(tmp_path, 0, (), start) as recorder:
        recorder.write(train(0, 3, 1.25))
    assert [record["time_s"] for record in read_metrics(tmp_path)] == [0.5, 1.0, 1.25]


def test_a_summary_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    assert read_summary(tmp_path) is None
    (tmp_path / "summary.json").write_text('{"average": 0.')
    assert read_summary(tmp_path) is None
    write_summary(tmp_path, {"name": "τ-OSGP", "average": 0.75, "worker_max": math.nan})
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
    assert read_summary(tmp_path) == {
        "name": "τ-OSGP",
        "average": 0.75,
        "worker_max": None,
        "nonfinite": {"worker_max": "nan"},
    }
