"""Real ranks that are killed: the others continue without them, or all end with one sentence that
names them.
"""

from __future__ import annotations

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest
from helpers.commands import Command
from helpers.descent import descend
from helpers.experiments import instrumented, make_experiment, saved
from helpers.paths import RANKS
from helpers.processes import check_no_rank_is_left, processes_of, wait_for_ranks, wait_until
from helpers.shooting import run, shot, variables_of
from helpers.slurm_cluster import free_ports

from sgp_runner.assembly.real.launch import launch
from sgp_runner.assembly.start import execute
from sgp_runner.config.experiment import Experiment
from sgp_runner.core.survivors import SILENCE_SECONDS
from sgp_runner.recording.checkpoint import saved_steps
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.utils.errors import RankFailed, Stopped

REAL_RANK = str(RANKS / "real_rank.py")
SETTINGS = (
    "model=mlp",
    "dtype=float64",
    "batch_size=32",
    "nodes=4",
    "eval_every=100",
    "log_every=1",
)
# A vote ends at once when all living ranks have answered.
CONTINUE = ("network=gloo", "on_failure=continue", "network.vote_seconds=100")


def kill_rank(experiment: Experiment, rank: int) -> dict[str, object]:
    """After its third step."""
    return launch(experiment, program=(REAL_RANK, f"{rank}dies"))


@pytest.mark.parametrize(
    "fault", ["faults.events=[{what: crash, ranks: [2], start: 0.7}]", "faults=trace"]
)
def test_the_survivors_end_with_the_simulators_parameters(fault: str, tmp_path: Path) -> None:
    """Rank 2 has taken three steps when it goes; the others have come as far as they can without
    it. A trace in which it leaves is the same.
    """
    trace = tmp_path / "trace.csv"
    trace.write_text("0,add,a\n0,add,b\n0,add,c\n0,add,d\n700,remove,c\n")
    path = [f"faults.trace={trace}"] if fault == "faults=trace" else []
    settings = (*SETTINGS, "algo=sgp", "epochs=1")
    machines = (
        "cluster.step_seconds.default=0.2",
        *(fault, *path),
    )
    simulated, real = (
        make_experiment(tmp_path, *settings, *machines, "on_failure=continue"),
        make_experiment(tmp_path, *settings, *CONTINUE),
    )
    execute(instrumented(simulated))
    assert kill_rank(real, 2)["lost"] == [2]
    (lost,) = changes(real, "lost")
    assert (lost["ranks"], lost["nodes"]) == ([2], 3)
    pairs = [(saved(simulated, rank)["params"], saved(real, rank)["params"]) for rank in range(3)]
    assert max(float((a - b).abs().max()) for a, b in pairs) < 1e-10
    check_no_rank_is_left(tmp_path)


def kill_process(experiment: Experiment, rank: int) -> None:
    """Kill a rank of a run that has begun to train."""
    folder = experiment.directory.parent.parent
    wait_for_ranks(folder, experiment.run.ranks)
    while len(list(read_metrics(experiment.directory))) < 20:
        time.sleep(0.05)
    os.kill(processes_of(folder)[rank], signal.SIGKILL)


def test_a_rank_that_dies_after_its_answer_to_a_vote_is_lost_too(tmp_path: Path) -> None:
    """Rank 3 keeps the vote on rank 1 open until rank 2 has answered and died."""
    overrides = (*CONTINUE, "algo=sgp", "epochs=30")
    experiment = make_experiment(tmp_path, *SETTINGS, *overrides, "network.silence_seconds=1000")

    def strike() -> None:
        wait_for_ranks(tmp_path, 4)
        ranks = processes_of(tmp_path)
        os.kill(ranks[3], signal.SIGSTOP)
        os.kill(ranks[1], signal.SIGKILL)
        time.sleep(1.5)
        os.kill(ranks[2], signal.SIGKILL)
        time.sleep(0.5)
        os.kill(ranks[3], signal.SIGCONT)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(strike)
        summary = launch(experiment)
    assert summary["lost"] == [1, 2]
    assert [change["nodes"] for change in changes(experiment, "lost")] in ([2], [3, 2])


def changes(experiment: Experiment, kind: str) -> list[dict[str, object]]:
    return [record for record in read_metrics(experiment.directory) if record["kind"] == kind]


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["d_psgd", "gap_aware", "ad_psgd"])
def test_the_survivors_spend_the_budget(algo: str, tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path, *SETTINGS, *CONTINUE, f"algo={algo}", "epochs=60")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(kill_process, experiment, 2)
        summary = launch(experiment)
    assert summary["lost"] == [2] and float(str(summary["average"])) > 0.9
    last = max(
        int(str(record["step"]))
        for record in read_metrics(experiment.directory)
        if record["kind"] == "train"
    )
    nodes = 3 if experiment.run.algo.asynchronous else 1
    assert (
        last == 60 * 14 * nodes - 1
    )  # three nodes have 14 steps in an epoch; asynchronous ones count those of all


def lose_and_stop(experiment: Experiment, rank: int) -> None:
    """Kill a rank after its third step; stop the others after the first checkpoint."""

    ended = Event()

    def strike() -> None:
        while not list(experiment.checkpoints.glob("step-*")):
            if ended.wait(0.01):
                return
        os.kill(os.getpid(), signal.SIGUSR1)  # the launching process passes it on

    with ThreadPoolExecutor(1) as pool:
        pool.submit(strike)
        try:
            kill_rank(experiment, rank)
        finally:
            ended.set()


def test_lost_ranks_rejoin_when_the_run_is_resumed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """On a complete graph without momentum all models stay equal: gradient descent with four nodes'
    batches, then with three nodes', then with four nodes' again.
    """
    overrides = (*SETTINGS, "algo=sgp", "algo.topology=complete", "optim.momentum=0", "epochs=30")
    experiment = make_experiment(
        tmp_path,
        *overrides,
        "optim.schedule=constant",
        *CONTINUE,
        "checkpoint.every_steps=20",
    )
    with pytest.raises(Stopped, match="^stopped by SIGUSR1; saved in .*/step-"):
        lose_and_stop(experiment, 2)
    summary = launch(experiment, program=(REAL_RANK, "-1"))
    records = read_metrics(experiment.directory)
    lost, back = (record for record in records if record["kind"] in ("lost", "rejoined"))
    assert "lost" not in summary
    assert (lost["ranks"], back["ranks"], back["nodes"]) == ([2], [2], 4)
    begin = round(float(str(back["epoch"])) * 14)  # three nodes have 14 steps in an epoch, four 11
    end = 30 * 11
    assert 20 <= begin < end
    sentence = (
        rf"^This run resumes from step {begin}, with the state of rank 0 for "
        r"rank 2, lost before.$"
    )
    assert re.search(sentence, capfd.readouterr().out, re.MULTILINE)
    again = round(begin / 14 * 11)
    stages = (4, range(3)), (3, range(round(3 / 11 * 14), begin)), (4, range(again, end))
    *_, (params, _) = descend(experiment.run, stages)
    for rank in range(4):
        assert float((saved(experiment, rank)["params"] - params).abs().max()) < 1e-10
    last = {
        record["rank"]
        for record in records
        if record["kind"] == "train" and record["step"] == end - 1
    }
    assert last == {0, 1, 2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["d_psgd", "gap_aware", "ad_psgd"])
def test_a_rank_that_has_rejoined_trains(algo: str, tmp_path: Path) -> None:
    overrides = (f"algo={algo}", "epochs=60", "checkpoint.every_steps=20")
    experiment = make_experiment(tmp_path, *SETTINGS, *CONTINUE, *overrides)

    def strike() -> None:
        kill_process(experiment, 2)
        while not changes(experiment, "lost"):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGUSR1)

    with ThreadPoolExecutor(1) as pool, pytest.raises(Stopped):
        pool.submit(strike)
        launch(experiment)
    summary = launch(experiment)
    assert "lost" not in summary and float(str(summary["average"])) > 0.9
    (back,) = changes(experiment, "rejoined")
    steps = [
        int(str(record["step"]))
        for record in read_metrics(experiment.directory)
        if (record["kind"], record.get("rank")) == ("train", 2)
        and float(str(record["time_s"])) > float(str(back["time_s"]))
    ]
    assert len(steps) > 100


@pytest.mark.slow
def test_a_rank_that_stands_still_for_less_than_the_timeout_is_waited_for(tmp_path: Path) -> None:
    """It stays silent for longer than ``on_failure=continue`` would allow."""
    experiment = make_experiment(tmp_path, *SETTINGS, "network=gloo", "algo=sgp", "epochs=100")

    def strike() -> None:
        victim = wait_for_ranks(tmp_path, 4)[1]
        os.kill(victim, signal.SIGSTOP)
        time.sleep(2 * SILENCE_SECONDS + 5)
        os.kill(victim, signal.SIGCONT)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(strike)
        summary = launch(experiment)
    assert summary["steps"] == 100 * 11 and "lost" not in summary


@pytest.mark.parametrize(
    ("algo", "failure"), [("ar_sgd", "stop"), ("sgp", "stop"), ("sgp", "continue")]
)
def test_a_run_that_cannot_go_on_names_the_rank_and_keeps_its_checkpoint(
    algo: str, failure: str, tmp_path: Path
) -> None:
    rank = 0 if failure == "continue" else 2
    overrides = (
        f"algo={algo}",
        "epochs=30",
        "checkpoint.every_steps=2",
        f"on_failure={failure}",
        "network=gloo",
    )
    experiment = make_experiment(tmp_path, *SETTINGS, *overrides)
    with pytest.raises(RankFailed, match=f"^rank {rank} was killed by signal SIGKILL"):
        kill_rank(experiment, rank)
    assert saved_steps(experiment.checkpoints) == [2]
    check_no_rank_is_left(tmp_path)


def open_in(process: int) -> tuple[int, int]:
    """Sockets of a process, and threads of gloo."""
    sockets = threads = 0
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            sockets += os.readlink(descriptor).startswith("socket:")
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):  # it has ended
            threads += "gloo" in (thread / "comm").read_text()
    return sockets, threads


@pytest.mark.parametrize(
    "more",
    [
        ["algo=sgp", "network.shared_memory=false", "model.hidden=[2048, 2048]"],
        ["algo=ad_psgd"],
    ],
)
def test_survivors_close_the_connections_of_the_larger_run(more: list[str], tmp_path: Path) -> None:
    """Messages of the lost rank have arrived: gloo never ends the wait for one that is cut off."""
    overrides = (*COMMAND, *more, *CONTINUE, "epochs=100000", "results=.")
    shots = variables_of([shot(STEP, "SIGKILL", "2", to="idle")])
    with Command(*overrides, folder=tmp_path, variables=shots) as command:
        try:
            wait_for_ranks(tmp_path, 3)
            ranks = processes_of(tmp_path)
            before = [open_in(ranks[rank]) for rank in (0, 1)]
            (tmp_path / "shoot").touch()

            def lost() -> bool:
                records = read_metrics(tmp_path / "runs" / "run")
                return any(record["kind"] == "lost" for record in records)

            def closed() -> bool:
                after = [open_in(ranks[rank]) for rank in (0, 1)]
                return all(
                    now[0] < then[0] and now[1] <= then[1]
                    for now, then in zip(after, before, strict=True)
                )

            wait_until(lost, "the loss of rank 2")
            wait_until(closed, "the end of the old connections")
        finally:
            command.send_signal(signal.SIGTERM)
        assert command.wait() == 75


STEP = "sgp_runner.assembly.real.saving:RankSaver.start_of_step"
SAVE = "sgp_runner.assembly.real.saving:RankSaver.state_dict"  # once the previous one is complete
LOST = "sgp-run: rank 1 was killed by signal SIGKILL. "
RESUME = "Run the same command again to resume from results/runs/run/checkpoints/step-50.\n"
START = "There is no checkpoint yet to resume from.\n"
COMMAND = ("model=mlp", "nodes=3", "epochs=1000", "logger=jsonl", "name=run", "network=gloo")


@pytest.mark.parametrize("algo", ["ar_sgd", "sgp"])
def test_the_sentence_on_a_lost_rank_names_the_checkpoint(algo: str, tmp_path: Path) -> None:
    overrides = (*COMMAND, f"algo={algo}", "checkpoint.every_steps=50")
    shots = [shot(SAVE, "SIGKILL", "1", count=2)]
    assert run(tmp_path, *overrides, shots=shots) == (1, LOST + RESUME)


@pytest.mark.parametrize(
    "where", ["sgp_runner.assembly.rank_process:main", "sgp_runner.assembly.build:build_problem"]
)
@pytest.mark.parametrize("failure", ["stop", "continue"])
def test_a_rank_lost_before_training_ends_the_run(failure: str, where: str, tmp_path: Path) -> None:
    outcome = run(tmp_path, *COMMAND, f"on_failure={failure}", shots=[shot(where, "SIGKILL", "1")])
    assert outcome == (1, LOST + START)
    check_no_rank_is_left(tmp_path)


def test_a_rank_that_no_process_of_ours_launched_names_the_lost_one_and_the_checkpoint(
    tmp_path: Path,
) -> None:
    (port,) = free_ports(1)
    overrides = (*COMMAND, "nodes=2", "algo=ar_sgd", "checkpoint.every_steps=50")

    def rank(number: int) -> tuple[int, str]:
        variables = {"RANK": str(number), "WORLD_SIZE": "2", "LOCAL_RANK": str(number)}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        shots = [shot(SAVE, "SIGKILL", "1", count=2)]
        return run(tmp_path, *overrides, shots=shots, variables=variables)

    with ThreadPoolExecutor(2) as pool:
        (code, error), (killed, _) = pool.map(rank, range(2))
    said = "sgp-run: rank 1 is lost: rank 0 lost a connection, and it no longer "
    assert (code, error, killed) == (1, f"{said}answers. {RESUME}", -signal.SIGKILL)


@pytest.mark.parametrize("to", ["self", "launcher"])
def test_a_signal_while_the_survivors_vote_saves_the_smaller_run(to: str, tmp_path: Path) -> None:
    overrides = (*COMMAND, "algo=sgp", *CONTINUE)
    vote = shot("sgp_runner.distributed.vote:Vote.decide", "SIGTERM", "2", to)
    code, error = run(tmp_path, *overrides, shots=[shot(STEP, "SIGKILL", "1", count=60), vote])
    said = r"sgp-run: stopped by SIGTERM; saved in \S+/step-\d+. Run the same command again to "
    assert code == 75 and re.fullmatch(said + "resume.\n", error)
    check_no_rank_is_left(tmp_path)


def test_a_signal_while_the_survivors_vote_is_not_lost_if_they_cannot_continue(
    tmp_path: Path,
) -> None:
    overrides = (*COMMAND, "algo=sgp", *CONTINUE, "checkpoint.every_steps=50")
    vote = shot("sgp_runner.distributed.vote:Vote.decide", "SIGTERM", "2")
    code, error = run(tmp_path, *overrides, shots=[shot(SAVE, "SIGKILL", "0", count=2), vote])
    assert (code, error) == (75, f"sgp-run: stopped by SIGTERM. {RESUME}")
    check_no_rank_is_left(tmp_path)
