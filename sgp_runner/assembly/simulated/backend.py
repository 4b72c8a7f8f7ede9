"""The simulator as a `Backend`: all nodes in this process, on a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from math import inf, log10
from statistics import fmean

import torch

from sgp_runner.assembly.build import (
    build_problem,
    divide_problem,
    timing_problem,
)
from sgp_runner.assembly.dry_run import verify_calls
from sgp_runner.assembly.networks.sim import Sim
from sgp_runner.assembly.resizing import continued
from sgp_runner.assembly.simulated.common_step import states_at_common_step
from sgp_runner.assembly.simulated.saver import Saver
from sgp_runner.assembly.simulated.times import fastest_times, simulate, simulate_times
from sgp_runner.cluster.compute_variation import ConstantTime
from sgp_runner.config.experiment import Experiment
from sgp_runner.config.membership import Membership, common_epoch, membership_of
from sgp_runner.config.run import Run, steps_in
from sgp_runner.console.estimate import Work, bfloat16_hint, gpu_memory
from sgp_runner.core.push_sum import check_mass
from sgp_runner.core.scheduler import Deadlock
from sgp_runner.core.state import State
from sgp_runner.core.step_hooks import StepListener
from sgp_runner.core.survivors import take_over
from sgp_runner.core.timing_study import Study
from sgp_runner.core.worker import Worker
from sgp_runner.models.timing_only import TimingOnly
from sgp_runner.recording.checkpoint import Candidates, Found, UnusableCheckpoint, read, using
from sgp_runner.recording.chrome_trace import SimulatedTrace
from sgp_runner.recording.observer import Observer, position_in
from sgp_runner.recording.pretrained import pretrain
from sgp_runner.recording.recorder import START, Position, record_gpus
from sgp_runner.simulator.engines import make_engine, prepare_process
from sgp_runner.simulator.parallel import Parallel
from sgp_runner.simulator.periods import Periods
from sgp_runner.simulator.simulation import LeftInFlight, TimeOverflow
from sgp_runner.simulator.snapshot import restore
from sgp_runner.utils.devices import free_bytes
from sgp_runner.utils.errors import ConfigError, Lost, RankFailed
from sgp_runner.utils.messages import logger
from sgp_runner.utils.provenance import gpu

EXTREME = 30.0  # a number with larger powers of ten may make a time infinite
TRIED_STEPS = 3


class SimulatedBackend:
    """Machines and workers of one simulated run.

    begun: number of steps that the gradient workers have begun.
    before: number of gradients computed before the current ``simulation``
    """

    original_rank = 0
    throughput = None
    concluded = False

    def __init__(self, experiment: Experiment, network: Sim) -> None:
        self.experiment, self.network = experiment, network
        self.waiting: list[Worker] = []  # not started yet
        self.saver: Saver | None = None
        self.periods: Periods | None = None
        self.begun = self.before = 0
        self.candidates = Candidates(experiment, network.device)
        steps = experiment.run.trace_steps
        self.trace = None if steps is None else SimulatedTrace(steps_in(steps))

    def open(self) -> Found | None:
        candidate = self.candidates.next("run.pt")
        if candidate is None:
            return None
        checkpoint, self.saved = candidate
        return checkpoint

    def refuse(self, error: UnusableCheckpoint) -> None:
        self.engine.close()
        self.problem.close()
        self.candidates.refuse(error)

    def build(
        self, membership: Membership, checkpoint: Found | None, listener: StepListener
    ) -> Position:
        self.membership, self.listener = membership, listener
        self.checkpoint = checkpoint
        if resizes := checkpoint is not None and checkpoint.origin is not None:
            assert checkpoint is not None and checkpoint.origin is not None
            former = replace(membership.run, nodes=checkpoint.origin.nodes)
            self.membership = membership_of(former, checkpoint.original_ranks, verify_calls)
        self.problem = build_problem(self.membership.run, self.network.compute)
        pretrain(self.problem, self.experiment)
        if self.network.device.startswith("cuda"):
            record_gpus(self.experiment.directory, [gpu(self.network.device)])
            free = free_bytes(self.network.device)
            logger.info(gpu_memory(membership.run, self.problem, free))
        elif hint := bfloat16_hint(membership.run, self.problem, torch.cpu.get_capabilities()):
            logger.info(hint)
        prepare_process(self.problem)
        self.make_machines()
        if checkpoint is None:
            self.periods = self.find_periods()
            return START
        with using(checkpoint.path):
            self.problem.dataset.train.load_state_dict(self.saved.get("data", {}))
            files = [checkpoint.path / f"rank{worker.rank}.pt" for worker in self.workers]
            at_steps = (read(file, mapped=self.network.device != "cpu") for file in files)
            restore(self.simulation, self.workers, membership.run.algo, at_steps, self.saved)
            self.begun, self.waiting = int(self.saved["begun"]), []
            pending = len(self.simulation.gradients)
            self.before = self.steps_begun() - pending - self.simulation.computed
            position = position_in(self.saved["observer"])
        if not resizes:
            return position
        # Workers that have been restored share the memory of their named state with ``at_steps``.
        self.resize(membership, [read(file, self.network.device) for file in files])
        return START

    def resize(self, membership: Membership, at_steps: Sequence[State]) -> None:
        """Move from the machines of a checkpoint to those for a different number of nodes."""
        states = states_at_common_step(self.simulation, self.workers, at_steps)
        now = self.simulation.clock.now
        self.engine.close()
        self.membership = membership
        self.problem = divide_problem(self.problem, membership.run)
        worker, self.epoch = continued(states, membership.run, self.problem)
        self.make_machines()
        self.begin_at(now)
        for new in self.workers:
            take_over(new, deepcopy(worker), worker["num_bytes_sent"], self.epoch)
        self.before = self.begun = self.steps_begun()

    def begin_at(self, now: float) -> None:
        """Begin the current simulation at ``now`` seconds."""
        self.simulation.clock.begin(now)
        busy_until = self.simulation.machines.compute.busy_until
        busy_until[:] = [now] * len(busy_until)

    def find_periods(self) -> Periods | None:
        """Look for periods if ``model.periods`` is true and the run may have them."""
        run = self.membership.run
        if not getattr(run.model, "periods", False):
            return None
        if (reason := obstacle(run)) is not None:
            logger.info(f"Every step is simulated: {reason}.")
            return None
        cycle = run.algo.cycle(run.nodes)
        assert cycle is not None
        periods = Periods(self.simulation, self.workers, cycle, run.log_every, self.saves)
        self.simulation.listener = periods
        return periods

    def saves(self) -> bool:
        """Return whether a checkpoint is in progress."""
        return self.saver is not None and self.saver.draft is not None

    def make_machines(self) -> None:
        run, network = self.membership.run, self.network
        width = network.vmap_width
        if network.device != "cpu":
            width = min(width, run.nodes)  # calls are padded to it
        self.engine = make_engine(self.problem, network.engine, width)
        if isinstance(self.engine, Parallel):
            self.problem = replace(self.problem, sums_of=self.engine.sums)
        self.total = run.steps(self.problem) * run.nodes
        survives = self.experiment.run.on_failure == "continue"
        self.simulation, self.workers = simulate(
            run,
            self.problem,
            self.engine,
            names=self.membership.original_ranks,
            survives=survives,
            listener=self.listener,
        )
        self.waiting = list(self.workers)
        if self.trace is not None:
            self.trace.follow(self.simulation)

    def restore(self, observer: Observer | None) -> None:
        assert observer is not None and self.checkpoint is not None
        saved = self.saved["observer"]
        if self.checkpoint.origin is None:
            observer.load_state_dict(saved)
        else:
            observer.resize(self.checkpoint, saved, self.now(), self.epoch, records=True)

    def make_saver(self, observer: Observer | None) -> Saver:
        assert observer is not None
        resumed = self.saver is None and self.begun > 0
        if self.saver is not None:
            self.begun = self.saver.begun
        self.saver = Saver(
            self.experiment, self.simulation, self.workers, self.begun, observer, resumed
        )
        return self.saver

    def run(self) -> None:
        for worker in self.waiting:
            self.simulation.start(worker, self.membership.run.algo.run(worker))
        try:
            self.simulation.run()
        except TimeOverflow as error:
            raise too_long(self.membership.run, error) from error
        except BaseException:
            self.engine.close()
            raise
        if self.periods is not None:
            self.periods.finish()
        check_mass(
            fmean(worker.push_sum_weight for worker in self.workers[: self.membership.run.nodes])
        )

    def shrink(self, loss: Exception) -> tuple[Membership, float]:
        """Move the survivors to new machines, in their states at the start of the current steps."""
        assert isinstance(loss, Lost)
        before, snapshots = self.simulation, self.simulation.step_snapshots
        assert snapshots is not None
        left = [worker for worker in self.workers if worker.rank not in loss.ranks]
        at_steps = [snapshots[worker.rank] for worker in left]
        dropped = sum(
            worker.steps_taken - at_step["steps_taken"]
            for worker, at_step in zip(left, at_steps, strict=True)
        )
        per_epoch = left[0].steps_per_epoch
        self.membership = membership = self.membership.without(loss.ranks, verify_calls)
        self.problem = divide_problem(self.problem, membership.run)
        self.make_machines()
        epochs = [at_step["taken"] / per_epoch for at_step in at_steps]
        epoch = common_epoch(membership.run, epochs, (left[0].budget.taken - dropped) / per_epoch)
        after = self.simulation
        self.begin_at(before.clock.now)
        for old, new, at_step in zip(left, self.workers, at_steps, strict=True):
            take_over(new, at_step, old.comm.num_bytes_sent, epoch)
            after.coding_seconds[new.rank] = before.coding_seconds[old.rank]
        for new in self.workers if membership.run.algo.servers else ():
            new.params.copy_(self.workers[-1].params)
        self.before = self.steps_begun()
        return membership, epoch

    def steps_begun(self) -> int:
        """Return the number of steps (and gradients) begun by all gradient workers together."""
        run = self.membership.run
        begun = [worker.step + 1 for worker in self.workers[: run.nodes]]
        return max(begun) if run.algo.asynchronous else sum(begun)

    def work(self) -> Work:
        if self.problem.trains:
            return Work(self.before + self.simulation.computed, self.total)
        nodes = self.membership.run.nodes
        # Called for every record: a sum over thousands of nodes would take too long.
        begun = self.begun if self.saver is None else self.saver.begun
        return Work(begun // nodes, self.total // nodes, "step")

    def now(self) -> float:
        return self.simulation.now()

    def settle(self) -> None:
        """Do nothing: no computation runs in the background."""

    def conclude(self, observer: Observer | None) -> dict[str, object]:
        assert observer is not None
        if self.trace is not None:
            self.trace.write(self.experiment.directory / "trace.json")
        try:
            results = observer.conclude(self.workers) | self.simulation.coding
            results |= fastest_times(self.membership.run)
            if getattr(self.membership.run.model, "periods", False):
                steps = self.workers[0].steps_taken
                skipped = 0 if self.periods is None else self.periods.skipped
                results |= {"simulated_steps": steps - skipped}
            return results
        finally:
            self.engine.close()


def obstacle(run: Run) -> str | None:
    """Return why the steps of ``run`` do not repeat, or None if they may repeat."""
    if run.algo.cycle(run.nodes) is None:
        return f"the messages of {run.algo.title} do not repeat"
    if not isinstance(run.cluster.compute_time, ConstantTime):
        return "cluster.compute_time is not constant"
    if run.faults.any:
        return "the run has faults"
    if run.cluster.hosts.cores_per_host is not None:
        return "ranks share cores (cluster.hosts.cores_per_host)"
    if run.cluster.links.protocol == "rendezvous":
        return "messages wait for their receivers (cluster.links.protocol)"
    return None if run.trace_steps is None else "trace_steps is set"


def verify_times(run: Run) -> None:
    """Raise ConfigError if the simulated time of the first steps is infinite or undefined.

    Only numbers of more than 30 digits can cause this, so runs without one are not tried.
    """
    if max((size for size, _, _ in sizes(run)), default=0.0) < EXTREME:
        return
    problem = timing_problem(run, Study(None, TRIED_STEPS), TimingOnly(grain=4))
    simulation, _ = simulate_times(run, problem)
    try:
        simulation.run()
    except TimeOverflow as error:
        raise too_long(run, error) from error
    except (Deadlock, LeftInFlight, RankFailed):
        return  # the run itself will report this error


def too_long(run: Run, error: TimeOverflow) -> ConfigError:
    """Return an error about the most extreme number in the run's machines and faults."""
    _, key, value = max(sizes(run))
    others = [f"{key}={value}" for size, key, value in sorted(sizes(run))[-4:-1] if size > EXTREME]
    also = f" (with {', '.join(others)})" if others else ""
    fix = "smaller" if value > 1 else "larger"
    return ConfigError(key, f"{value} is out of range{also}: {error}; use a {fix} number.")


def sizes(run: Run) -> list[tuple[float, str, float]]:
    """Return (powers of ten from 1, key, value) of all numbers in the machines and faults."""
    parts = {"cluster": run.cluster, "faults": run.faults, "timed_as": run.timed_as}
    numbers_of = [entry for name, part in parts.items() for entry in numbers(part, name)]
    return [(abs(log10(value)), key, value) for key, value in numbers_of if 0 < value < inf]


def numbers(part: object, key: str) -> Iterator[tuple[str, float]]:
    """Yield the dotted keys and values of all numbers in a component of a run."""
    if is_dataclass(part):
        for field in fields(part):
            yield from numbers(getattr(part, field.name), f"{key}.{field.name}")
    elif isinstance(part, Mapping):
        for name, inner in part.items():
            yield from numbers(inner, f"{key}.{name}")
    elif isinstance(part, list | tuple):
        for i, inner in enumerate(part):
            yield from numbers(inner, f"{key}[{i}]")
    elif isinstance(part, int | float):
        yield key, part
