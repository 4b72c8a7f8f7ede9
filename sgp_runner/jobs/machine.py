"""The cores and memory shared by several runs on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sgp_runner.config.run import Run
from sgp_runner.config.size import estimated_bytes, parameters
from sgp_runner.simulator.engines import cores_for
from sgp_runner.utils.cores import asked_cores, present_cores
from sgp_runner.utils.memory import free_bytes


@dataclass(frozen=True)
class Machine:
    """The resources available to several runs on this machine.

    asked: number of runs at a time set by the user (``jobs=``), if any
    cores: number of cores available to this process
    memory: free memory in bytes
    """

    asked: int | None
    cores: int = field(default_factory=present_cores)
    memory: int = field(default_factory=free_bytes)

    def cores_for(self, run: Run) -> int:
        """Return the number of cores that a run keeps busy.

        A real run counts for all cores or, if the user set the number of runs at a time, for one.
        """
        if run.network.clock == "wall":
            return self.cores if self.asked is None else 1
        return asked_cores() or cores_for(parameters(run.model, run.data)[0])

    def at_once(self, runs: Sequence[Run]) -> int:
        """Return an upper bound on the number of runs that the machine can run at a time."""
        cores = min(self.cores_for(run) for run in runs)
        memory = min(estimated_bytes(run) for run in runs)
        most = min(len(runs), self.asked or self.cores)
        return max(1, min(most, self.cores // max(cores, 1), self.memory // memory))
