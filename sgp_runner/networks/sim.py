"""``network=sim``: all nodes in this process, on a virtual clock."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.cluster import ASYNC_HOST_PASSES, check_ranks
from sgp_runner.errors import ConfigError
from sgp_runner.launchers import launched

if TYPE_CHECKING:
    from sgp_runner.engine import Engine
    from sgp_runner.problem import Problem
    from sgp_runner.run import Experiment, Run
    from sgp_runner.simulation import Simulation
    from sgp_runner.worker import Worker


@dataclass(frozen=True)
class Sim:
    """engine: how gradients are computed: ``loop`` (one by one), ``vmap`` (many at once), or ``auto``, which follows from the model: vmap
        for small ones without BatchNorm.
    vmap_width: at most so many workers per call of vmap; results do not depend on it.
    """

    engine: Literal["auto", "loop", "vmap"] = "auto"
    vmap_width: int = 32
    timeout_seconds: ClassVar[float] = float("inf")  # a deadlock is found at once
    name: ClassVar[str] = "sim"
    clock: ClassVar[Literal["simulated", "wall"]] = "simulated"

    def __post_init__(self) -> None:
        if self.vmap_width < 1:
            raise ConfigError("network.vmap_width", f"{self.vmap_width} must be at least 1.")

    def check(self, run: Run) -> None:
        run.faults.check(run.nodes, run.algo.servers)
        if run.record:
            raise ConfigError("record", "a simulation needs no recording: the same command repeats it. Use record=false, or network=gloo.")
        check_ranks("cluster.node_factors", run.cluster.node_factors, run.nodes)
        if run.faults.events and not run.model.trains and run.study.real != run.study.simulated:
            every = "a timing study repeats its sample of the schedule, and events have a time"
            raise ConfigError("faults.events", f"{every}: use model.sample_steps=null, or faults that last for the whole run.")
        run.timed_as.step_seconds(run.cluster, run.model.name, run.batch_size)
        if self.engine == "vmap" and not run.model.vectorizes:
            raise ConfigError("network.engine", f"vmap cannot run model={run.model.name}; use network.engine=loop.")

    def execute(self, experiment: Experiment) -> dict[str, object]:
        if (process := launched()) and process.size > 1:
            several = f"{process.launcher} has started {process.size}"
            raise ConfigError("network", f"the simulator is one process, but {several}; start one, or choose network=gloo.")
        from sgp_runner.checkpoint import going_on, read
        from sgp_runner.engine import choose_threads, make_engine
        from sgp_runner.observer import Observer, recording
        from sgp_runner.snapshot import Saver, restore

        run = experiment.run
        problem = run.make_problem()
        choose_threads(problem)
        simulation, workers = simulate(run, problem, make_engine(problem, self.engine, self.vmap_width))
        found = experiment.latest_checkpoint()
        saved = read(found / "run.pt") if found is not None else None
        with closing(problem), recording(experiment, 0, run.budget(problem).total, saved["metrics_bytes"] if saved else 0) as recorder:
            observer = Observer(run, problem, recorder, simulation.model_buffers)
            if saved and found:
                print(going_on(found), flush=True)
                restore(simulation, workers, run.algo, (read(found / f"rank{worker.rank}.pt") for worker in workers), saved)
                observer.restore(saved)
            else:
                for worker in workers:
                    simulation.start(worker, run.algo.run(worker))
            saver = Saver(experiment, simulation, workers, saved["begun"] if saved else 0, observer.save)
            simulation.start_of_step_hook = saver.start_of_step
            simulation.end_of_step_hook = observer.end_of_step
            with saver.trigger.listening():
                simulation.run()
            check_mass(workers[: run.nodes])
            summary = {**experiment.facts, **observer.conclude(workers)}
            recorder.finish(summary)
        return summary


def simulate(run: Run, problem: Problem, engine: Engine) -> tuple[Simulation, list[Worker]]:
    """The machines of ``run`` and its workers, servers last; none of them has started."""
    from sgp_runner.simulation import Simulation

    start = problem.start()
    wire_scale = run.timed_as.wire_scale(start)
    seconds = run.timed_as.step_seconds(run.cluster, run.model.name, run.batch_size)
    if run.algo.asynchronous:
        num_bytes = start.numel() * start.element_size() * wire_scale
        seconds += ASYNC_HOST_PASSES * num_bytes * run.cluster.host_seconds_per_byte
    simulation = Simulation(
        run.cluster,
        run.faults,
        engine,
        size=run.nodes,
        servers=run.algo.servers,
        seed=run.seed,
        step_seconds=seconds,
        wire_scale=wire_scale,
    )
    shared = run.budget(problem)
    workers: list[Worker] = []
    for rank in range(run.ranks):
        own = run.budget(problem) if rank >= run.nodes or not run.algo.asynchronous else shared
        workers.append(run.make_worker(problem, rank, simulation.comms[rank], own, simulation))
        simulation.model_buffers[rank] = problem.flat.fresh_buffers()
    return simulation, workers


def check_mass(workers: list[Worker]) -> None:
    """Push-sum weights add up to the number of workers once nothing is in flight, whatever happened on the way."""
    mass = sum(float(worker.push_sum[-1]) for worker in workers)
    if abs(mass - len(workers)) > 1e-4 * len(workers):
        raise RuntimeError(f"push-sum mass was lost: the weights of {len(workers)} workers add up to {mass}")
