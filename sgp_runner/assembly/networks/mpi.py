"""``network=mpi``: real processes started by ``mpirun``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sgp_runner.assembly.networks import check_real
from sgp_runner.config.run import Run
from sgp_runner.distributed.world import World
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.extras import install
from sgp_runner.utils.launchers import Launched
from sgp_runner.utils.units import Seconds


@dataclass(frozen=True)
class Mpi:
    """Real messages through MPI between processes on CPUs.

    timeout_seconds: how long a rank may wait for other ranks; then the run ends with a report of
        all waiting ranks
    start_timeout_seconds: how long ranks may wait at the start for a missing rank, and how long a
        rank may make no progress before its first step
    """

    timeout_seconds: Seconds = 1800
    start_timeout_seconds: Seconds = 300
    name: ClassVar[str] = "mpi"
    clock: ClassVar[Literal["simulated", "wall"]] = "wall"

    def check(self, run: Run) -> None:
        check_real(run)
        if run.gpus_per_node != 1:
            raise ConfigError(
                "gpus_per_node",
                "network=mpi runs one process per node: use gpus_per_node=1, or network=gloo.",
            )

    def check_start(self, run: Run, process: Launched | None) -> None:
        if process is None:
            command = f"mpirun -n {run.ranks} sgp-run network=mpi nodes={run.nodes} ..."
            raise ConfigError("network", f"mpi runs under mpirun: start it with {command}")

    def world(self, run: Run, process: Launched) -> World:
        try:
            import mpi4py

            mpi4py.rc(thread_level="funneled", finalize=False)
            from sgp_runner.distributed.mpi_world import MpiWorld
        except (ImportError, RuntimeError) as error:  # the package, or a library for it to load
            raise ConfigError(
                "network",
                f"mpi needs mpi4py and an MPI library: {install('mpi')} ({error}).",
            ) from error
        world = MpiWorld(self.start_timeout_seconds)
        if world.size != process.size:
            raise ConfigError(
                "network",
                f"{process.launcher} has started {process.size} processes, but MPI connects "
                f"{world.size}: use the mpirun of the library that mpi4py was built for.",
            )
        return world
