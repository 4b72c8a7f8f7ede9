"""Real processes under ``mpirun``: the simulator's results, errors that end every rank, and none
left behind.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.commands import run_command
from helpers.experiments import distance, make_experiment
from helpers.paths import RANKS, ROOT
from helpers.processes import check_no_rank_is_left, hear_interrupts, wait_for_ranks, wait_until
from helpers.variants import (
    SMALL,
    SYNCHRONOUS,
    Results,
    check_budget,
    check_same_end,
    run_in_turn,
    simulate_all,
)

from sgp_runner.assembly import execution
from sgp_runner.cli.main import main
from sgp_runner.config.experiment import Experiment
from sgp_runner.recording.checkpoint import saved_steps
from sgp_runner.recording.recorder import read_metrics, read_summary
from sgp_runner.utils.errors import RankFailed

MPIRUN = [str(Path(sys.executable).with_name("mpirun")), "--oversubscribe"]
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def mpirun(
    ranks: int, *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [*MPIRUN, "-n", str(ranks), sys.executable, *arguments]
    return subprocess.run(
        command, check=False, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=1000
    )


def run_ranks(
    *experiments: Experiment, fail_on_rank: int = -1, program: str = "real_rank.py"
) -> subprocess.CompletedProcess[str]:
    configs = (str(experiment.directory / "config.yaml") for experiment in experiments)
    return mpirun(experiments[0].run.ranks, str(RANKS / program), str(fail_on_rank), *configs)


EPOCHS = 3
WITH_SERVER = {**SYNCHRONOUS, "ps_sgd": ("nodes=3",)}
ASYNCHRONOUS = {  # -> nodes; with their servers all have four ranks
    **{"ad_psgd": 4, "osgp": 4, "gap_aware": 3},
    "async_diloco algo.period=2 algo.momentum=0 algo.lr=1": 3,
}
# All kinds of calls: averages, whole and compressed, one peer, several, a server, late messages.
SAMPLE = (
    *("ar_sgd", "pipe_sgd compressed", "sgp", "d_psgd", "osgp as released", "slowmo of local_sgd"),
    *("ps_sgd", "ad_psgd", "gap_aware"),
)


class Runs(NamedTuple):
    """Simulated and real runs, asynchronous real runs, and what the ranks have printed."""

    synchronous: Results
    asynchronous: dict[str, Experiment]
    output: str


def run_all(folder: Path, names: Collection[str]) -> Runs:
    """Run algorithms, synchronous ones also simulated; one launch of four ranks, of which one may
    be a server, exchanges messages and runs them all.
    """
    variants = {name: settings for name, settings in WITH_SERVER.items() if name in names}
    synchronous = simulate_all(folder, "mpi", tiny=SMALL, variants=variants)
    overrides = ("network=mpi", "model=mlp", f"epochs={EPOCHS}", "optim.schedule=warmup_cosine")
    asynchronous = {
        algorithm: make_experiment(
            folder, *f"algo={algorithm}".split(), *overrides, f"nodes={nodes}"
        )
        for algorithm, nodes in ASYNCHRONOUS.items()
        if algorithm in names
    }
    every_real = [*(real for _, real in synchronous.values()), *asynchronous.values()]
    outputs = []

    def launch(experiments: list[Experiment]) -> None:
        done = run_ranks(*experiments, program="mpi_messages.py")
        outputs.append(done.stdout)
        if done.returncode:
            raise RankFailed(done.stdout + done.stderr)

    run_in_turn(every_real, launch)
    return Runs(synchronous, asynchronous, outputs[0])


def check_run(name: str, runs: Runs) -> None:
    """Synchronous ones end with the simulator's parameters, others spend their budget exactly."""
    if name in runs.synchronous:
        check_same_end(*runs.synchronous[name])
    else:
        check_budget(runs.asynchronous[name], EPOCHS * {3: 3 * 59, 4: 4 * 44}[ASYNCHRONOUS[name]])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return run_all(tmp_path_factory.mktemp("runs"), SAMPLE)


@pytest.mark.parametrize("name", SAMPLE)
def test_algorithms_end_with_the_simulators_parameters_or_learn(name: str, runs: Runs) -> None:
    check_run(name, runs)


@pytest.mark.slow
def test_all_algorithms_end_with_the_simulators_parameters_or_learn(tmp_path: Path) -> None:
    rest = [name for name in (*WITH_SERVER, *ASYNCHRONOUS) if name not in SAMPLE]
    runs = run_all(tmp_path, rest)
    for name in rest:
        check_run(name, runs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [("algo=ar_sgd",), ("algo=pipe_sgd", "algo.depth=3"), ("algo=sgp",)], ids=" ".join
)
def test_a_run_that_was_told_to_stop_goes_on_to_the_same_bytes(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    settings = ("network=mpi", "nodes=2", "model=mlp", "epochs=60", "eval_every=1000", *overrides)
    whole = make_experiment(tmp_path / "whole", *settings)
    assert run_ranks(whole).returncode == 0
    cut = make_experiment(tmp_path / "cut", *settings)
    configuration = str(cut.directory / "config.yaml")
    command = [*MPIRUN, "-n", "2", sys.executable, str(RANKS / "real_rank.py"), "-1", configuration]
    first = subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    os.kill(wait_for_ranks(tmp_path / "cut", 2)[1], signal.SIGUSR1)
    _, error = first.communicate(timeout=600)
    assert first.returncode == 75, error
    assert len(saved_steps(cut.checkpoints)) == 1
    again = run_ranks(cut)
    assert again.returncode == 0 and "This run resumes from step" in again.stdout
    assert distance(whole, cut) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "wait"), [("sgp", r"a message from rank \d"), ("local_sgd", r"all-reduce \d")]
)
def test_a_rank_that_is_stopped_ends_the_run_with_one_report(
    algo: str, wait: str, tmp_path: Path
) -> None:
    overrides = [
        "network=mpi",
        "network.timeout_seconds=10",
        "nodes=3",
        "model=mlp",
        "epochs=100000",
        "logger=jsonl",
        f"algo={algo}",
    ]
    command = [
        *MPIRUN,
        "-n",
        "3",
        sys.executable,
        "-m",
        "sgp_runner",
        *overrides,
        f"results={tmp_path}",
    ]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        os.kill(wait_for_ranks(tmp_path, 3)[1], signal.SIGSTOP)
        _, error = process.communicate(timeout=1000)
    assert process.returncode == 1
    assert error.count("The run stalled:") == error.count("sgp-run: ") == 1
    assert re.search(rf"^  rank \d waits for {wait} for \d+\.\d s$", error, re.MULTILINE)
    assert re.search(
        (
            rf"^sgp-run: the run stalled \(network.timeout_seconds\): rank \d waits for {wait} "
            r"for [\d.]+ s; rank \d does not answer.$"
        ),
        error,
        re.MULTILINE,
    )
    check_no_rank_is_left(tmp_path)


LATE = """
import sys, time, mpi4py
mpi4py.rc(thread_level="funneled", finalize=False)
from mpi4py import MPI
from sgp_runner.cli.main import main
if MPI.COMM_WORLD.rank == 0:
    time.sleep(100)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_rank_that_does_not_come_to_the_start_is_not_waited_for_without_end(
    tmp_path: Path,
) -> None:
    overrides = [
        "network=mpi",
        "network.start_timeout_seconds=2",
        "nodes=3",
        "model=mlp",
        "logger=jsonl",
        f"results={tmp_path}",
    ]
    done = mpirun(3, "-c", LATE, *overrides)
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if "sgp-run:" in line)
    waited = (
        "rank 1 has waited for all 3 ranks to start for 7 s (network.start_timeout_seconds), but "
        "at least one did not."
    )
    assert line == f"sgp-run: {waited}"


def start_script_of_the_page(folder: Path) -> subprocess.Popen[str]:
    """Start a long run with the script of docs/running.md that turns Ctrl-C into SIGUSR1."""
    page = (ROOT / "docs/running.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```bash\n(set -m [\s\S]+?)```", page)
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    mapping = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    overrides = ["algo=sgp", "model=mlp", "epochs=100000", "logger=jsonl", f"results={folder}"]
    return subprocess.Popen(
        ["bash", "-c", script, "mpirun.sh", *overrides],
        env={**ENVIRONMENT, **path, **mapping},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
    )


def num_bytes_recorded(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("runs/*/metrics*.jsonl"))


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_the_script_of_the_page_saves_a_run_that_resumes(
    number: signal.Signals, tmp_path: Path
) -> None:
    recorded = 0
    for before in ("SIGUSR1 to mpirun saves this run", "This run resumes from step "):
        with start_script_of_the_page(tmp_path) as script:
            wait_until(lambda then=recorded: num_bytes_recorded(tmp_path) > then, "steps")
            script.send_signal(number)
            out, error = script.communicate(timeout=600)
        recorded = num_bytes_recorded(tmp_path)
        assert script.returncode == 75 and before in out, error
        assert error.count("sgp-run: stopped by SIGUSR1; saved in ") == 1
    check_no_rank_is_left(tmp_path)


def test_messages_of_every_type_and_length_arrive_in_order(runs: Runs) -> None:
    assert runs.output.splitlines()[:6] == [
        "1: 4000000 x 1 float64, 2 int8, 0 bfloat16",
        "2: 4000000 x 2 float64, 2 int8, 0 bfloat16",
        "3: 4000000 x 3 float64, 2 int8, 0 bfloat16",
        "from anybody: 1, 2, 3",
        "polled: 7",
        "mean of 0, 1, 2, 3: 1.5",
    ]


def test_the_command_runs_under_mpirun(tmp_path: Path) -> None:
    done = mpirun(
        2,
        "-m",
        "sgp_runner",
        "network=mpi",
        "nodes=2",
        "model=mlp",
        "epochs=1",
        "logger=jsonl",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("accuracy of the averaged model") == 1
    note = (
        "SIGUSR1 to mpirun saves this run and stops it. Ctrl-C and SIGTERM do not save it: mpirun "
        "kills its ranks half a second later."
    )
    assert done.stdout.splitlines().count(note) == 1
    (directory,) = (tmp_path / "results" / "runs").iterdir()
    assert read_summary(directory) is not None
    assert {record["rank"] for record in read_metrics(directory) if record["kind"] == "train"} == {
        0,
        1,
    }


def test_settings_that_cannot_work_are_refused_once(tmp_path: Path) -> None:
    done = mpirun(2, "-m", "sgp_runner", "network=mpi", "nodes=4", "model=mlp", cwd=tmp_path)
    assert done.returncode == 2
    sentence = "sgp-run: nodes: 4 nodes need 4 processes, but the launcher started 2."
    assert done.stderr.count("sgp-run:") == 1 and sentence in done.stderr.splitlines()
    assert not (tmp_path / "results").exists()


def test_a_launcher_that_is_not_mpirun_is_refused(tmp_path: Path) -> None:
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    done = run_command("network=mpi", "nodes=2", "model=mlp", folder=tmp_path, variables=torchrun)
    assert done.returncode == 2
    assert done.stderr == (
        "sgp-run: network: torchrun has started 2 processes, but MPI connects 1: use the mpirun "
        "of the library that mpi4py was built for.\n"
    )
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("algorithm", "missing", "sentence"),
    [
        (
            "sgp",
            "",
            "mpi runs under mpirun: start it with mpirun -n 4 sgp-run network=mpi nodes=4 ...",
        ),
        (
            "gap_aware",
            "",
            "mpi runs under mpirun: start it with mpirun -n 5 sgp-run network=mpi nodes=4 ...",
        ),
        ("sgp", "mpi4py", "mpi needs mpi4py and an MPI library: pip install 'sgp-runner[mpi]' ("),
    ],
)
def test_what_is_missing_is_said_with_the_command_that_helps(
    algorithm: str,
    missing: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if missing:
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
        monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.chdir(tmp_path)
    assert main([f"algo={algorithm}", "network=mpi", "nodes=4", "model=mlp"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"sgp-run: network: {sentence}")
    assert error.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_an_error_in_one_rank_is_reported_once_with_its_rank_and_ends_all(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path, "network=mpi", "nodes=2", "model=mlp", "epochs=50")
    done = run_ranks(experiment, fail_on_rank=1)
    assert done.returncode == 1
    assert done.stdout.count("RankFailed: rank 1, step 2: ZeroDivisionError: made to fail") == 1
    assert (done.stdout + done.stderr).count("made to fail") == 1
    check_no_rank_is_left(tmp_path)


@pytest.mark.parametrize(
    ("number", "victim"),
    [
        (signal.SIGKILL, "rank"),
        (signal.SIGKILL, "mpirun"),
        pytest.param(signal.SIGINT, "mpirun", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "mpirun", marks=pytest.mark.slow),
    ],
)
def test_whatever_is_killed_nobody_survives(
    number: signal.Signals, victim: str, tmp_path: Path
) -> None:
    overrides = [
        "network=mpi",
        "nodes=2",
        "model=mlp",
        "epochs=100000",
        "logger=jsonl",
        f"results={tmp_path}",
    ]
    command = subprocess.Popen(
        [*MPIRUN, "-n", "2", sys.executable, "-m", "sgp_runner", *overrides],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_interrupts,
    )
    ranks = wait_for_ranks(tmp_path, 2)
    os.kill(ranks[1] if victim == "rank" else command.pid, number)
    _, err = command.communicate(timeout=300)
    assert victim == "mpirun" or "exited on signal 9 (Killed)" in " ".join(err.split())
    check_no_rank_is_left(tmp_path)


KEEPS = """\
import sys
from sgp_runner.assembly import execution
from sgp_runner.cli.main import main
execution.keep_only = lambda *_: None  # as after an interruption
sys.exit(main(sys.argv[1:]))
"""
RESIZED = (
    *("model=quadratic", "data.samples=96", "data.dimension=4", "batch_size=4", "dtype=float64"),
    *("logger=jsonl", "epochs=2", "optim.schedule=cosine", "optim.momentum=0.9", "eval_every=9"),
    *("checkpoint.every_steps=4", "checkpoint.keep=99", "log_every=1"),
    *("algo=diloco", "algo.period=3"),
)  # each of four nodes has 6 steps in an epoch, and each of two has 12


def test_two_ranks_continue_a_run_of_four_as_in_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "keep_only", lambda *_: None)
    curves = {}
    for network in ("sim", "mpi"):
        folder = tmp_path / network
        folder.mkdir()
        monkeypatch.chdir(folder)
        for nodes, more in ((4, ()), (2, ("resume=resize",))):
            overrides = (*RESIZED, f"network={network}", f"nodes={nodes}", *more)
            if network == "sim":
                assert main([*overrides]) == 0
            else:
                done = mpirun(nodes, "-c", KEEPS, *overrides, cwd=folder)
                assert done.returncode == 0, done.stderr
            (run,) = folder.glob(f"results/runs/*-n{nodes}-*")
            for path in run.glob("checkpoints/*") if nodes == 4 else ():
                if path.name != "step-4":
                    shutil.rmtree(path)
        records = read_metrics(run)
        resized = next(record for record in records if record["kind"] == "resized")
        assert (resized["nodes_before"], resized["step"], resized["epoch"]) == (4, 4, 8 / 12)
        curves[network] = {
            (record["kind"], record["rank"], record["step"]): record["loss"]
            for record in records
            if record["kind"] in ("train", "eval")
        }
    assert len(curves["sim"]) == 2 * (24 - 8) + 2
    assert curves["mpi"] == pytest.approx(curves["sim"], rel=0, abs=1e-10)
