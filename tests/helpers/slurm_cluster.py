"""A real Slurm cluster of four nodes on this machine: munged, slurmctld and four slurmd on
loopback, all state in one folder.

Nodes are named by addresses, 127.0.0.1 to 127.0.0.4, which every program resolves without changes
to the machine. The daemons stay in the foreground as children of this process, and end with it even
if it is killed.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from helpers.processes import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "setpriv")
NODES = 4
GPUS = 4  # of a node, imitated
SBIN = "/usr/sbin:/sbin"  # where the daemons are, which the PATH of ordinary users leaves out
# cred_expire: seconds until a requeued job may start. A node says that it has more cores than this
# machine: ranks share them.
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
GresTypes=gpu
KillWait=5
MinJobAge=3600
NodeName=127.0.0.[1-4] NodeHostname={host} Port=[{ports[1]},{ports[2]},{ports[3]},{ports[4]}] \
CPUs=4 RealMemory=4000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES State=UP
"""
# Slurm's own sacct asks a database, which is too large a thing to install here. The controller
# remembers jobs for an hour.
SACCT = """\
#!/bin/sh
echo 'JobID|State|NodeList'
exec squeue --all --array --noheader --states=all --format='%i|%T|%N'
"""


def missing_programs() -> list[str]:
    """What would have to be installed first (Debian: slurm-wlm, munge)."""
    return [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]


def search_path() -> str:
    return f"{os.environ['PATH']}:{SBIN}"


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[Mapping[str, str]]:
    """Starts the cluster, gives the environment in which Slurm's commands talk to it, and stops it
    with all its jobs.
    """
    folder.chmod(0o755)
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    conf = folder / "slurm.conf"
    conf.write_text(
        CONF.format(
            folder=folder,
            host=socket.gethostname().partition(".")[0],
            user=getpass.getuser(),
            ports=free_ports(NODES + 1),
            gpus=GPUS,
        )
    )
    devices = [folder / f"gpu{number}" for number in range(GPUS)]
    for device in devices:
        device.symlink_to(os.devnull)  # Slurm wants character devices
    (folder / "gres.conf").write_text(f"Name=gpu File={','.join(map(str, devices))}\n")
    (folder / "sacct").write_text(SACCT)
    (folder / "sacct").chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{search_path()}", "SLURM_CONF": str(conf)}
    with ExitStack() as stack:
        for name, command in commands(folder, conf):
            stack.enter_context(daemon(name, command, environment, folder / f"{name}.log"))
            if name == "munged":
                wait_until((folder / "munge.socket").exists, "munged to listen")
        wait_until(
            lambda: say(environment, "sinfo", "--noheader", "--format=%D %T") == f"{NODES} idle",
            "idle nodes",
        )
        try:
            yield environment
        finally:
            say(environment, "scancel", "--user", getpass.getuser())
            wait_until(lambda: not say(environment, "squeue", "--noheader"), "the jobs to end")


def commands(folder: Path, conf: Path) -> Iterator[tuple[str, list[str]]]:
    places = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "seed", "log")]
    yield (
        "munged",
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *places],
    )
    yield "slurmctld", ["slurmctld", "-D", "-f", str(conf)]
    for node in range(1, NODES + 1):
        yield f"slurmd{node}", ["slurmd", "-D", "-f", str(conf), "-N", f"127.0.0.{node}"]


@contextmanager
def daemon(
    name: str, command: list[str], environment: Mapping[str, str], log: Path
) -> Iterator[None]:
    with log.open("w") as out:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command], env=environment, stdout=out, stderr=out
        )
    try:
        yield
        assert process.poll() is None, f"{name} ended by itself:\n{log.read_text()}"
    finally:
        process.terminate()
        process.wait(300)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]


def say(environment: Mapping[str, str], *command: str) -> str:
    """What a command prints, empty if it fails."""
    return subprocess.run(
        command,
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ).stdout.strip()
