"""Full disks and damaged files: one sentence, and what was recorded before is whole."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.experiments import make_experiment

from sgp_runner.cli.main import main
from sgp_runner.recording.checkpoint import invalid_reason, saved_steps
from sgp_runner.recording.recorder import Position, Recorder, read_metrics, write_summary
from sgp_runner.utils.errors import CannotWrite, ConfigError

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

TINY = [
    "model=quadratic",
    "data.samples=64",
    "data.dimension=4",
    "nodes=2",
    "epochs=20",
    "logger=jsonl",
    "log_every=1",
    "name=mine",
]


@contextmanager
def files_up_to(num_bytes: int) -> Iterator[None]:
    """Limit the size of a file, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_record_is_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    with Recorder(tmp_path, 0, ()) as recorder:
        recorder.write({"kind": "train", "time_s": 0.0})
        with (
            files_up_to(60),
            pytest.raises(
                CannotWrite,
                match=r"cannot write \S+/metrics.jsonl: File too large; earlier records",
            ),
        ):
            recorder.write({"kind": "train", "time_s": 1.0})
        assert recorder.path.read_text() == '{"kind": "train", "time_s": 0.0}\n'
        recorder.write({"kind": "train", "time_s": 2.0})
    assert [record["time_s"] for record in read_metrics(tmp_path)] == [0.0, 2.0]


def test_a_summary_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    with files_up_to(10), pytest.raises(CannotWrite, match=r"summary.json: File too large"):
        write_summary(tmp_path, {"average": 0.75})
    assert list(tmp_path.iterdir()) == []


# Settings, a limit that records reach and checkpoints do not, and one that checkpoints exceed. What
# real ranks meet in has some 16 kB.
LIMITS = {"sim": ([], 5000, 1500), "gloo": (["data.dimension=4000", "epochs=60"], 45_000, 20_000)}


@pytest.mark.parametrize("network", LIMITS)
def test_a_run_on_a_full_disk_stops_with_a_sentence_and_goes_on_later(
    network: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more, limit, _ = LIMITS[network]
    overrides = [*TINY, f"network={network}", "checkpoint.every_steps=4", *more]
    with files_up_to(limit):
        assert main(overrides) == 1
    assert re.fullmatch(
        "sgp-run: cannot write results/runs/mine/metrics(.rank1)?.jsonl: File too large; earlier "
        r"records and checkpoints are intact.\n",
        capsys.readouterr().err,
    )
    directory = Path("results/runs/mine")
    text = (directory / "metrics.jsonl").read_text()
    assert (
        text.endswith("}\n")
        and 0 < len(text) <= limit
        and not (directory / "summary.json").exists()
    )
    assert saved_steps(directory / "checkpoints")[0] >= 4
    assert main(overrides) == 0
    steps = [
        record["step"]
        for record in read_metrics(directory)
        if record["kind"] == "train" and record["rank"] == 0
    ]
    total = 240 if network == "gloo" else 80
    assert steps == [*range(total), total - 1]


@pytest.mark.parametrize("network", LIMITS)
def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(
    network: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more, limit, lower = LIMITS[network]
    overrides = [*TINY, f"network={network}", "checkpoint.every_steps=4", *more]
    experiment = make_experiment(Path("results"), *overrides)
    with files_up_to(limit):
        main(overrides)
    (before, *_) = saved_steps(experiment.checkpoints)
    capsys.readouterr()
    with files_up_to(lower):
        assert main(overrides) in (1, 2)
    assert saved_steps(experiment.checkpoints)[0] == before
    assert invalid_reason(experiment.checkpoints / f"step-{before}", experiment.digest) is None
    assert not list(experiment.checkpoints.glob(".part-*"))


def test_ranks_that_cannot_meet_for_lack_of_space_say_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with files_up_to(6000):
        assert main([*TINY, "network=gloo"]) == 1
    assert re.fullmatch(
        r"sgp-run: cannot write \S+/store: disk I/O error; earlier records .*\n",
        capsys.readouterr().err,
    )


def test_nothing_is_written_where_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    with files_up_to(100):
        assert main(TINY) == 2
    assert re.fullmatch(
        r"sgp-run: results: cannot write \S+/config.yaml: File too large; .*\n",
        capsys.readouterr().err,
    )
    assert not Path("results").exists()


def test_records_that_a_checkpoint_knows_of_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"kind": "train", "time_s": 0.0}) + "\n")
    with pytest.raises(
        ConfigError,
        match=(
            r"^resume: \S+/metrics.jsonl has 33 bytes, but its checkpoint needs 40: start over "
            "with resume"
        ),
    ):
        Recorder(tmp_path, 0, (), start=Position(40))
    assert (tmp_path / "metrics.jsonl").stat().st_size == 33
