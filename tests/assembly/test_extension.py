from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from sgp_runner.assembly import execution
from sgp_runner.cli.main import main
from sgp_runner.recording.recorder import write_summary

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

TINY = (
    *("model=quadratic", "data.samples=64", "data.dimension=4", "nodes=2", "batch_size=8"),
    *("logger=jsonl", "name=mine", "checkpoint.keep_last=true", "optim.schedule=constant"),
)


def results(folder: str) -> tuple[list[dict[str, object]], dict[str, object]]:
    """The records and the configuration of the run, without real time and place."""
    directory = Path(folder, "runs/mine")
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1].pop("real_s") > 0 and lines[-1].pop("run_dir")
    return lines, yaml.safe_load((directory / "config.yaml").read_text()) | {"results": ""}


@pytest.mark.parametrize(
    "overrides",
    [
        ["algo=sgp", "nodes=4"],
        ["algo=slowmo", "algo.base=osgp", "algo.tau=5"],
        ["algo=ad_psgd", "nodes=4"],
        ["algo=gap_aware", "checkpoint.every_steps=10", "optim.schedule=inverse_sqrt"],
    ],
    ids=lambda overrides: overrides[0],
)
def test_an_extended_run_has_the_bytes_of_one_as_long_from_the_start(
    overrides: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, *overrides, "epochs=9"]) == 0
    (checkpoint,) = Path("results/runs/mine/checkpoints").iterdir()
    capsys.readouterr()
    assert main([*TINY, *overrides, "epochs=9"]) == 0
    assert "This run has finished already" in capsys.readouterr().out
    assert main([*TINY, *overrides, "epochs=14"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Extending the run from 9 epochs to 14.\n")
    assert f"resumes from {checkpoint.name.replace('-', ' ')}.\n" in out
    assert main([*TINY, *overrides, "epochs=14", "results=whole"]) == 0
    assert results("results") == results("whole")


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("optim.schedule=cosine", "its optim.schedule depends on the number of epochs"),
        ("checkpoint.keep_last=false", "it has kept no checkpoint (checkpoint.keep_last=true "),
        ("network=gloo", "only simulated runs can be"),
    ],
)
def test_a_run_that_cannot_be_extended_says_why_and_stays(
    override: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, override, "epochs=2"]) == 0
    before = {path: path.read_bytes() for path in Path("results").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main([*TINY, override, "epochs=4"]) == 2
    assert capsys.readouterr().err.startswith(
        f"sgp-run: epochs: the run in results/runs/mine has 2 and cannot be extended: {reason}"
    )
    assert {path: path.read_bytes() for path in before} == before
    assert main([*TINY, override, "epochs=1"]) == 2
    assert "epochs is 2.0 there and 1.0 here" in capsys.readouterr().err


@pytest.mark.parametrize(("keeps", "left"), [("true", ["step-6"]), ("false", [])])
def test_checkpoints_left_by_a_kill_are_removed_at_the_next_start(
    keeps: str, left: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next start may leave out checkpoint.keep_last."""
    overrides = [*TINY, "epochs=2", "checkpoint.every_steps=2", "checkpoint.keep=9"]
    with monkeypatch.context() as patch:
        patch.setattr(execution, "write_summary", write_and_interrupt)
        assert main([*overrides, f"checkpoint.keep_last={keeps}"]) == 130
    folder = Path("results/runs/mine/checkpoints")
    assert len([*folder.iterdir()]) > 1
    assert main([*overrides, "checkpoint.keep_last=false"]) == 0
    assert "This run has finished already" in capsys.readouterr().out
    assert [path.name for path in folder.glob("*")] == left and folder.exists() == bool(left)


def write_and_interrupt(directory: Path, summary: Mapping[str, object]) -> None:
    write_summary(directory, summary)
    raise KeyboardInterrupt


def test_an_extension_that_is_interrupted_is_resumed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the checkpoints were adopted, before the configuration is written."""
    assert main([*TINY, "epochs=9"]) == 0

    def interrupted(*arguments: object) -> None:
        raise OSError("interrupted")

    with monkeypatch.context() as context:
        context.setattr(execution, "prepare", interrupted)
        assert main([*TINY, "epochs=14"]) == 1
    assert main([*TINY, "epochs=14"]) == 0
    assert "resumes from step " in capsys.readouterr().out
    assert main([*TINY, "epochs=14", "results=whole"]) == 0
    assert results("results") == results("whole")
