"""Real ranks that are killed: the others go on without them, or all end with one sentence that
names them.
"""

from __future__ import annotations

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import pytest
import torch
from experiments import instrumented, make_experiment, saved
from places import TESTS
from processes import ranks_of, wait_for_ranks
from shooting import run, shot
from slurm_cluster import free_ports

from sgp_runner.config.experiment import Experiment
from sgp_runner.distributed.launch import launch
from sgp_runner.elastic.vote import SILENCE_SECONDS
from sgp_runner.recording.checkpoint import saved_steps
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.session.start import execute
from sgp_runner.utils.errors import RankFailed, Stopped

REAL_RANK = str(TESTS / "real_rank.py")
SETTINGS = (
    "model=mlp",
    "dtype=float64",
    "batch_size=32",
    "nodes=4",
    "eval_every=100",
    "log_every=1",
)


def kill_rank(experiment: Experiment, rank: int) -> dict[str, object]:
    """After its third step."""
    return launch(experiment, program=(REAL_RANK, f"{rank}dies"))


def test_the_survivors_end_with_the_simulators_parameters(tmp_path: Path) -> None:
    """Rank 2 has taken three steps when it goes; the others have come as far as they can without
    it.
    """
    settings = (*SETTINGS, "algo=sgp", "epochs=1", "on_failure=continue")
    machines = (
        "cluster.step_seconds.default=0.2",
        "faults.events=[{what: crash, ranks: [2], start: 0.7}]",
    )
    simulated, real = (
        make_experiment(tmp_path, *settings, *machines),
        make_experiment(tmp_path, *settings, "network=gloo"),
    )
    execute(instrumented(simulated))
    summary = kill_rank(real, 2)
    assert summary["lost"] == [2]
    (lost,) = (record for record in read_metrics(real.directory) if record["kind"] == "lost")
    assert (lost["ranks"], lost["nodes"]) == ([2], 3)
    for rank in range(3):
        assert (
            float((saved(simulated, rank)["params"] - saved(real, rank)["params"]).abs().max())
            < 1e-10
        )
    assert not ranks_of(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["d_psgd", "gap_aware", "ad_psgd"])
def test_the_survivors_spend_the_budget(algo: str, tmp_path: Path) -> None:
    experiment = make_experiment(
        tmp_path, *SETTINGS, "network=gloo", f"algo={algo}", "epochs=60", "on_failure=continue"
    )

    def strike() -> None:
        wait_for_ranks(tmp_path, experiment.run.ranks)
        while len(list(read_metrics(experiment.directory))) < 20:
            time.sleep(0.05)
        (victim,) = (
            pid
            for pid in ranks_of(tmp_path)
            if b"\0RANK=2\0" in Path(f"/proc/{pid}/environ").read_bytes()
        )
        os.kill(victim, signal.SIGKILL)

    striker = Thread(target=strike)
    striker.start()
    summary = launch(experiment)
    striker.join()
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


@pytest.mark.slow
def test_a_smaller_crew_is_saved_and_goes_on_to_the_same_bytes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = (*SETTINGS, "network=gloo", "algo=sgp", "epochs=60", "on_failure=continue")
    whole = make_experiment(tmp_path / "whole", *words)
    kill_rank(whole, 2)
    cut = make_experiment(tmp_path / "cut", *words, "checkpoint.every_steps=20")

    def strike() -> None:
        while not list(cut.checkpoints.glob("step-*")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR1)  # the launching process passes it on

    striker = Thread(target=strike)
    striker.start()
    with pytest.raises(Stopped, match="^stopped by SIGUSR1; saved in .*/step-"):
        kill_rank(cut, 2)
    striker.join()
    assert 20 <= saved_steps(cut.checkpoints)[0] < 60 * 14
    summary = launch(cut, program=(REAL_RANK, "-1"))
    assert summary["lost"] == [2]
    sentence = r"^This run was interrupted and resumes from step \d+, without rank 2, lost before.$"
    assert re.search(sentence, capfd.readouterr().out, re.MULTILINE)
    for rank in range(3):
        assert torch.equal(saved(whole, rank)["params"], saved(cut, rank)["params"])
    steps = {
        name: [each["step"] for each in read_metrics(cut.directory) if each.get("rank") == name]
        for name in (0, 1, 3)
    }
    assert all(each[-1] == 60 * 14 - 1 for each in steps.values())


@pytest.mark.slow
def test_a_rank_that_stands_still_for_less_than_the_timeout_is_waited_for(tmp_path: Path) -> None:
    """For longer than it takes to be taken for gone where the others would go on without it."""
    experiment = make_experiment(tmp_path, *SETTINGS, "network=gloo", "algo=sgp", "epochs=100")

    def strike() -> None:
        victim = wait_for_ranks(tmp_path, 4)[1]
        os.kill(victim, signal.SIGSTOP)
        time.sleep(2 * SILENCE_SECONDS + 5)
        os.kill(victim, signal.SIGCONT)

    striker = Thread(target=strike)
    striker.start()
    started = time.monotonic()
    summary = launch(experiment)
    striker.join()
    assert (
        summary["steps"] == 100 * 11
        and "lost" not in summary
        and time.monotonic() - started > 2 * SILENCE_SECONDS
    )


@pytest.mark.parametrize(
    ("algo", "failure"), [("ar_sgd", "stop"), ("sgp", "stop"), ("sgp", "continue")]
)
def test_a_run_that_cannot_go_on_names_the_rank_and_keeps_its_checkpoint(
    algo: str, failure: str, tmp_path: Path
) -> None:
    rank = 0 if failure == "continue" else 2
    words = (
        f"algo={algo}",
        "epochs=30",
        "checkpoint.every_steps=2",
        f"on_failure={failure}",
        "network=gloo",
    )
    experiment = make_experiment(tmp_path, *SETTINGS, *words)
    with pytest.raises(RankFailed, match=f"^rank {rank} was killed by signal SIGKILL"):
        kill_rank(experiment, rank)
    assert saved_steps(experiment.checkpoints) == [2]
    assert not ranks_of(tmp_path)


STEP = "sgp_runner.distributed.saving:RankSaver.start_of_step"
LOST = "sgp-run: rank 1 was killed by signal SIGKILL. "
RESUME = "Run the same command again to resume from results/runs/run/checkpoints/step-50.\n"
START = "There is no checkpoint yet to resume from.\n"
COMMAND = ("model=mlp", "nodes=3", "epochs=1000", "logger=jsonl", "name=run", "network=gloo")


@pytest.mark.parametrize("algo", ["ar_sgd", "sgp"])
def test_the_sentence_on_a_lost_rank_names_the_checkpoint(algo: str, tmp_path: Path) -> None:
    words = (*COMMAND, f"algo={algo}", "checkpoint.every_steps=50")
    shots = [shot(STEP, "SIGKILL", "1", count=60)]
    assert run(tmp_path, *words, shots=shots) == (1, LOST + RESUME)


@pytest.mark.parametrize(
    "where", ["sgp_runner.session.start:", "sgp_runner.config.run:Run.make_problem"]
)
@pytest.mark.parametrize("failure", ["stop", "continue"])
def test_a_rank_lost_before_training_ends_the_run(failure: str, where: str, tmp_path: Path) -> None:
    words = (*COMMAND, f"on_failure={failure}")
    outcome = run(tmp_path, *words, shots=[shot(where, "SIGKILL", "1")])
    assert outcome == (1, LOST + START)
    assert not ranks_of(tmp_path)


def test_a_rank_that_no_process_of_ours_launched_names_the_lost_one_and_the_checkpoint(
    tmp_path: Path,
) -> None:
    (port,) = free_ports(1)
    words = (*COMMAND, "nodes=2", "algo=ar_sgd", "checkpoint.every_steps=50")

    def rank(number: int) -> tuple[int, str]:
        variables = {"RANK": str(number), "WORLD_SIZE": "2", "LOCAL_RANK": str(number)}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        shots = [shot(STEP, "SIGKILL", "1", count=60)]
        return run(tmp_path, *words, shots=shots, variables=variables)

    with ThreadPoolExecutor(2) as pool:
        (code, error), (killed, _) = pool.map(rank, range(2))
    said = "sgp-run: rank 1 is lost: rank 0 lost a connection, and it no longer "
    assert (code, error, killed) == (1, f"{said}answers. {RESUME}", -signal.SIGKILL)


@pytest.mark.parametrize("to", ["self", "launcher"])
def test_a_signal_while_the_survivors_vote_saves_the_smaller_run(to: str, tmp_path: Path) -> None:
    words = (*COMMAND, "algo=sgp", "on_failure=continue")
    vote = shot("sgp_runner.elastic.vote:Vote.decide", "SIGTERM", "2", to)
    code, error = run(tmp_path, *words, shots=[shot(STEP, "SIGKILL", "1", count=60), vote])
    said = r"sgp-run: stopped by SIGTERM; saved in \S+/step-\d+. Run the same command again to "
    assert code == 75 and re.fullmatch(said + "resume.\n", error)
    assert not ranks_of(tmp_path)


def test_a_signal_while_the_survivors_vote_is_not_lost_if_they_cannot_continue(
    tmp_path: Path,
) -> None:
    words = (*COMMAND, "algo=sgp", "on_failure=continue", "checkpoint.every_steps=50")
    vote = shot("sgp_runner.elastic.vote:Vote.decide", "SIGTERM", "2")
    code, error = run(tmp_path, *words, shots=[shot(STEP, "SIGKILL", "0", count=60), vote])
    assert (code, error) == (75, f"sgp-run: stopped by SIGTERM. {RESUME}")
    assert not ranks_of(tmp_path)
