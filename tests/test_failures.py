"""Real ranks that are killed: the others go on without them, or all end with one sentence that names them."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiments import instrumented, make_experiment, saved
from processes import ranks_of

from sgp_runner.checkpoint import saved_steps
from sgp_runner.errors import RankFailed
from sgp_runner.launch import launch
from sgp_runner.recorder import read_metrics
from sgp_runner.run import Experiment

REAL_RANK = str(Path(__file__).with_name("real_rank.py"))
SETTINGS = ("model=mlp", "dtype=float64", "batch_size=32", "nodes=4", "eval_every=100", "log_every=1")


def kill_rank(experiment: Experiment, rank: int) -> dict[str, object]:
    """After its third step."""
    return launch(experiment, program=(REAL_RANK, f"{rank}dies"))


@pytest.mark.parametrize("algo", ["sgp", pytest.param("d_psgd", marks=pytest.mark.slow), pytest.param("slowmo", marks=pytest.mark.slow)])
def test_the_survivors_end_with_the_simulators_parameters(algo: str, tmp_path: Path) -> None:
    """Rank 2 has taken three steps when it goes; the others have come as far as they can without it."""
    settings = (*SETTINGS, f"algo={algo}", "epochs=1", "on_failure=continue")
    machines = ("cluster.step_seconds.default=0.2", "faults.events=[{what: crash, ranks: [2], start: 0.7}]")
    simulated, real = make_experiment(tmp_path, *settings, *machines), make_experiment(tmp_path, *settings, "network=gloo")
    instrumented(simulated).execute()
    summary = kill_rank(real, 2)
    assert summary["lost"] == [2]
    (lost,) = (record for record in read_metrics(real.directory) if record["kind"] == "lost")
    assert (lost["ranks"], lost["nodes"]) == ([2], 3)
    for rank in range(3):
        assert float((saved(simulated, rank)["params"] - saved(real, rank)["params"]).abs().max()) < 1e-10
    assert not ranks_of(tmp_path)


@pytest.mark.parametrize("algo", ["gap_aware", pytest.param("ad_psgd", marks=pytest.mark.slow)])
def test_asynchronous_survivors_share_the_budget(algo: str, tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path, *SETTINGS, "network=gloo", f"algo={algo}", "epochs=10", "on_failure=continue")
    summary = kill_rank(experiment, 2)
    assert summary["lost"] == [2] and float(str(summary["average"])) > 0.9
    last = max(int(str(record["step"])) for record in read_metrics(experiment.directory) if record["kind"] == "train")
    assert last == 10 * 14 * 3 - 1  # three nodes have 14 steps in an epoch


@pytest.mark.parametrize(("algo", "failure"), [("ar_sgd", "stop"), ("sgp", "stop"), ("sgp", "continue")])
def test_a_run_that_cannot_go_on_names_the_rank_and_keeps_its_checkpoint(algo: str, failure: str, tmp_path: Path) -> None:
    rank = 0 if failure == "continue" else 2
    words = (f"algo={algo}", "epochs=30", "checkpoint.every_steps=2", f"on_failure={failure}", "network=gloo")
    experiment = make_experiment(tmp_path, *SETTINGS, *words)
    with pytest.raises(RankFailed, match=f"^rank {rank} was killed by signal SIGKILL"):
        kill_rank(experiment, rank)
    assert saved_steps(experiment.checkpoints) == [2]
    assert not ranks_of(tmp_path)
