"""Signals at characteristic and at random moments of a command: the promised exit code, and one
sentence. The slow tests have more places and signals of each kind.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from helpers.processes import check_no_rank_is_left
from helpers.shooting import run, shot

from sgp_runner.utils.signals import STOPPING, signal_thread

RUN = ("model=mlp", "nodes=2", "epochs=2", "logger=jsonl", "name=run")
SIM = (*RUN, "network.engine=loop")  # which an interpreter imports in a second less
GLOO = (*RUN, "network=gloo")
CODES = {"SIGINT": 130, "SIGTERM": 75, "SIGUSR1": 75, "SIGUSR2": 75}
STEP = "sgp_runner.recording.observer:Observer.end_of_step"
CONCLUDE = "sgp_runner.assembly.real.rank_backend:RankBackend.conclude"
TWICE = [
    shot(STEP, "SIGINT", count=9),
    shot("sgp_runner.recording.draft:BackgroundWriter.copy", "SIGINT"),
]
SAVES = {
    "SIGTERM": "sgp-run: stopped by SIGTERM",
    "SIGINT": f"\n{STOPPING}\nsgp-run: interrupted",
}
UNSAVED = "There is no checkpoint yet to resume from."
INTERRUPTED = "interrupted before the end; its records are in results/runs/run"
STOPPED = f"stopped by SIGUSR2. {UNSAVED}"


def sentence(name: str, command: str = "sgp-run") -> str:
    """What a process says that a signal ends where nothing is to be saved or taken down."""
    if name == "SIGINT":
        return f"{command}: interrupted\n"
    return f"{command}: stopped by {name} with nothing to save. Run the same command again.\n"


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("sgp_runner.cli.main:", "SIGINT"),
        pytest.param("sgp_runner.cli.main:", "SIGTERM", marks=pytest.mark.slow),
        pytest.param("hydra.core.global_hydra:", "SIGINT", marks=pytest.mark.slow),
        pytest.param("sgp_runner.config.overrides:compose", "SIGUSR1", marks=pytest.mark.slow),
        ("torch:", "SIGINT"),
        ("sgp_runner.assembly.dry_run:verify_calls", "SIGUSR2"),
        pytest.param("sgp_runner.assembly.build:build_problem", "SIGTERM", marks=pytest.mark.slow),
    ],
)
def test_a_simulation_ends_at_once_where_it_does_not_train(
    where: str, name: str, tmp_path: Path
) -> None:
    # A library that makes another error of Ctrl-C, or loses it, does not get it.
    assert run(tmp_path, *SIM, shots=[shot(where, name)], wrapped="swallowed") == (
        CODES[name],
        sentence(name),
    )
    assert not (tmp_path / "results/runs/run/summary.json").exists()


def test_user_code_that_closes_all_descriptors_gets_no_traceback_of_another_thread() -> None:
    received, written = os.pipe()
    os.close(written)
    signal_thread(received)
    os.close(received)


@pytest.mark.parametrize(
    ("epochs", "wrapped"),
    [("2", "error"), pytest.param("100000", "swallowed", marks=pytest.mark.slow)],
)
def test_the_second_ctrl_c_is_130_though_a_library_makes_another_error_of_it_or_loses_it(
    epochs: str, wrapped: str, tmp_path: Path
) -> None:
    assert run(tmp_path, *SIM, f"epochs={epochs}", shots=TWICE, wrapped=wrapped) == (
        130,
        f"\n{STOPPING}\nsgp-run: interrupted\n",
    )


@pytest.mark.slow
def test_the_second_ctrl_c_ends_a_command_that_is_inside_a_library(tmp_path: Path) -> None:
    """Python handles neither while one call of a library lasts."""
    shots = [shot("sgp_runner.simulator.engine:Vmap.compute", "SIGINT", to="stuck")]
    assert run(tmp_path, *RUN, shots=shots) == (130, "sgp-run: interrupted\n")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param(name, says, marks=pytest.mark.slow if name == "SIGINT" else ())
        for name, says in SAVES.items()
    ],
)
def test_a_signal_in_training_saves_and_one_after_the_summary_comes_too_late(
    name: str, says: str, tmp_path: Path
) -> None:
    code, error = run(tmp_path, *SIM, shots=[shot(STEP, name, count=9)])
    saved = tmp_path / "results/runs/run/checkpoints/step-5"
    assert (code, error) == (
        CODES[name],
        f"{says}; saved in {saved.relative_to(tmp_path)}. Run the same command again to resume.\n",
    )
    assert saved.exists()
    late = shot("sgp_runner.console.summary:summary_table", "SIGUSR1")
    assert run(tmp_path, *SIM, shots=[late])[0] == 75
    assert (tmp_path / "results/runs/run/summary.json").exists()
    assert run(tmp_path, *SIM, shots=[]) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "where", "name", "rank", "to"),
    [
        pytest.param(
            SIM,
            "sgp_runner.recording.observer:Observer.conclude",
            "SIGINT",
            "",
            "self",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            SIM,
            "sgp_runner.recording.recorder:Recorder.finish",
            "SIGTERM",
            "",
            "self",
            marks=pytest.mark.slow,
        ),
        (SIM, "sgp_runner.recording.recorder:write_summary", "SIGINT", "", "self"),
        pytest.param(GLOO, CONCLUDE, "SIGINT", "1", "launcher", marks=pytest.mark.slow),
        (GLOO, "sgp_runner.recording.recorder:Recorder.finish", "SIGTERM", "0", "launcher"),
        pytest.param(
            GLOO,
            "sgp_runner.recording.recorder:write_summary",
            "SIGUSR1",
            "0",
            "launcher",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_signal_after_training_waits_for_the_summary(
    arguments: tuple[str, ...], where: str, name: str, rank: str, to: str, tmp_path: Path
) -> None:
    code, error = run(tmp_path, *arguments, shots=[shot(where, name, rank, to)])
    what = (
        f"\n{STOPPING}\nsgp-run: interrupted" if name == "SIGINT" else f"sgp-run: stopped by {name}"
    )
    ended = "but the run has ended; its results are in results/runs/run"
    assert (code, error) == (CODES[name], f"{what}, {ended}\n")
    assert (tmp_path / "results/runs/run/summary.json").exists()


@pytest.mark.parametrize("rank", [pytest.param("0", marks=pytest.mark.slow), "1"])
def test_a_signal_to_a_rank_after_training_does_not_end_the_run(rank: str, tmp_path: Path) -> None:
    assert run(tmp_path, *GLOO, shots=[shot(CONCLUDE, "SIGTERM", rank)]) == (0, "")
    assert (tmp_path / "results/runs/run/summary.json").exists()


def test_the_log_of_gloo_is_no_part_of_what_a_command_says(tmp_path: Path) -> None:
    said = "[/pytorch/gloo/transport/tcp/debug_logger.cc:9] ERROR failed to connect, willRetry=1\n"
    ours = "sgp-run: [a/gloo/b.cc:9] stays\n"
    program = f"import sys; sys.stderr.write({said + ours + said!r}); sys.exit(3)"
    assert run(tmp_path, shots=[], command=(sys.executable, "-c", program)) == (3, ours)


@pytest.mark.parametrize(
    ("where", "rank", "to", "name"),
    [
        ("sgp_runner.assembly.real.launch:wait_for", "", "self", "SIGINT"),
        pytest.param(
            "sgp_runner.assembly.rank_process:main", "1", "self", "SIGUSR2", marks=pytest.mark.slow
        ),
        pytest.param(
            "sgp_runner.utils.signals:install_in_rank",
            "1",
            "self",
            "SIGUSR2",
            marks=pytest.mark.slow,
        ),
        ("sgp_runner.distributed.torch_world:TorchWorld.connect", "1", "launcher", "SIGUSR2"),
        pytest.param(
            "sgp_runner.distributed.torch_world:TorchWorld.make_groups",
            "1",
            "self",
            "SIGINT",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_all_ranks_end_where_they_do_not_train(
    where: str, rank: str, to: str, name: str, tmp_path: Path
) -> None:
    """Whether the launching process is signalled, as soon as it has started them, or one rank."""
    code, error = run(tmp_path, *GLOO, shots=[shot(where, name, rank, to)])
    said = f"sgp-run: {INTERRUPTED}\n" if name == "SIGINT" else f"sgp-run: {STOPPED}\n"
    promise = f"\n{STOPPING}\n" if name == "SIGINT" and not rank else ""
    assert (code, error) == (CODES[name], promise + said)
    check_no_rank_is_left(tmp_path)
    assert not (tmp_path / "results/runs/run/summary.json").exists()


@pytest.mark.parametrize(
    ("to", "name"),
    [
        ("self", "SIGTERM"),
        pytest.param("launcher", "SIGTERM", marks=pytest.mark.slow),
        ("launcher", "SIGINT"),
    ],
)
def test_a_real_run_that_trains_saves_first(to: str, name: str, tmp_path: Path) -> None:
    where = "sgp_runner.assembly.real.saving:RankSaver.start_of_step"
    code, error = run(tmp_path, *GLOO, "epochs=1000", shots=[shot(where, name, "1", to, 5)])
    said = rf"{SAVES[name]}; saved in \S+/step-\d+. Run the same command again to resume.\n"
    assert code == CODES[name] and re.fullmatch(said, error)
    check_no_rank_is_left(tmp_path)


def test_the_second_ctrl_c_ends_real_ranks_at_once(tmp_path: Path) -> None:
    where = "sgp_runner.assembly.real.saving:RankSaver."
    shots = [
        shot(f"{where}start_of_step", "SIGINT", "1", "launcher", 5),
        shot(f"{where}save", "SIGINT", "1", "launcher"),
    ]
    assert run(tmp_path, *GLOO, "epochs=1000", shots=shots) == (
        130,
        f"\n{STOPPING}\nsgp-run: {INTERRUPTED}\n",
    )
    check_no_rank_is_left(tmp_path)


@pytest.mark.parametrize("name", [pytest.param("SIGTERM", marks=pytest.mark.slow), "SIGINT"])
def test_a_signal_to_a_sweep_saves_its_job_and_starts_no_other(name: str, tmp_path: Path) -> None:
    arguments = ("-m", *SIM[:4], *SIM[5:], "seed=1,2", "jobs=1")
    code, error = run(tmp_path, *arguments, shots=[shot(STEP, name, count=9)])
    said = rf"{SAVES[name]}; saved in \S+/step-5. Run the same command again to resume.\n"
    assert code == CODES[name] and re.fullmatch(said, error)
    assert len(list((tmp_path / "results/runs").iterdir())) == 1


def test_a_rank_that_a_signal_kills_before_it_hears_it_was_stopped(tmp_path: Path) -> None:
    """As if the signal had come while its interpreter started; it is no fork of a command."""
    where = "sgp_runner.utils.signals:"
    start = (
        sys.executable,
        "-c",
        "import sys; from sgp_runner.cli.main import main; sys.exit(main())",
    )
    code, error = run(tmp_path, *GLOO, shots=[shot(where, "SIGTERM", "1")], command=start)
    assert (code, error) == (75, f"sgp-run: stopped by SIGTERM. {UNSAVED}\n")
    check_no_rank_is_left(tmp_path)


@pytest.mark.parametrize(
    ("command", "where", "arguments"),
    [
        pytest.param(
            "sgp_run", "sgp_runner.cli.sweep:plan", ["-m", "seed=1,2"], marks=pytest.mark.slow
        ),
        pytest.param(
            "sgp_run",
            "sgp_runner.jobs.sweep_job:run_experiment",
            ["-m", "seed=1,2", "jobs=1"],
            marks=pytest.mark.slow,
        ),
        ("sgp_run", "sgp_runner.cli.calibrate:prepared", ["calibrate"]),
        pytest.param(
            "sgp_run",
            "sgp_runner.assembly.real.launch:wait_for",
            ["calibrate", "nodes=2"],
            marks=pytest.mark.slow,
        ),
        ("sgp_replay", "sgp_runner.replay.exact:", ["."]),
        ("sgp_report", "sgp_runner.report.render.write:", ["."]),
    ],
)
def test_ctrl_c_ends_every_command_with_one_sentence(
    command: str, where: str, arguments: list[str], tmp_path: Path
) -> None:
    start = f"from sgp_runner.cli.commands import {command}; {command}()"
    arguments = [*arguments, *(SIM if "-m" in arguments else ())]
    code, error = run(
        tmp_path, *arguments, shots=[shot(where, "SIGINT")], command=(sys.executable, "-c", start)
    )
    promised = error.removeprefix(f"\n{STOPPING}\n")  # by a command that starts ranks
    assert (code, promised) == (130, sentence("SIGINT", command.replace("_", "-")))
