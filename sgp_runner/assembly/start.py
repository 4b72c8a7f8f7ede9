"""Starting a run on the backend of its network."""

from __future__ import annotations

from contextlib import ExitStack

from sgp_runner.assembly.networks import RealNetwork
from sgp_runner.assembly.networks.sim import Sim
from sgp_runner.assembly.session import Session
from sgp_runner.config.experiment import Experiment
from sgp_runner.config.run import Run
from sgp_runner.distributed.world import World
from sgp_runner.utils.devices import naming_deterministic
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.launchers import Launched, launched
from sgp_runner.utils.memory import use_huge_pages
from sgp_runner.utils.signals import interruptible
from sgp_runner.utils.units import counted


def execute(
    experiment: Experiment, exit_stack: ExitStack | None = None, fork: bool = False
) -> dict[str, object] | None:
    """Train and record the run; return the summary, or None on the other ranks of a real run.

    exit_stack: closed after the summary has been written; None if the caller writes no summary
    fork: whether to fork the ranks started here
    """
    if exit_stack is None:
        with ExitStack() as exit_stack:
            return execute(experiment, exit_stack, fork)
    use_huge_pages()
    network, process = experiment.run.network, check_launch(experiment.run)
    if isinstance(network, Sim):
        from sgp_runner.assembly.simulated.backend import SimulatedBackend

        exit_stack.enter_context(interruptible())
        with naming_deterministic():
            return Session(experiment, SimulatedBackend(experiment, network), exit_stack).run()
    assert isinstance(network, RealNetwork)
    if process is None:
        from sgp_runner.assembly.real.launch import launch

        return launch(experiment, fork=fork)
    return run_rank(experiment, network.world(experiment.run, process), exit_stack)


def run_rank(
    experiment: Experiment, world: World, exit_stack: ExitStack
) -> dict[str, object] | None:
    """Run this process's rank; return the summary on process rank 0, None on the others.

    exit_stack: closed after the summary has been written

    An error of this rank stops every other rank.
    """
    from sgp_runner.assembly.real.failures import rank_backend

    with rank_backend(experiment, world, exit_stack) as backend:
        return Session(experiment, backend, exit_stack).run()


def check_launch(run: Run) -> Launched | None:
    """Return this process's launcher and rank, if any, without importing PyTorch.

    Raises ConfigError, on every rank, if the run cannot start here, for example if the launcher has
    started the wrong number of ranks.
    """
    process = launched()
    run.network.check_start(run, process)
    if process is None or process.size == run.ranks or not isinstance(run.network, RealNetwork):
        return process
    devices = f" of {run.gpus_per_node} devices" if run.gpus_per_node > 1 else ""
    extra = f" and {counted(run.algo.servers, 'server')}" if run.algo.servers else ""
    needs = "needs" if run.nodes == 1 and not extra else "need"
    processes = counted(run.ranks, "process", "processes")
    need = f"{counted(run.nodes, 'node')}{devices}{extra} {needs} {processes}"
    raise ConfigError("nodes", f"{need}, but the launcher started {process.size}.")
