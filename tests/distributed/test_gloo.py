"""Real processes: the same algorithm files as in the simulator, with the same results, and none
left behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from helpers.commands import Command
from helpers.experiments import make_experiment
from helpers.paths import RANKS
from helpers.processes import check_no_rank_is_left, wait_for_ranks
from helpers.slurm_cluster import free_ports
from helpers.variants import (
    ALONE,
    LOW_COMMUNICATION,
    SMALL,
    SYNCHRONOUS,
    Results,
    check_budget,
    check_same_end,
    run_in_turn,
    simulate_all,
)
from torch import Tensor, uint8, zeros

from sgp_runner.assembly.real.launch import launch
from sgp_runner.config.choices import CLASSES
from sgp_runner.config.experiment import Experiment
from sgp_runner.distributed.gloo_transport import (
    TAIL,
    Transfer,
    one_after_the_other,
    release_groups,
)
from sgp_runner.recording.recorder import read_metrics, read_summary
from sgp_runner.utils.errors import ConfigError, RankFailed
from sgp_runner.utils.provenance import code_version

REAL_RANK = str(RANKS / "real_rank.py")
ODD_RANK = str(RANKS / "odd_rank.py")


# On a busy machine one rank may do nearly all the work, and a rank that got no core for a while
# makes a large step: the last steps are small.
EPOCHS = 3
# Of all kinds of averages. Every synchronous algorithm trains such a network in the slow tests.
WITH_BATCH_NORM = ("ar_sgd", "sgp", "slowmo of local_sgd", "pipe_sgd")
ASYNCHRONOUS = (
    "a2cid2",
    "ad_psgd",
    "async_diloco algo.period=5 algo.momentum=0.5",
    "gap_aware",
    "halos algo.regions=2 algo.period=5 algo.lr=0.7 algo.momentum=0.5 algo.delay=4 algo.arrivals=2 "
    "algo.alpha=0.5 algo.global_lr=1 algo.global_momentum=0 algo.global_delay=1",
    "osgp",
    "rennala",
    "ringleader",
    "ringmaster algo.stop=true",
    "swarm_sgd",
)


ALIKE = LOW_COMMUNICATION | ALONE
ALIKE |= {name: overrides for name, overrides in SYNCHRONOUS.items() if name not in WITH_BATCH_NORM}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, dict[str, Experiment]]:
    """Every algorithm, simulated and real, asynchronous ones with one worker, and real ones with
    four; one launch for each number of ranks runs them all.
    """
    folder = tmp_path_factory.mktemp("runs")
    alike = simulate_all(folder, "gloo", tiny=SMALL, variants=ALIKE)
    normalized = {name: SYNCHRONOUS[name] for name in WITH_BATCH_NORM}
    alike |= simulate_all(folder, "gloo", variants=normalized)
    asynchronous = {
        algo: make_experiment(
            folder,
            "network=gloo",
            "nodes=4",
            "model=mlp",
            f"epochs={EPOCHS}",
            "optim.schedule=warmup_cosine",
            *f"algo={algo}".split(),
        )
        for algo in ASYNCHRONOUS
    }
    run_in_turn([*(real for _, real in alike.values()), *asynchronous.values()])
    return alike, asynchronous


@pytest.mark.parametrize("name", SYNCHRONOUS | ALIKE)
def test_algorithms_end_with_the_simulators_parameters_and_summary(
    name: str, runs: tuple[Results, dict[str, Experiment]]
) -> None:
    alike, _ = runs
    check_same_end(*alike[name])


@pytest.mark.slow
def test_networks_with_batch_norm_end_with_the_simulators_parameters(tmp_path: Path) -> None:
    alike = simulate_all(tmp_path, "gloo", variants=SYNCHRONOUS)
    run_in_turn(real for _, real in alike.values())
    for simulated, real in alike.values():
        check_same_end(simulated, real)


def test_every_algorithm_is_compared_with_the_simulator() -> None:
    assert {name.split()[0] for name in SYNCHRONOUS | ALIKE} == set(CLASSES["algo"])


@pytest.mark.parametrize("algorithm", ASYNCHRONOUS)
def test_asynchronous_algorithms_learn_and_spend_their_budget_exactly(
    algorithm: str, runs: tuple[Results, dict[str, Experiment]]
) -> None:
    _, asynchronous = runs
    experiment = asynchronous[algorithm]
    check_budget(experiment, 4 * EPOCHS * 44)  # nodes x epochs x steps per epoch
    records = read_metrics(experiment.directory)
    assert {record["clock"] for record in records} == {"wall"}
    assert {record["rank"] for record in records if record["kind"] == "train"} == {0, 1, 2, 3}


def test_an_error_in_one_rank_is_reported_once_with_its_rank(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RankFailed, match=r"^rank 2, step 2: ZeroDivisionError: made to fail$"):
        launch(
            make_experiment(tmp_path, "network=gloo", "nodes=4", "model=mlp", "epochs=50"),
            program=(REAL_RANK, "2"),
        )
    out = capfd.readouterr().out
    assert out.count("made to fail") == 1
    assert out.count("Aborted") == 3
    check_no_rank_is_left(tmp_path)


@pytest.mark.parametrize("what", ["configuration", "code version", "initial parameters"])
def test_ranks_that_did_not_start_alike_refuse_to_train(what: str, tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path, "network=gloo", "nodes=2", "model=mlp")
    values = {
        "configuration": (experiment.digest[:16], r"\w{16}"),
        "code version": (code_version(), r"0\.0\.0( \w+)?"),
        "initial parameters": (r"\w{16}", r"\w{16}"),
    }
    first, other = values[what]
    sentence = (
        f"{what} is {first} on rank 0 but {other} on rank 1: start all ranks with the same "
        "command and code.$"
    )
    with pytest.raises(RankFailed, match=sentence):
        launch(experiment, program=(ODD_RANK, what))
    assert read_metrics(experiment.directory) == []


def test_settings_that_do_not_fit_the_data_are_refused_as_in_the_simulator(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match="^batch_size: 1437 training samples do not fill one batch of 1000 on each of 2 nodes",
    ):
        launch(make_experiment(tmp_path, "network=gloo", "nodes=2", "model=mlp", "batch_size=1000"))


def test_a_killed_rank_is_named_and_nobody_survives(tmp_path: Path) -> None:
    command = start_long_run(tmp_path, nodes=3)
    os.kill(wait_for_ranks(tmp_path, 3)[2], signal.SIGKILL)
    _, err = command.communicate()
    assert "was killed by signal SIGKILL" in err
    check_no_rank_is_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopping_the_launching_process_stops_the_ranks(
    number: signal.Signals, tmp_path: Path
) -> None:
    command = start_long_run(tmp_path, nodes=2)
    wait_for_ranks(tmp_path, 2)
    command.send_signal(number)
    command.communicate()
    check_no_rank_is_left(tmp_path)


def test_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    run = ["-m", "sgp_runner", "network=gloo", "nodes=2", "model=mlp", "epochs=1", "logger=jsonl"]
    done = subprocess.run(
        [*torchrun, *run], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("accuracy of the averaged model") == 1
    (directory,) = (tmp_path / "results" / "runs").iterdir()
    assert read_summary(directory) is not None
    assert {record["rank"] for record in read_metrics(directory) if record["kind"] == "train"} == {
        0,
        1,
    }


def start_long_run(folder: Path, nodes: int) -> Command:
    overrides = ("network=gloo", f"nodes={nodes}", "model=mlp", "epochs=100000", "logger=jsonl")
    return Command(*overrides, f"results={folder}")


def test_a_rank_that_is_killed_while_it_announces_a_message_is_a_lost_connection() -> None:
    (port,) = free_ports(1)
    said = subprocess.run(
        [sys.executable, str(RANKS / "announcing_rank.py")],
        env=os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    assert said == "LostConnection: rank 0 lost a connection over which a message was announced"


def test_a_message_begins_when_the_head_of_the_one_before_has_been_moved() -> None:
    events: list[str] = []
    queue: SimpleQueue[Callable[[], Transfer] | None] = SimpleQueue()

    def message(name: str, num_bytes: int) -> Callable[[], Transfer]:
        def move(piece: Tensor) -> Any:
            events.append(f"move {piece.numel()} of {name}")
            return SimpleNamespace(wait=partial(events.append, f"moved {piece.numel()} of {name}"))

        return lambda: Transfer(
            1, zeros(num_bytes, dtype=uint8), move, lambda: events.append(f"{name} is complete")
        )

    for item in (
        message("a", TAIL + 5),
        message("b", TAIL + 1),
        message("c", 3),
        message("d", 0),
        None,
    ):
        queue.put(item)
    one_after_the_other(queue)
    assert events == [
        *("move 5 of a", f"move {TAIL} of a", "moved 5 of a"),
        *(
            "move 1 of b",
            f"move {TAIL} of b",
            f"moved {TAIL} of a",
            "a is complete",
            "moved 1 of b",
        ),
        *("move 3 of c", f"moved {TAIL} of b", "b is complete"),
        *("moved 3 of c", "c is complete", "d is complete"),
    ]


def test_waits_of_two_survivors_for_each_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both send a message that the other one, whose threads have ended, never receives."""
    monkeypatch.setattr("sgp_runner.distributed.gloo_transport.ON_THEIR_WAY", 0.1)
    store, ranks = dist.HashStore(), (0, 1)
    with ThreadPoolExecutor(2) as pool:

        def group(name: str) -> list[dist.ProcessGroupGloo]:
            """Return the group as ranks 0 and 1 have it."""
            create = partial(dist.ProcessGroupGloo, dist.PrefixStore(name, store))
            return list(pool.map(lambda rank: create(rank, 2, timedelta(minutes=30)), ranks))

        headers, upward, downward = map(group, ("headers", "upward", "downward"))
        works = [
            sender.send([zeros(2**20)], 1 - rank, 2)
            for rank, sender in enumerate((upward[0], downward[1]))
        ]
        errors: list[str] = []

        def wait(work: dist.Work) -> None:
            with pytest.raises(RuntimeError) as error:
                work.wait()
            errors.append(str(error.value))

        threads = [Thread(target=wait, args=(work,), daemon=True) for work in works]
        for thread in threads:
            thread.start()

        def release(rank: int) -> None:
            groups = headers[rank], upward[rank], downward[rank]
            release_groups(lambda: None, groups, [1 - rank], [threads[rank]])

        list(pool.map(release, ranks))
    for thread in threads:
        thread.join(200)
    assert len(errors) == 2
