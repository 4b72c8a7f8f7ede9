"""``network=gloo``: one real process per node, started here or by a launcher: torchrun, srun or mpirun."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.launchers import launched, rendezvous
from sgp_runner.networks import check_real

if TYPE_CHECKING:
    from sgp_runner.run import Experiment, Run


@dataclass(frozen=True)
class Gloo:
    """Real messages over TCP between processes on CPUs."""

    name: ClassVar[str] = "gloo"
    clock: ClassVar[Literal["simulated", "wall"]] = "wall"

    def check(self, run: Run) -> None:
        check_real(run)

    def execute(self, experiment: Experiment) -> dict[str, object] | None:
        process = launched()
        if process is None:
            from sgp_runner.launch import launch

            return launch(experiment)
        os.environ.update(rendezvous(process))
        from sgp_runner.comm.distributed import DistributedWorld
        from sgp_runner.rank import run_rank

        return run_rank(experiment, DistributedWorld())
