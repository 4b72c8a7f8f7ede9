"""Records that are removed, emptied, replaced or changed, during a run and after it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from helpers.processes import ranks_of

from sgp_runner.cli.main import main
from sgp_runner.core.scheduler import VirtualClock
from sgp_runner.recording.checkpoint import saved_steps
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.utils.files import checksum

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

RUN = Path("results/runs/mine")
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
OFTEN = "checkpoint.every_steps=4"


class Killed(SystemExit):
    """As sudden as SIGKILL."""


def kill() -> None:
    raise Killed


def events_of(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[[], object]]:
    """Return actions by the number of the simulator's event at which they happen."""
    actions: dict[int, Callable[[], object]] = {}
    advance, count = VirtualClock.advance, 0

    def counted(clock: VirtualClock) -> bool:
        nonlocal count
        count += 1
        actions.pop(count, lambda: None)()
        return advance(clock)

    monkeypatch.setattr(VirtualClock, "advance", counted)
    return actions


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the results of a run that was killed."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        events_of(monkeypatch)[230] = kill
        with pytest.raises(Killed):
            main([*TINY, OFTEN])
    return folder / "results"


def replace(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copyfile(path, copy)
    copy.replace(path)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


def remove(folder: Path) -> None:
    """Remove a folder at one moment, whatever is just being written to it."""
    shutil.rmtree(folder.rename(folder.with_name("gone")), ignore_errors=True)


STRIKES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "folder removed": (".", remove, "{metrics} was removed"),
    "removed": ("{metrics}", Path.unlink, "{metrics} was removed"),
    "emptied": ("{metrics}", lambda path: os.truncate(path, 0), "{metrics} was changed"),
    "replaced": ("{metrics}", replace, "{metrics} was replaced"),
    "extended": ("{metrics}", append, "{metrics} was changed"),
    "settings removed": ("config.yaml", Path.unlink, "config.yaml was removed"),
    "settings emptied": (
        "config.yaml",
        lambda path: os.truncate(path, 0),
        "config.yaml was changed",
    ),
}


def check_end(said: str, what: str, metrics: str) -> None:
    what = what.replace("{metrics}", metrics)
    assert said == (
        f"sgp-run: {RUN}/{what} by another process during the run, so its records are "
        "incomplete: start over with resume=never.\n"
    )
    assert not (RUN / "summary.json").exists()


@pytest.mark.parametrize("saves", [(OFTEN,), ()], ids=["at a checkpoint", "at the end"])
@pytest.mark.parametrize("strike", STRIKES)
def test_records_that_vanish_during_a_simulated_run_end_it(
    strike: str,
    saves: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    name, act, what = STRIKES[strike]
    path = RUN / name.replace("{metrics}", "metrics.jsonl")
    events_of(monkeypatch)[150] = lambda: act(path)
    assert main([*TINY, *saves]) == 1
    check_end(capfd.readouterr().err, what, "metrics.jsonl")
    main([*TINY, *saves])
    assert "finished already" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("strike", "metrics"),
    [
        ("folder removed", r"metrics(.rank1)?.jsonl"),
        ("emptied", "metrics.rank1.jsonl"),
        ("settings removed", ""),
    ],
)
def test_records_that_vanish_during_a_real_run_end_it(
    strike: str, metrics: str, capfd: pytest.CaptureFixture[str]
) -> None:
    name, act, what = STRIKES[strike]

    def strike_later() -> None:
        path = RUN / "metrics.rank1.jsonl"
        while not path.exists() or path.stat().st_size < 10_000:
            time.sleep(0.01)
        act(RUN / name.replace("{metrics}", metrics))

    thread = Thread(target=strike_later)
    thread.start()
    assert main([*TINY, "network=gloo", "epochs=100"]) == 1
    thread.join()
    said = capfd.readouterr().err
    check_end(said, what, re.search("metrics.*jsonl", said)[0] if metrics else "")  # type: ignore[index]
    assert re.search(metrics, said)


GONE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no settings": ("config.yaml", Path.unlink, "config.yaml is missing"),
    "no records": ("metrics.jsonl", Path.unlink, "metrics.jsonl is missing"),
    "none of rank 1": ("metrics.rank1.jsonl", Path.unlink, "metrics.rank1.jsonl is missing"),
    "emptied": (
        "metrics.jsonl",
        lambda path: os.truncate(path, 0),
        "metrics.jsonl does not end with its summary",
    ),
    "of another": (
        "metrics.jsonl",
        lambda path: path.write_text(path.read_text().replace('"average": ', '"average": 1')),
        "metrics.jsonl does not end with its summary",
    ),
}


def test_a_finished_run_without_its_records_is_not_called_finished(
    capfd: pytest.CaptureFixture[str],
) -> None:
    overrides = [*TINY, "network=gloo"]
    assert main(overrides) == 0
    shutil.copytree(RUN, "kept")
    for name, act, what in GONE.values():
        shutil.rmtree(RUN)
        shutil.copytree("kept", RUN)
        act(RUN / name)
        before = {path: path.read_bytes() for path in RUN.iterdir()}
        capfd.readouterr()
        assert main(overrides) == 2
        assert capfd.readouterr().err == (
            f"sgp-run: resume: this run has finished, but {RUN}/{what}: put the files of the run "
            "back, or start over with resume=never.\n"
        )
        assert {path: path.read_bytes() for path in RUN.iterdir()} == before
    shutil.rmtree(RUN)
    shutil.copytree("kept", RUN)
    assert main(overrides) == 0
    assert "finished already" in capfd.readouterr().out


def cut_off(stopped: Path) -> Path:
    """Return the newest checkpoint in a copy of a run that was killed."""
    shutil.copytree(stopped, "results")
    return RUN / "checkpoints" / f"step-{saved_steps(RUN / 'checkpoints')[0]}"


CHANGED: dict[str, Callable[[Path], object]] = {
    "a changed digit": lambda path: path.write_text(path.read_text().replace("0.1", "0.2", 1)),
    "a longer line": lambda path: path.write_text(path.read_text().replace("0.1", "0.11", 1)),
    "a line of another": lambda path: path.write_text('{"kind": "lost"}\n' + path.read_text()),
}


@pytest.mark.parametrize("change", CHANGED)
@pytest.mark.parametrize("older", [False, True])
def test_changed_records_are_refused_and_left_as_they_are(
    change: str,
    older: bool,
    stopped: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Checkpoints of earlier versions do not know the checksum of the records."""
    place = cut_off(stopped)
    if older:
        forge(place, lambda state: state["observer"].pop("metrics_checksum"))
        if change == "a changed digit":
            assert main([*TINY, OFTEN]) == 0
            return
    CHANGED[change](RUN / "metrics.jsonl")
    before = (RUN / "metrics.jsonl").read_bytes()
    capfd.readouterr()
    assert main([*TINY, OFTEN]) == 2
    assert capfd.readouterr().err == (
        f"sgp-run: resume: the records in {RUN}/metrics.jsonl differ from those at the checkpoint: "
        "start over with resume=never.\n"
    )
    assert (RUN / "metrics.jsonl").read_bytes() == before
    assert main([*TINY, OFTEN, "resume=never"]) == 0


def forge(place: Path, change: Callable[[dict[str, Any]], object], name: str = "run.pt") -> None:
    """Change the state in a file of a checkpoint, with the right checksum."""
    state = torch.load(place / name, weights_only=True)
    change(state)
    torch.save(state, place / name)
    vouch_for(place, name)


def vouch_for(place: Path, name: str) -> None:
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["files"][name] = checksum(place / name)
    (place / "manifest.json").write_text(json.dumps(manifest))


def text_for_state(place: Path) -> None:
    (place / "run.pt").write_text("no state")
    vouch_for(place, "run.pt")


FORGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "not a file of tensors": (text_for_state, "run.pt is not a file of tensors"),
    "no observer": (lambda place: forge(place, lambda state: state.pop("observer")), "KeyError"),
    "no events": (lambda place: forge(place, lambda state: state.pop("simulation")), "KeyError"),
    "other ranks": (
        lambda place: forge(place, lambda state: state["observer"].update(names=[0, 7])),
        "its ranks differ from those of the run",
    ),
    "a shape": (
        lambda place: forge(place, lambda state: state.update(push_sum=torch.zeros(1)), "rank1.pt"),
        "a saved tensor has shape [1], not [5]",
    ),
    "no optimizer": (
        lambda place: forge(place, lambda state: state.pop("buffers"), "rank0.pt"),
        "KeyError",
    ),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_checkpoint_falls_back_to_the_one_before(
    forgery: str,
    stopped: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    act, reason = FORGED[forgery]
    place = cut_off(stopped)
    before = saved_steps(RUN / "checkpoints")[1]
    act(place)
    capfd.readouterr()
    assert main([*TINY, OFTEN]) == 0
    said = capfd.readouterr()
    assert re.fullmatch(
        rf"warning: the checkpoint {place} is not used: it does not fit this run \(.*\).\n",
        said.err,
    )
    assert reason in said.err and f"resumes from step {before}" in said.out


def test_a_run_whose_only_checkpoint_is_forged_is_not_started_over(
    stopped: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = cut_off(stopped)
    for older in saved_steps(RUN / "checkpoints")[1:]:
        shutil.rmtree(RUN / "checkpoints" / f"step-{older}")
    forge(place, lambda state: state.pop("simulation"))
    before = (RUN / "metrics.jsonl").read_bytes()
    capfd.readouterr()
    assert main([*TINY, OFTEN]) == 2
    assert capfd.readouterr().err.splitlines()[1:] == [
        f"sgp-run: resume: {place} is not used: it does not fit this run (KeyError: 'simulation'). "
        "Remove its folder, or start over with resume=never."
    ]
    assert (RUN / "metrics.jsonl").read_bytes() == before


def test_a_forged_checkpoint_of_one_real_rank_falls_back_on_all(
    capfd: pytest.CaptureFixture[str],
) -> None:
    overrides = [*TINY, "network=gloo", "checkpoint.every_steps=50", "epochs=80"]
    checkpoints = RUN / "checkpoints"

    def kill_later() -> None:
        while len(saved_steps(checkpoints)) < 2:
            time.sleep(0.01)
        os.kill(ranks_of(RUN.absolute())[0], signal.SIGKILL)

    thread = Thread(target=kill_later)
    thread.start()
    assert main(overrides) == 1
    thread.join()
    newest, before = saved_steps(checkpoints)
    forge(
        checkpoints / f"step-{newest}",
        lambda state: state["worker"].update(push_sum=torch.zeros(1)),
        "rank1.pt",
    )
    capfd.readouterr()
    assert main(overrides) == 0
    said = capfd.readouterr()
    assert said.err == (
        f"warning: the checkpoint {checkpoints}/step-{newest} is not used: it does not fit this "
        "run (its number of parameters differs).\n"
    )
    assert f"resumes from step {before}" in said.out
    assert [
        record["step"]
        for record in read_metrics(RUN)
        if record["kind"] == "train" and record["rank"] == 1
    ] == [*range(320), 319]
