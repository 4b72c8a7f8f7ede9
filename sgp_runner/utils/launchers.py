"""Detection of the launcher of this process: ``torchrun``, ``mpirun``, ``srun``, or none.

The process rank and the address of rank 0 come only from environment variables. Incomplete
variables are an error: a process with a guessed rank would wait for the other ranks in vain.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from sgp_runner.utils.errors import ConfigError

Environment = Mapping[str, str]

PORTS = range(10_000, 30_000)  # below the ports of outgoing connections
# Launcher -> the variables of rank, number of processes, and rank on this machine. Where several
# are set, the first is the innermost: torchrun is started by srun, never the other way round,
# and mpirun starts its own helpers with srun.
VARIABLES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}
# Set by `sgp_runner.assembly.real.launch` for the ranks that it starts: the file of their store, in
# a folder of their own, and the id of its process.
STORE, PARENT = "SGP_RUN_STORE", "SGP_RUN_PARENT"
# PyTorch's connections print warnings and C++ frames about what our sentences say, and its profiler
# prints that it starts and stops.
QUIET_LIBRARIES = {"TORCH_CPP_LOG_LEVEL": "ERROR", "KINETO_LOG_LEVEL": "6"}
NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
HOST = re.compile(r"[\w.:%-]+")  # a name, or an address of IPv4 or IPv6
# A batch script has a SLURM_PROCID too; only processes started by srun are in a step.
IN_A_STEP = "SLURM_STEP_ID"


class LaunchError(ConfigError):
    """The environment variables of this process are invalid; those of other ranks may be valid."""


@dataclass(frozen=True)
class Launched:
    """This process among the processes of its launcher.

    local_rank: rank of the process on this machine, if the launcher sets it
    """

    launcher: str
    rank: int
    size: int
    local_rank: int | None


def launched(environment: Environment = os.environ) -> Launched | None:
    """Return this process's launcher and rank; None if no launcher started several processes.

    Raises LaunchError for incomplete variables.
    """
    for launcher, names in VARIABLES.items():
        if present(launcher, environment):
            process = Launched(launcher, *read(names, environment))
            check_world_size(process, environment)
            # Slurm runs e.g. an interactive shell with an allocation as a step of one task.
            return None if launcher == "srun" and process.size == 1 else process
    if "WORLD_SIZE" in environment:
        raise LaunchError(
            "WORLD_SIZE",
            "set, but RANK is not; set both, or unset it to start the ranks here.",
        )
    return None


def launched_rank() -> int | None:
    """Return the rank of this process if a launcher started it, else None."""
    process = launched()
    return None if process is None else process.rank


def rendezvous(process: Launched, environment: Environment = os.environ) -> dict[str, str]:
    """Return the variables that PyTorch's ``env://`` reads: rank, size and address of rank 0."""
    out = {"RANK": str(process.rank), "WORLD_SIZE": str(process.size)}
    if STORE in environment:
        return out
    out |= {
        "MASTER_ADDR": master_address(process, environment),
        "MASTER_PORT": str(master_port(process, environment)),
    }
    return out if process.local_rank is None else {**out, "LOCAL_RANK": str(process.local_rank)}


def local_ranks(ranks: int, environment: Environment = os.environ) -> int:
    """Return how many of the run's ``ranks`` are on this machine."""
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        if name in environment:
            return whole(name, environment, least=1)
    name = "SLURM_STEP_NUM_NODES"
    if STORE in environment or not present("srun", environment) or name not in environment:
        return ranks
    return -(-ranks // whole(name, environment, least=1))


def own_local_rank(environment: Environment = os.environ) -> int:
    """Return the rank of this process on its machine; 0 if the launcher does not set it."""
    return whole("LOCAL_RANK", environment, least=0) if "LOCAL_RANK" in environment else 0


def machines_of_job(environment: Environment = os.environ) -> int:
    """Return the number of machines of this Slurm job; 1 outside a job."""
    name = "SLURM_JOB_NUM_NODES"
    return whole(name, environment, least=1) if name in environment else 1


def under_launcher(environment: Environment = os.environ) -> bool:
    """Return whether torchrun, mpirun or srun has started this process."""
    return STORE not in environment and any(
        present(launcher, environment) for launcher in VARIABLES
    )


def kept_elsewhere(environment: Environment = os.environ) -> bool:
    """Return whether the run's store, in a file or in torchrun, outlives this process."""
    return STORE in environment or environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def orphaned(environment: Environment = os.environ) -> bool:
    """Return whether the process that launched this rank has ended."""
    return PARENT in environment and os.getppid() != whole(PARENT, environment, least=1)


def loopback_interface() -> str:
    """Return the loopback interface: lo, or lo0 on macOS."""
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), "lo")


def present(launcher: str, environment: Environment) -> bool:
    return (IN_A_STEP if launcher == "srun" else VARIABLES[launcher][0]) in environment


def read(names: tuple[str, str, str], environment: Environment) -> tuple[int, int, int | None]:
    """Return rank, number of processes and local rank."""
    rank_name, size_name, local_name = names
    for name, other in ((rank_name, size_name), (size_name, rank_name)):
        if name not in environment:
            raise LaunchError(
                name,
                f"not set, but {other} is; set both, or neither to start the ranks here.",
            )
    size = whole(size_name, environment)
    if size < 1:
        raise LaunchError(size_name, f"{size} must be at least 1 process.")
    rank = whole(rank_name, environment)
    if not 0 <= rank < size:
        raise LaunchError(rank_name, f"{rank} must be between 0 and {size_name} - 1 = {size - 1}.")
    if local_name not in environment:
        return rank, size, None
    local = whole(local_name, environment, least=0)
    around = "LOCAL_WORLD_SIZE"
    if local_name != "LOCAL_RANK" or around not in environment or STORE in environment:
        around = size_name
    if local >= (here := whole(around, environment, least=1)):
        raise LaunchError(local_name, f"{local} must be less than {around}={here}.")
    return rank, size, local


def check_world_size(process: Launched, environment: Environment) -> None:
    """Raise LaunchError if WORLD_SIZE, often set by scripts around srun, has a different value."""
    size = whole("WORLD_SIZE", environment) if "WORLD_SIZE" in environment else process.size
    if size != process.size:
        name = VARIABLES[process.launcher][1]
        raise LaunchError(
            "WORLD_SIZE",
            f"{size} contradicts {name}={process.size} of {process.launcher}; unset it.",
        )


def whole(name: str, environment: Environment, least: int | None = None) -> int:
    """Return the integer in a variable. Raises LaunchError if it is invalid or below ``least``."""
    if not NUMBER.fullmatch(environment[name].strip()):
        raise LaunchError(name, f"'{environment[name]}' is not a whole number.")
    number = int(environment[name])
    if least is not None and number < least:
        raise LaunchError(name, f"{number} must be at least {least}.")
    return number


def master_address(process: Launched, environment: Environment) -> str:
    """Return the host of rank 0."""
    if address := environment.get("MASTER_ADDR"):
        if not HOST.fullmatch(address) or address.count(":") == 1:
            raise LaunchError(
                "MASTER_ADDR",
                f"'{address}' is not a host: write only a name or an address, such as node1.",
            )
        return address
    alone = (
        environment.get("SLURM_STEP_NUM_NODES") == "1"
        if process.launcher == "srun"
        else environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(process.size)
    )
    if alone and process.launcher != "torchrun":
        return "127.0.0.1"  # all ranks are on this machine
    if process.launcher == "srun":
        return first_host(environment)
    how = (
        "use mpirun -x MASTER_ADDR=HOST"
        if process.launcher == "mpirun"
        else "set it, and MASTER_PORT"
    )
    raise LaunchError("MASTER_ADDR", f"not set, but every rank needs the host of rank 0; {how}.")


def first_host(environment: Environment) -> str:
    """Return the host of a step's first task.

    SLURM_LAUNCH_NODE_IPADDR cannot be used: it is a different host if srun ran on a login node.
    """
    name = "SLURM_STEP_NODELIST" if environment.get("SLURM_STEP_NODELIST") else "SLURM_JOB_NODELIST"
    nodes = environment.get(name)
    if not nodes:
        raise LaunchError(
            "MASTER_ADDR",
            "not set in srun, and neither is SLURM_STEP_NODELIST; set it to the host of rank 0.",
        )
    try:
        return subprocess.run(
            ["scontrol", "show", "hostnames", nodes],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise LaunchError(
            name,
            f"scontrol cannot expand '{nodes}' ({error}); set MASTER_ADDR to the host of rank 0.",
        ) from error


def master_port(process: Launched, environment: Environment) -> int:
    """Return a port, the same on every rank; jobs on the same machine get different ports."""
    if environment.get("MASTER_PORT"):
        port = whole("MASTER_PORT", environment)
        if not 0 < port < 2**16:
            raise LaunchError("MASTER_PORT", f"{port} must be between 1 and 65535.")
        return port
    if process.launcher == "srun" and "SLURM_JOB_ID" in environment:
        return PORTS[
            (whole("SLURM_JOB_ID", environment) * 31 + whole(IN_A_STEP, environment)) % len(PORTS)
        ]
    if process.launcher == "mpirun" and "PMIX_NAMESPACE" in environment:
        return PORTS[zlib.crc32(environment["PMIX_NAMESPACE"].encode()) % len(PORTS)]
    raise LaunchError(
        "MASTER_PORT",
        "not set; set it to a port of the host of rank 0, the same for all ranks.",
    )
