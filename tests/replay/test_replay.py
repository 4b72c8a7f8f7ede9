"""Recorded runs: real ones are repeated to the last bit, what is no recording is refused, and times
of others follow from theirs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.experiments import final_parameters, make_experiment, steps_taken
from helpers.paths import RANKS
from helpers.refusals import refusal
from helpers.variants import launch_real
from test_mpi import run_ranks

from sgp_runner.algorithms import gap_aware
from sgp_runner.assembly.real.launch import launch
from sgp_runner.cli.replay import main
from sgp_runner.config.experiment import Experiment
from sgp_runner.core.worker import Worker
from sgp_runner.recording.draft import Draft
from sgp_runner.recording.trace import FORMAT, Header, Writer, path_of, remove_recordings
from sgp_runner.replay.exact import ReplayMismatch, replay
from sgp_runner.replay.what_if import retime
from sgp_runner.utils.errors import ConfigError, RankFailed

REAL_RANK = str(RANKS / "real_rank.py")
RECORDED = {
    "ad_psgd": ("nodes=4", "algo.averages_per_gradient=2", "model=resnet8", "epochs=0.2"),
    "gap_aware": ("nodes=3", "epochs=0.5"),
    "async_diloco": ("nodes=3", "epochs=0.5", "algo.period=3", "algo.grace=0.01"),
    "rennala": ("nodes=3", "epochs=0.5"),
    "swarm_sgd": ("nodes=4", "epochs=0.5"),
    "osgp": ("nodes=4", "epochs=0.5", "algo.tau=2"),
    "slowmo": ("nodes=4", "epochs=0.5", "algo.base=osgp", "algo.tau=5", "dtype=float64"),
}


def recorded(folder: Path, network: str, algo: str) -> Experiment:
    return make_experiment(
        folder,
        f"network={network}",
        "record=true",
        "model=mlp",
        "batch_size=8",
        f"algo={algo}",
        *RECORDED[algo],
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Experiment]:
    """Real runs, all in one launch of four processes."""
    folder = tmp_path_factory.mktemp("runs")
    out = {algo: recorded(folder, "gloo", algo) for algo in RECORDED}
    launch_real(list(out.values()))
    return out


@pytest.mark.parametrize(
    "algo", ["ad_psgd", "gap_aware", "async_diloco", "rennala", "swarm_sgd", "osgp"]
)
def test_a_replay_ends_with_the_parameters_of_the_real_run(
    algo: str, runs: dict[str, Experiment]
) -> None:
    check_same_bytes(runs[algo])


def check_same_bytes(experiment: Experiment) -> None:
    seen: list[int] = []
    result = replay(experiment.directory, lambda worker: seen.append(worker.rank))
    assert all(
        torch.equal(worker.params, real)
        for worker, real in zip(result.workers, final_parameters(experiment), strict=True)
    )
    assert result.same == [True] * len(result.workers) and not result.reduced
    assert [(worker.steps_taken, seen.count(worker.rank)) for worker in result.workers] == [
        (steps, steps) for steps in steps_taken(experiment)
    ]


def test_a_replay_with_all_reduces_ends_with_them_up_to_rounding(
    runs: dict[str, Experiment],
) -> None:
    check_rounding(runs["slowmo"])


def check_rounding(experiment: Experiment) -> None:
    result = replay(experiment.directory)
    assert result.reduced
    assert (
        max(
            float((worker.params - x).abs().max())
            for worker, x in zip(result.workers, final_parameters(experiment), strict=True)
        )
        < 1e-10
    )


def test_a_replay_that_computes_something_else_says_so(
    runs: dict[str, Experiment], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(runs["gap_aware"].directory)
    assert main([folder]) == 0
    expected = "All ranks reproduce the parameters of the real run, bit for bit."
    assert expected in capsys.readouterr().out
    monkeypatch.setattr(gap_aware, "EMA", 0.9)
    assert main([folder]) == 1
    assert (
        "rank 0, 1, 2, 3 took the recorded decisions but ended with different parameters"
        in capsys.readouterr().err
    )
    lines = [json.loads(line) for line in Path(folder, "replays.jsonl").read_text().splitlines()]
    assert [line["same"] for line in lines] == [[True] * 4, [False] * 4]


def test_a_replay_that_takes_other_steps_is_stopped(
    runs: dict[str, Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(worker: Worker) -> None:
        for _ in worker.steps():
            await worker.grad()
            worker.comm.send(worker.size, await worker.grad())
            worker.params.copy_(await worker.comm.recv(worker.size))

    monkeypatch.setattr(gap_aware, "push_and_pull", work)
    with pytest.raises(
        ReplayMismatch,
        match=(
            "^the replay deviates from the recording: rank 0 computes a gradient, where the "
            "recording has a message"
        ),
    ):
        replay(runs["gap_aware"].directory)


def test_the_time_of_a_real_run_is_simulated_from_its_own_gradients_and_messages(
    runs: dict[str, Experiment],
) -> None:
    """A rank's gradients follow one another, so none can end before the sum of its own; nothing
    else bounds a busy machine's time.
    """
    directory = runs["osgp"].directory
    lines = [json.loads(line) for line in path_of(directory, 0).read_text().splitlines()[1:-1]]
    computing = sum(line[3] for line in lines if line[0] == "gradient")
    assert retime(directory, ["algo=local_sgd", "algo.tau=null"]).time_s >= computing > 0
    assert retime(directory, ["algo=sgp"]).time_s > computing


# Recordings made by hand: two nodes with four steps each.

SECONDS = ([1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 1.0, 2.0])
BYTES = 4000


def header(experiment: Experiment, rank: int, **others: object) -> Header:
    facts = (rank, 2, "one", "code", "torch", 1, False, BYTES // 4, BYTES, 4.0)
    return replace(Header(FORMAT, experiment.digest, "once", *facts), **others)  # type: ignore[arg-type]


def made_up(
    folder: Path, ahead: float = 0.0, messages: bool = True, ended: bool = True
) -> Experiment:
    """Each sends the other four messages, which take 0.25 s. ``ahead``: by how much the clock of
    another machine is wrong.
    """
    experiment = make_experiment(
        folder,
        "network=gloo",
        "record=true",
        "nodes=2",
        "model=mlp",
        "epochs=1",
        "algo=ad_psgd",
        "name=made",
    )
    for rank in range(2):
        writer = Writer(
            experiment.directory,
            header(experiment, rank, host=f"machine {rank}" if ahead else "one"),
        )
        clock = ahead * rank
        for k, seconds in enumerate(SECONDS[rank]):
            writer.add(["gradient", -1, float(k), seconds])
            if messages:
                writer.add(["send", 1 - rank, 0, BYTES, 10.0 * k + clock])
                writer.add(["message", 0, float(k), 1 - rank, 0, 10.0 * k + 0.25 + clock])
        writer.finish(ended, torch.zeros(3), 9.0)
    return experiment


TIMES = {
    # Each waits for the other's message: (1.25, 1.25), (3.5, 3.25), (4.5, 4.75), (7.0, 6.75).
    "algo=sgp": 7.0,
    # Two nodes exchange everything in 0.25 s: 1 + 2 + 1 + 2 and four times that.
    "algo=ar_sgd cluster.collectives.overlap=0": 7.0,
    # 1 + 2 twice, each with one exchange.
    "algo=local_sgd algo.tau=2 cluster.collectives.overlap=0": 6.5,
    "algo=local_sgd algo.tau=null epochs=2": 12.0,
    # A gradient, its message to the server and the answer: node 0 takes steps at 0, 1.5, 3, 4.5 s,
    # node 1 at 0, 1.5, 4 and the eighth at 5.5 s, which needs 2.5 s.
    "algo=gap_aware": 8.0,
}


@pytest.mark.parametrize("overrides", TIMES)
def test_the_time_of_another_algorithm_follows_from_recorded_ones(
    overrides: str, tmp_path: Path
) -> None:
    result = retime(made_up(tmp_path).directory, overrides.split())
    assert (result.time_s, result.recorded_s) == pytest.approx((TIMES[overrides], 9.0), abs=1e-9)
    assert (result.facts["clock"], result.recorded_algorithm) == ("simulated", "AD-PSGD")


def test_clocks_of_different_machines_are_set_to_one_another(tmp_path: Path) -> None:
    assert retime(made_up(tmp_path, ahead=100.0).directory, ["algo=sgp"]).time_s == pytest.approx(
        7.0, abs=1e-9
    )


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            "nodes=4",
            (
                "nodes: the recorded times hold for its recorded value; only algo, optim, epochs, "
                "cluster.collectives.algorithm"
            ),
        ),
        ("model=resnet8", "model: the recorded times hold for its recorded value"),
        ("algo=sgp,osgp", "algo: a sweep cannot be timed; give one value."),
        ("algo=nobody", "algo: 'nobody' is not one of a2cid2, acco, accum_adam,"),
        ("algo.tau=0", "algo.tau: there is no such setting"),
        (
            "algo=sgp",
            "record: the recorded run sent no messages, so there are no delays to time others by.",
        ),
    ],
)
def test_what_cannot_be_timed_is_refused(
    overrides: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = made_up(tmp_path, messages=overrides != "algo=sgp")
    assert main([str(experiment.directory), "--with", overrides]) == 2
    assert capsys.readouterr().err.startswith(f"sgp-replay: {sentence}")


def test_the_command_says_which_time_is_simulated_and_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = made_up(tmp_path).directory
    assert main([str(directory), "--with", "algo=sgp"]) == 0
    assert capsys.readouterr().out == (
        f"{directory}: AD-PSGD took 9 s (measured)\n"
        "With its compute times and message delays, SGP takes 7 s (simulated), 4 steps of a node.\n"
    )
    assert json.loads((directory / "replays.jsonl").read_text()) == {
        "kind": "retimed",
        "with": ["algo=sgp"],
        "algorithm": "SGP",
        "recorded_algorithm": "AD-PSGD",
        "steps": 4,
        "time_s": 7.0,
        "recorded_s": 9.0,
        "clock": "simulated",
        "label": "time simulated on recorded compute times and message delays",
    }


def test_recordings_of_an_earlier_execution_are_removed(tmp_path: Path) -> None:
    experiment = made_up(tmp_path)
    remove_recordings(experiment.directory)
    assert list(experiment.directory.glob("recording-*")) == []


def test_what_is_no_recording_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = made_up(tmp_path)
    directory = experiment.directory
    zero, one = (path_of(directory, rank) for rank in range(2))
    whole = zero.read_bytes()

    def check(sentence: str, file: Path = zero) -> None:
        for options in ([], ["--with", "algo=sgp"]):
            assert main([str(directory), *options]) == 2
            assert capsys.readouterr().err == f"sgp-replay: {file}: {sentence}\n"
        zero.write_bytes(whole)

    def rewritten(**others: object) -> None:
        Writer(directory, header(experiment, 0, **others)).finish(True, torch.zeros(3), 9.0)

    for end in (-1, -20, whole.rindex(b"{"), whole.index(b"\n") + 1):
        zero.write_bytes(whole[:end])
        check("the file is incomplete: the rank was killed, or the file was truncated.")
    zero.write_bytes(whole.replace(b'"message",0,1.0', b'"message",0,7.0'))
    check("the file is damaged: its lines do not match their checksum.")
    for line in ('["message",0,"soon",1,0,1.0]', '["step",[1]]', "[" * 100_000, '["step",1e999]'):
        forged = Writer(directory, header(experiment, 0))
        forged.flush()
        forged.file.append(line.encode() + b"\n")
        forged.count += 1
        forged.finish(True, torch.zeros(3), 9.0)
        check("the file is damaged: its lines do not match their checksum.")
    for text in (
        b"",
        b"\x00\xff",
        b"[" * 100_000,
        b'{"format": 1e999}\n',
        b'{"what": 1}\n',
        b"[1, 2]\n",
    ):
        zero.write_bytes(text)
        check("this is not a recording of sgp-run.")
    rewritten(ranks="two")
    check("this is not a recording of sgp-run.")
    body, footer = whole[: whole.rindex(b"{")], whole[whole.rindex(b"{") :]
    for damaged in (b"{]}\n", b'{"what": 1}\n', footer.replace(b'"ended": true', b'"ended": 1')):
        assert damaged != footer
        zero.write_bytes(body + damaged)
        check("the file is damaged: its lines do not match their checksum.")
    zero.unlink()
    zero.mkdir()
    assert main([str(directory)]) == 2
    assert (
        capsys.readouterr().err
        == f"sgp-replay: {zero}: the file cannot be read (Is a directory).\n"
    )
    zero.rmdir()
    zero.write_bytes(whole)
    rewritten(format=7)
    check(f"the file has format 7, but this version of sgp-run reads format {FORMAT}.")
    rewritten(run="another")
    check("the run was recorded with settings that differ from its config.yaml.")
    zero.write_bytes(one.read_bytes())
    check("the file is the recording of rank 1 of 2, not of rank 0 of 2.")
    rewritten(execution="another time")
    check("the file was not recorded together with recording-0.jsonl.", one)
    one.unlink()
    check("the file is missing: every rank of a run has its own recording.", one)
    zero.unlink()
    assert main([str(directory)]) == 2
    assert capsys.readouterr().err == (
        f"sgp-replay: {directory}: this run was not recorded; run its command again with "
        "record=true resume=never.\n"
    )
    assert main([str(tmp_path)]) == 2
    assert "is not a run configuration." in capsys.readouterr().err
    assert main([str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"sgp-replay: {tmp_path}/none: there is no such folder.\n"


def test_the_help_needs_no_torch() -> None:
    code = (
        "import sys; from sgp_runner.cli.replay import parser; parser(); sys.exit('torch' in "
        "sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_run_that_failed_has_no_time_to_compare_with(tmp_path: Path) -> None:
    assert str(refusal(retime, made_up(tmp_path, ended=False).directory)) == (
        "record: the recorded run failed before its end, so there is no time to compare with."
    )


@pytest.mark.slow
def test_a_run_that_failed_is_replayed_until_it_fails_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("nodes=4", "model=mlp", "algo=gap_aware", "epochs=50")
    experiment = make_experiment(tmp_path, "network=gloo", "record=true", *options)
    with pytest.raises(
        RankFailed, match="^rank 2, step (.*): ZeroDivisionError: made to fail$"
    ) as real:
        launch(experiment, program=(REAL_RANK, "2"))
    result = replay(experiment.directory)  # without what has made it fail
    assert not result.ended and result.workers[2].steps_taken == 3

    async def work(worker: Worker) -> None:
        await original(worker.limit(3) if worker.rank == 2 else worker)
        raise ZeroDivisionError("made to fail")

    original = gap_aware.push_and_pull
    monkeypatch.setattr(gap_aware, "push_and_pull", work)
    with pytest.raises(RankFailed) as again:
        replay(experiment.directory)
    assert str(again.value) == str(real.value)


@pytest.mark.slow
def test_a_run_that_was_cut_off_before_is_not_recorded_from_the_middle(tmp_path: Path) -> None:
    experiment = make_experiment(
        tmp_path, "network=gloo", "record=true", "nodes=2", "model=mlp", "epochs=1"
    )
    draft = Draft(experiment.checkpoints, 7)
    draft.clear()
    draft.add("rank0.pt", {"observer": {"names": [0, 1]}})
    draft.finish(experiment.digest, keep=1)
    with pytest.raises(
        ConfigError,
        match=(
            "^record: this run was interrupted and would resume from step-7, but its beginning "
            "was not recorded"
        ),
    ):
        launch(experiment)


@pytest.mark.slow
def test_runs_over_mpi_are_repeated_too(tmp_path: Path) -> None:
    runs = {algo: recorded(tmp_path, "mpi", algo) for algo in RECORDED}
    pipe = make_experiment(
        tmp_path,
        "network=mpi",
        "record=true",
        "model=mlp",
        "batch_size=8",
        "algo=pipe_sgd",
        "nodes=4",
        "epochs=0.5",
        "dtype=float64",
    )
    done = run_ranks(*runs.values(), pipe)
    assert done.returncode == 0, done.stderr
    for algo in ("ad_psgd", "gap_aware", "async_diloco", "osgp"):
        check_same_bytes(runs[algo])
    check_rounding(runs["slowmo"])
    check_rounding(pipe)
