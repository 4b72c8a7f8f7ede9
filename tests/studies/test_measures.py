"""Measures of finished runs: which they are, their units, and where their numbers come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.studied import Finished

from sgp_runner.studies.measures import RunResult, measure_of
from sgp_runner.utils.errors import ConfigError


def finished(folder: Path, records: list[dict[str, object]]) -> RunResult:
    run = Finished(folder, 1.0, 10.0)
    lines = [json.dumps({"kind": "average", "time_s": 5.0, **record}) for record in records]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return RunResult(run, 10)


def test_bleu_is_a_quality_of_translations(tmp_path: Path) -> None:
    measure = measure_of("bleu")
    assert not measure.less_is_better and measure.amount("0.3 BLEU") == 0.3
    assert (measure.text(14.0241), measure.difference(-0.31)) == ("14.02", "0.31 BLEU")
    assert finished(tmp_path / "a", [{"epoch": 1, "loss": 3.4, "bleu": 14.0}]).value(measure) == 14
    assert RunResult(Finished(tmp_path / "b", float("inf"), 1.0), 10).value(measure) == 0
    with pytest.raises(ConfigError, match="bleu is not evaluated on this data: use loss"):
        finished(tmp_path / "c", [{"epoch": 1, "loss": 3.4}]).value(measure)


def test_bytes_to_a_target_are_those_of_the_evaluations(tmp_path: Path) -> None:
    records: list[dict[str, object]] = [
        {"epoch": 1, "loss": 2.0, "time_s": 5.0, "bytes_sent": 4000},
        {"epoch": 2, "loss": 1.0, "time_s": 9.0, "bytes_sent": 4400},
    ]
    result = finished(tmp_path / "a", records)
    assert result.costs("bytes") == [4000.0, 4400.0]
    assert result.reached(measure_of("bytes_to_loss(1.5)")) == (4200.0, 4400.0)
