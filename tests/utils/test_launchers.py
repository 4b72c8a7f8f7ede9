"""Environments as the launchers leave them (Slurm 22.05, Open MPI 5.0, PyTorch 2.13), alone, inside
each other, and by halves.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import run_command

from sgp_runner.recording.recorder import read_metrics
from sgp_runner.utils.launchers import (
    Launched,
    LaunchError,
    launched,
    local_ranks,
    machines_of_job,
    own_local_rank,
    rendezvous,
    under_launcher,
)

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "29500",
}
ALLOCATION = {"SLURM_JOB_ID": "1000", "SLURM_JOB_NODELIST": "a[1-4]", "SLURM_NNODES": "4"}
BATCH = {
    **ALLOCATION,
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "4",
}  # what a batch script sees
SRUN = {
    **BATCH,
    "SLURM_PROCID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "a[1-4]",
}
ONE_TASK = {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-head-7411@1",
}
BY_HAND = {"RANK": "0", "WORLD_SIZE": "2"}

RECOGNISED = {
    "nothing": ({}, None),
    "only an address": ({"MASTER_ADDR": "head", "MASTER_PORT": "29500"}, None),
    "torchrun": (TORCHRUN, Launched("torchrun", 3, 4, 1)),
    "by hand": (BY_HAND, Launched("torchrun", 0, 2, None)),
    "salloc": (ALLOCATION, None),
    "sbatch": (BATCH, None),
    "srun": (SRUN, Launched("srun", 2, 4, 0)),
    "srun of one task, as submitit does": (ONE_TASK, None),
    "an interactive step": ({**ONE_TASK, "SLURM_STEP_ID": "4294967290"}, None),
    "srun with WORLD_SIZE set for all": ({**SRUN, "WORLD_SIZE": "4"}, Launched("srun", 2, 4, 0)),
    "mpirun": (MPIRUN, Launched("mpirun", 1, 2, 1)),
    "torchrun inside srun": ({**SRUN, **TORCHRUN}, Launched("torchrun", 3, 4, 1)),
    "torchrun inside mpirun": ({**MPIRUN, **TORCHRUN}, Launched("torchrun", 3, 4, 1)),
    "mpirun inside sbatch": ({**BATCH, **MPIRUN}, Launched("mpirun", 1, 2, 1)),
    "mpirun on another node, whose helper srun started": (
        {**SRUN, **MPIRUN},
        Launched("mpirun", 1, 2, 1),
    ),
}
REFUSED = {
    "RANK alone": (
        {"RANK": "0"},
        "WORLD_SIZE: not set, but RANK is; set both, or neither to start the ranks here.",
    ),
    "RANK alone inside srun": (
        {**SRUN, "RANK": "0"},
        "WORLD_SIZE: not set, but RANK is; set both,",
    ),
    "WORLD_SIZE alone": (
        {"WORLD_SIZE": "4"},
        "WORLD_SIZE: set, but RANK is not; set both, or unset it",
    ),
    "WORLD_SIZE alone in sbatch": (
        {**BATCH, "WORLD_SIZE": "4"},
        "WORLD_SIZE: set, but RANK is not; set both,",
    ),
    "WORLD_SIZE of another step": (
        {**SRUN, "WORLD_SIZE": "8"},
        "WORLD_SIZE: 8 contradicts SLURM_STEP_NUM_TASKS=4 of srun; unset it.",
    ),
    "no number": ({**TORCHRUN, "WORLD_SIZE": "four"}, "WORLD_SIZE: 'four' is not a whole number."),
    "no rank": ({**TORCHRUN, "RANK": ""}, "RANK: '' is not a whole number."),
    "no local rank": ({**TORCHRUN, "LOCAL_RANK": "x"}, "LOCAL_RANK: 'x' is not a whole number."),
    "half a rank": ({**TORCHRUN, "RANK": "1_0"}, "RANK: '1_0' is not a whole number."),
    "a negative local rank": ({**TORCHRUN, "LOCAL_RANK": "-1"}, "LOCAL_RANK: -1 must be at least"),
    "a local rank too many": (
        {**TORCHRUN, "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"},
        "LOCAL_RANK: 2 must be less than LOCAL_WORLD_SIZE=2.",
    ),
    "a local rank of a larger job": (
        {**MPIRUN, "OMPI_COMM_WORLD_LOCAL_RANK": "2"},
        "OMPI_COMM_WORLD_LOCAL_RANK: 2 must be less than OMPI_COMM_WORLD_SIZE=2.",
    ),
    "nobody": ({**TORCHRUN, "WORLD_SIZE": "0"}, "WORLD_SIZE: 0 must be at least 1 process."),
    "a rank too many": (
        {**TORCHRUN, "RANK": "4"},
        "RANK: 4 must be between 0 and WORLD_SIZE - 1 = 3.",
    ),
    "a negative rank": (
        {**MPIRUN, "OMPI_COMM_WORLD_RANK": "-1"},
        "OMPI_COMM_WORLD_RANK: -1 must be between 0 and OMPI_COMM_WORLD_SIZE - 1 = 1.",
    ),
    "mpirun by halves": (
        {"OMPI_COMM_WORLD_RANK": "1"},
        "OMPI_COMM_WORLD_SIZE: not set, but OMPI_COMM_WORLD_RANK is;",
    ),
    "srun by halves": (
        {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1"},
        "SLURM_STEP_NUM_TASKS: not set, but SLURM_PROCID is;",
    ),
}
ADDRESSES = {
    "torchrun": (TORCHRUN, "head", "29500"),
    "srun": (SRUN, "a1", "21000"),
    "srun, second step": ({**SRUN, "SLURM_STEP_ID": "1"}, "a1", "21001"),
    "srun on some nodes of a job": ({**SRUN, "SLURM_STEP_NODELIST": "a[3-4]"}, "a3", "21000"),
    "srun without a list of its own": ({**SRUN, "SLURM_STEP_NODELIST": ""}, "a1", "21000"),
    "srun with an address": ({**SRUN, "MASTER_ADDR": "here", "MASTER_PORT": "77"}, "here", "77"),
    "mpirun on one machine": (MPIRUN, "127.0.0.1", "21150"),
    "mpirun with an address": (
        {**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "MASTER_ADDR": "head"},
        "head",
        "21150",
    ),
}
NO_ADDRESS = {
    "by hand": (
        BY_HAND,
        ("MASTER_ADDR: not set, but every rank needs the host of rank 0; set it, and MASTER_PORT."),
    ),
    "no port": (
        {**BY_HAND, "MASTER_ADDR": "head"},
        "MASTER_PORT: not set; set it to a port of the host of rank 0,",
    ),
    "no such port": (
        {**TORCHRUN, "MASTER_PORT": "65536"},
        "MASTER_PORT: 65536 must be between 1 and 65535.",
    ),
    "an address with a port": (
        {**TORCHRUN, "MASTER_ADDR": "head:29500"},
        "MASTER_ADDR: 'head:29500' is not a host: write only a name or an address, such as node1.",
    ),
    "an address with a protocol": (
        {**TORCHRUN, "MASTER_ADDR": "tcp://head"},
        "MASTER_ADDR: 'tcp://head' is not a host: write only a name or an address, such as node1.",
    ),
    "words for a port": (
        {**TORCHRUN, "MASTER_PORT": "http"},
        "MASTER_PORT: 'http' is not a whole number.",
    ),
    "srun without nodes": (
        {**SRUN, "SLURM_STEP_NODELIST": "", "SLURM_JOB_NODELIST": ""},
        (
            "MASTER_ADDR: not set in srun, and neither is SLURM_STEP_NODELIST; set it to the "
            "host of rank 0."
        ),
    ),
    "nodes that scontrol does not know": (
        {**SRUN, "SLURM_STEP_NODELIST": "broken["},
        "SLURM_STEP_NODELIST: scontrol cannot expand 'broken['",
    ),
    "mpirun over machines": (
        {**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
        (
            "MASTER_ADDR: not set, but every rank needs the host of rank 0; use mpirun -x "
            "MASTER_ADDR=HOST."
        ),
    ),
}


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expands names such as a[3-4], for machines without Slurm; tests/cli/test_slurm.py has the
    real one.
    """
    program = tmp_path / "scontrol"
    program.write_text(
        "#!/bin/bash\n"
        "[[ $3 =~ ^(.*)\\[([0-9]+)-([0-9]+)\\]$ ]] || exit 1\n"
        "for ((i = BASH_REMATCH[2]; i <= BASH_REMATCH[3]; i++)); do "
        'echo "${BASH_REMATCH[1]}$i"; done\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.parametrize("name", RECOGNISED)
def test_launchers_are_recognised_the_innermost_first(name: str) -> None:
    environment, expected = RECOGNISED[name]
    assert launched(environment) == expected


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_set_by_halves_is_one_sentence(name: str) -> None:
    environment, sentence = REFUSED[name]
    with pytest.raises(LaunchError, match=f"^{re.escape(sentence)}"):
        launched(environment)


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 8),
        ({"RANK": "0", "WORLD_SIZE": "8", "SGP_RUN_STORE": "/tmp/store"}, 8),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "2"}, 2),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 4),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "3"}, 3),
    ],
)
def test_ranks_on_this_machine(environment: dict[str, str], count: int) -> None:
    assert local_ranks(8, environment) == count


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("LOCAL_WORLD_SIZE", "two", "'two' is not a whole number."),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "0", "0 must be at least 1."),
        ("SLURM_STEP_NUM_NODES", "-1", "-1 must be at least 1."),
    ],
)
def test_numbers_of_ranks_that_cannot_be_are_refused(name: str, value: str, sentence: str) -> None:
    with pytest.raises(LaunchError, match=f"^{name}: {sentence}"):
        local_ranks(8, {"SLURM_STEP_ID": "0", name: value})
    assert own_local_rank({}) == 0 and machines_of_job({"SLURM_JOB_NUM_NODES": "3"}) == 3
    with pytest.raises(LaunchError, match="^SLURM_JOB_NUM_NODES: 'x' is not a whole number."):
        machines_of_job({"SLURM_JOB_NUM_NODES": "x"})


def test_only_other_launchers_make_the_lines_plain() -> None:
    assert under_launcher(TORCHRUN) and not under_launcher({})
    assert not under_launcher({**TORCHRUN, "SGP_RUN_STORE": "/tmp/store"})


@pytest.mark.parametrize("name", ADDRESSES)
def test_where_rank_0_listens(name: str, scontrol: None) -> None:
    environment, host, port = ADDRESSES[name]
    process = launched(environment)
    assert process is not None
    out = rendezvous(process, environment)
    assert (out["MASTER_ADDR"], out["MASTER_PORT"]) == (host, port)
    assert launched(out) == Launched("torchrun", process.rank, process.size, process.local_rank)


@pytest.mark.parametrize("name", NO_ADDRESS)
def test_an_address_is_never_guessed(name: str, scontrol: None) -> None:
    environment, sentence = NO_ADDRESS[name]
    process = launched(environment)
    assert process is not None
    with pytest.raises(LaunchError, match=f"^{re.escape(sentence)}"):
        rendezvous(process, environment)


def test_without_scontrol_there_is_no_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        LaunchError,
        match=(
            r"^SLURM_STEP_NODELIST: scontrol cannot expand 'a\[1-4\]' .*; set MASTER_ADDR to the "
            "host of rank 0"
        ),
    ):
        rendezvous(Launched("srun", 2, 4, 0), SRUN)


RUN = ("model=mlp", "epochs=1", "logger=jsonl")


@pytest.mark.parametrize(
    ("environment", "settings", "sentence"),
    [
        ({"RANK": "1"}, ["network=gloo"], "WORLD_SIZE: not set, but RANK is; "),
        (
            {"RANK": "1"},
            ["nodez=4"],
            "nodez: there is no such setting. ",
        ),  # a rank that does not know whether it is the first
        (
            {"RANK": "1", "WORLD_SIZE": "2"},
            ["network=gloo", "nodes=2"],
            "MASTER_ADDR: not set, but every rank ",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2"},
            ["nodes=2"],
            "network: the simulator is one process, but torchrun has started 2; ",
        ),
    ],
)
def test_a_bad_launch_is_one_sentence_and_nothing_is_written(
    environment: dict[str, str], settings: list[str], sentence: str, tmp_path: Path
) -> None:
    done = run_command(*RUN, *settings, folder=tmp_path, variables=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(f"sgp-run: {re.escape(sentence)}.*\n", done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_mpirun_starts_the_ranks(tmp_path: Path) -> None:
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if mpirun is None:
        pytest.skip("needs mpirun: pip install 'sgp-runner[mpi]'")
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = (mpirun, "--oversubscribe", "-n", "2", sys.executable, "-m", "sgp_runner")
    done = subprocess.run(
        [*command, *RUN, "network=gloo", "nodes=2"],
        check=False,
        cwd=tmp_path,
        env={**os.environ, **as_root},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("accuracy of the averaged model") == 1
    (directory,) = (tmp_path / "results" / "runs").iterdir()
    assert {record["rank"] for record in read_metrics(directory) if record["kind"] == "train"} == {
        0,
        1,
    }


def test_a_job_of_one_task_starts_its_ranks_itself(tmp_path: Path) -> None:
    done = run_command(*RUN, "network=gloo", "nodes=2", folder=tmp_path, variables=ONE_TASK)
    assert done.returncode == 0, done.stderr
    assert "2 nodes · gloo" in done.stdout
