"""Starts a run on the backend of its network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sgp_runner.distributed.networks import RealNetwork
from sgp_runner.session.session import Session
from sgp_runner.simulator.network import Sim
from sgp_runner.utils.launchers import launched
from sgp_runner.utils.memory import use_huge_pages
from sgp_runner.utils.signals import interruptible

if TYPE_CHECKING:
    from sgp_runner.config.experiment import Experiment


def execute(experiment: Experiment, fork: bool = False) -> dict[str, object] | None:
    """Train, record and return the summary; None on ranks of a real run without one.

    fork: ranks that are started here, from this process
    """
    use_huge_pages()
    network, process = experiment.run.network, launched()
    network.check_start(experiment.run, process)
    if isinstance(network, Sim):
        from sgp_runner.simulator.backend import SimulatedBackend

        with interruptible():
            return Session(experiment, SimulatedBackend(experiment, network)).run()
    assert isinstance(network, RealNetwork)
    if process is None:
        from sgp_runner.distributed.launch import launch

        return launch(experiment, fork=fork)
    from sgp_runner.session.rank import run_rank

    return run_rank(experiment, network.world(experiment.run, process))
