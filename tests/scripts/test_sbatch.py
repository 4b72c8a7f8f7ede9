"""The command that ``slurm/run.sbatch`` gives to srun, with programs that show what they are given.

tests/cli/test_slurm.py submits it to a real Slurm.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from helpers.paths import ROOT

SHOWN = ("NCCL_IB_DISABLE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS")
# What srun is given; a step of one task runs its command.
SRUN = """#!/usr/bin/env bash
[[ $1 == --help ]] && echo "$SRUN_HELP" && exit
[[ -z ${SLURM_HOSTFILE:-} ]] || echo "hosts: $(tr '\\n' ' ' <"$SLURM_HOSTFILE")" >&2
[[ $1 == --nodes=1 ]] && echo "step: $*" >&2 && exec sgp-run --cfg job
printf '%s\\n' "$@"
for name in NAMES LOADED; do
    [[ -z ${!name:-} ]] || echo "$name=${!name}"
done
"""
SGP_RUN = """#!/usr/bin/env bash
printf 'gpus_per_node: %s\\non_failure: %s\\n' "${DEVICES:-2}" "${ON_FAILURE:-stop}"
"""
APPTAINER = """#!/usr/bin/env bash
echo "apptainer: $*" >&2
exec sgp-run
"""
IP = """#!/usr/bin/env bash
echo '1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 state UNKNOWN\\    link/loopback 00:00:00:00:00:00'
echo '2: eno1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500\\    link/ether 0c:42:a1:00:00:01'
echo '3: ibp5s0: <BROADCAST,MULTICAST> mtu 4092 state DOWN\\    link/infiniband 80:00:00:01'
echo '4: ibp6s0.8001@ibp6s0: <BROADCAST,UP,LOWER_UP> mtu 4092\\    link/infiniband 80:00:00:02'
echo '5: ibp7s0: <BROADCAST,UP,LOWER_UP> mtu 4092 state UP\\    link/infiniband 80:00:00:03'
"""
RANK = ["sgp-run", "algo=sgp", "nodes=2"]
STEP = ["--ntasks=4", "--ntasks-per-node=2", "--cpus-per-task=4", "--wait=60"]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that is first on the PATH; the working directory is beside it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "clone").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    add(folder, "srun", SRUN.replace("NAMES", " ".join(SHOWN)))
    add(folder, "sgp-run", SGP_RUN)
    return folder


def add(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def submit(programs: Path, **variables: str) -> tuple[int, list[str], str]:
    """Exit code, what srun was given with the variables that it has, and stderr."""
    given = {name: value for name, value in os.environ.items() if name not in SHOWN} | {
        **{"PATH": f"{programs}:/usr/bin:/bin", "SLURM_JOB_ID": "7"},
        **{"SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_ON_NODE": "8"},
    }
    done = subprocess.run(
        ["bash", str(ROOT / "slurm/run.sbatch"), *RANK[1:]],
        env=given | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    ("variables", "seen"),
    [
        ({}, []),
        ({"SGP_FABRIC": "ethernet"}, ["NCCL_IB_DISABLE=1"]),
        (
            {"SGP_FABRIC": "infiniband"},
            [
                "NCCL_IB_DISABLE=0",
                "GLOO_SOCKET_IFNAME=ibp6s0.8001",
                "NCCL_SOCKET_IFNAME=ibp6s0.8001",
            ],
        ),
        (
            {"SGP_FABRIC": "infiniband", "SGP_INTERFACE": "ib1"},
            ["NCCL_IB_DISABLE=0", "GLOO_SOCKET_IFNAME=ib1", "NCCL_SOCKET_IFNAME=ib1"],
        ),
        (
            {"SGP_INTERFACE": "eno1,eno2"},
            ["GLOO_SOCKET_IFNAME=eno1,eno2", "NCCL_SOCKET_IFNAME=eno1,eno2"],
        ),
    ],
)
def test_the_network_is_chosen(programs: Path, variables: dict[str, str], seen: list[str]) -> None:
    add(programs, "ip", IP)
    assert submit(programs, **variables) == (0, [*STEP, *RANK, *seen, "OMP_NUM_THREADS=4"], "")


@pytest.mark.parametrize(
    ("variables", "step", "hosts"),
    [
        # gossip nodes with one GPU each, four on a machine, and five on two machines
        (
            {"DEVICES": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "4"},
            ["--ntasks=4", "--ntasks-per-node=4", "--cpus-per-task=2"],
            "",
        ),
        ({"DEVICES": "1", "SLURM_NTASKS": "5"}, ["--ntasks=5", "--cpus-per-task=2"], ""),
        (
            {"DEVICES": "1", "SLURM_NTASKS_PER_NODE": "4"},
            ["--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=2"],
            "",
        ),
        # three nodes of two devices, and two nodes of three devices and a server
        (
            {"SLURM_NTASKS": "6"},
            ["--ntasks=6", "--distribution=arbitrary", "--cpus-per-task=2"],
            "hosts: a a a a b b \n",
        ),
        (
            {"DEVICES": "3", "SLURM_JOB_NUM_NODES": "3", "SLURM_NTASKS": "7"},
            ["--ntasks=7", "--distribution=arbitrary", "--cpus-per-task=2"],
            "hosts: a a a b b b c \n",
        ),
        (
            {"SLURM_NTASKS": "16", "SLURM_CPUS_ON_NODE": "6"},
            ["--ntasks=16", "--ntasks-per-node=8", "--cpus-per-task=1"],
            "",
        ),
        (
            {"SLURM_NTASKS": "8", "SLURM_CPUS_PER_TASK": "3"},
            ["--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=3"],
            "",
        ),
    ],
)
def test_ranks_share_a_machine(
    programs: Path, variables: dict[str, str], step: list[str], hosts: str
) -> None:
    add(programs, "scontrol", "#!/usr/bin/env bash\nprintf '%s\\n' a b c\n")
    cores = step[-1].replace("--cpus-per-task", "OMP_NUM_THREADS")
    assert submit(programs, **variables) == (0, [*step, "--wait=60", *RANK, cores], hosts)


def test_every_rank_reads_the_setup(programs: Path) -> None:
    Path("setup.sh").write_text("export LOADED=cuda/$UNSET\n")
    reading = ["bash", "-c", 'source "$0"; exec "$@"', f"{Path.cwd()}/setup.sh"]
    assert submit(programs, SGP_SETUP="setup.sh") == (
        0,
        [*STEP, *reading, *RANK, "OMP_NUM_THREADS=4", "LOADED=cuda/"],
        "",
    )


def test_a_container_of_pyxis_goes_to_srun(programs: Path) -> None:
    here = Path.cwd()
    options = [
        *("--container-image=org/sgp-run:1", f"--container-mounts={here}:{here}"),
        f"--container-workdir={here}",
    ]
    code, out, err = submit(
        programs, SGP_CONTAINER="org/sgp-run:1", SRUN_HELP="  --container-image=..."
    )
    step = ["step:", "--nodes=1", "--ntasks=1", *options, *RANK, "--cfg", "job", "--resolve"]
    assert (code, err.split()) == (0, step)
    assert out == [*STEP, *options, *RANK, "OMP_NUM_THREADS=4"]


def test_apptainer_is_around_every_rank(programs: Path) -> None:
    add(programs, "apptainer", APPTAINER)
    inside = ["exec", "--bind", f"{Path.cwd()}", "--pwd", f"{Path.cwd()}", "--nv", "run.sif"]
    code, out, err = submit(programs, SGP_CONTAINER="run.sif", SLURM_JOB_GPUS="0,1")
    assert (code, err.split()[:8]) == (0, ["apptainer:", *inside])
    assert out == [*STEP, "apptainer", *inside, *RANK, "OMP_NUM_THREADS=4"]


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"SGP_FABRIC": "tcp"}, "SGP_FABRIC is 'tcp'; use auto, ethernet or infiniband."),
        (
            {"SGP_FABRIC": "infiniband"},
            "SGP_FABRIC=infiniband: no InfiniBand interface of this node is up; "
            "name one in SGP_INTERFACE.",
        ),
        ({"SGP_RESTARTS": "x"}, "SGP_RESTARTS is 'x'; use a whole number, such as 3."),
        ({"SGP_SETUP": "no.sh"}, "SGP_SETUP: there is no file 'no.sh'."),
        ({"SGP_ENV": "no"}, "SGP_ENV: there is no environment in 'no'."),
        (
            {"SGP_CONTAINER": "run.sif"},
            "SGP_CONTAINER needs Slurm's plug-in pyxis, or Apptainer on the PATH.",
        ),
    ],
)
def test_what_cannot_work_is_one_sentence(
    programs: Path, variables: dict[str, str], sentence: str
) -> None:
    assert submit(programs, **variables) == (2, [], f"run.sbatch: {sentence}\n")


def test_an_environment_elsewhere_is_used(programs: Path) -> None:
    folder = Path("elsewhere/bin")
    folder.mkdir(parents=True)
    (folder / "activate").write_text("export LOADED=elsewhere\n")
    assert submit(programs, SGP_ENV="elsewhere") == (
        0,
        [*STEP, *RANK, "OMP_NUM_THREADS=4", "LOADED=elsewhere"],
        "",
    )
