"""The state of a simulated run between two events, and a run that goes on from it to the last bit.

Coroutines cannot be saved. So a snapshot has three parts: every worker as it was when it last began a step (`save_worker`), what has
happened to it since then (its journal: messages delivered, gradients and all-reduces finished), and everything else as it is now
(`save`). To restore, each worker starts `Algorithm.run` again from its step and is handed its journal, while nothing that it does
reaches the outside; in the end it waits for what it waited for. Workers need not begin a step at the same moment and nobody waits for
a snapshot, so the run that is saved is not changed by it.
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from sgp_runner.checkpoint import Draft, Trigger, stopped
from sgp_runner.divergence import check_parameters
from sgp_runner.engine import Gradient
from sgp_runner.fabric import Channel, Occupation, Sent
from sgp_runner.scheduler import Wait
from sgp_runner.simulation import AllReduce, Mean, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from sgp_runner.algorithms import Algorithm
    from sgp_runner.run import Experiment
    from sgp_runner.worker import OwnBudget, Worker

Event = tuple[Any, ...]  # ("deliver", src, tag, message) | ("gradient",) | ("all_reduce", number, mean)
State = dict[str, Any]  # of what `torch.load(weights_only=True)` accepts


class Replay:
    """What workers ask for while their journals are read to them: nothing is computed or sent a second time."""

    def __init__(self) -> None:
        self.gradients: dict[int, tuple[Worker, Gradient, Wait[Tensor]]] = {}  # by rank; the one that it waits for
        self.parts: dict[tuple[int, int], tuple[Gradient | None, Wait[Tensor]]] = {}  # by rank and number of the all-reduce

    def join(self, rank: int, number: int, gradient: Gradient | None) -> Wait[Tensor]:
        wait: Wait[Tensor] = Wait(("all_reduce", number, {"unknown"}))
        self.parts[rank, number] = gradient, wait
        return wait


def save_worker(simulation: Simulation, worker: Worker) -> State:
    """A worker at the start of a step. The tensors are its own: write them out before it goes on."""
    progress, comm = worker.progress, simulation.comms[worker.rank]
    return {
        "push_sum": worker.push_sum,
        "buffers": worker.buffers,
        "state": {name: packed(value) for name, value in worker.state.items()},
        "step": progress.step,
        "steps_taken": progress.steps_taken,
        "gradients": progress.gradients,
        "all_reduces": comm.all_reduces,
        "taken": budget_of(worker).taken,
        "mailbox": comm.mailbox.contents(),
        "model_buffers": simulation.model_buffers[worker.rank],
        "loss": progress.loss,
    }


def save(simulation: Simulation, workers: Sequence[Worker]) -> State:
    """Everything else, when nobody is ready to run."""
    clock, fabric = simulation.clock, simulation.fabric
    return {
        "journals": [simulation.journals[worker.rank] for worker in workers],
        "now": clock.now,
        "order": clock.order,
        "events": [
            (time, order, *event_words(callback, arguments)) for time, order, callback, arguments in sorted(clock.events) if order >= 0
        ],
        "tx_free": fabric.tx_free,
        "rx_free": None if fabric.rx_free is fabric.tx_free else fabric.rx_free,
        "channels": [(*pair, channel.sent, channel.reach, channel.arrival) for pair, channel in fabric.channels.items()],
        "in_flight": fabric.in_flight,
        "queued": fabric.queued,
        "collectives": [(len(each.ranks), each.begin, each.end, each.idle) for each in fabric.collectives],
        "mixing": simulation.mixing,
        "passed": simulation.passed,
        "free_at": simulation.free_at,
        "randoms": [random.bit_generator.state for random in simulation.randoms],
        "model_buffers": simulation.model_buffers,
        "all_reduces": [save_all_reduce(operation) for operation in simulation.all_reduces.values()],
        "ranks": [save_rank(simulation, worker) for worker in workers],
    }


def save_rank(simulation: Simulation, worker: Worker) -> State:
    """What a worker's own code does not decide."""
    progress = worker.progress
    return {
        "num_bytes_sent": simulation.comms[worker.rank].num_bytes_sent,
        "loss": progress.loss,
        "observed": progress.observed,
        "taken": budget_of(worker).taken,
    }


def save_all_reduce(operation: AllReduce) -> State:
    parts = {rank: None if isinstance(part, Gradient) else part[0] for rank, part in operation.parts.items()}
    return {
        "number": operation.number,
        "parts": parts,
        "waits": list(operation.waits),
        "ready": operation.ready,
        "num_bytes": operation.num_bytes,
    }


def event_words(callback: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """A scheduled callback as plain data."""
    match callback.__name__, arguments:
        case "finish_gradient", (worker, _, _):
            return "finish_gradient", worker.rank
        case "join", (number, rank, part, num_bytes, ready):
            assert isinstance(part, Gradient)
            return "join", number, rank, num_bytes, ready
        case "complete", (number,):
            return "complete", number
        case "reach", (sent, seconds, late):
            return "reach", (sent.src, sent.dst, sent.tag, sent.message), seconds, late
        case ("arrive" | "receive") as name, (sent,):
            return name, (sent.src, sent.dst, sent.tag, sent.message)
    raise TypeError(f"an event that a snapshot cannot hold: {callback.__name__}")


def restore(
    simulation: Simulation,
    workers: Sequence[Worker],
    algo: Algorithm,
    at_steps: Iterable[State],
    rest: State,
) -> None:
    """Bring a simulation whose workers were just made, and not started, to where the snapshot was taken."""
    replay = simulation.replay = Replay()
    for worker, at_step, journal in zip(workers, at_steps, rest["journals"], strict=True):
        for mean in restore_worker(simulation, worker, at_step):
            if not mean.wait.done:
                replay.parts[worker.rank, mean.number] = None, mean.wait
        read_journal(simulation, replay, worker, algo, journal)
    simulation.replay = None
    clock, fabric = simulation.clock, simulation.fabric
    clock.now, clock.order = rest["now"], rest["order"]
    fabric.tx_free[:] = rest["tx_free"]
    if rest["rx_free"] is not None:
        fabric.rx_free[:] = rest["rx_free"]
    fabric.channels.update({(src, dst): Channel(*values) for src, dst, *values in rest["channels"]})
    fabric.in_flight = rest["in_flight"]
    fabric.collectives = [Occupation(range(size), *values) for size, *values in rest["collectives"]]
    fabric.queued[:], simulation.mixing[:], simulation.passed[:] = rest["queued"], rest["mixing"], rest["passed"]
    simulation.free_at[:] = rest["free_at"]
    for random, state in zip(simulation.randoms, rest["randoms"], strict=True):
        random.bit_generator.state = state
    for rank, buffers in rest["model_buffers"].items():
        for own, saved in zip(simulation.model_buffers[rank], buffers, strict=True):
            own.copy_(saved)
    for worker, state in zip(workers, rest["ranks"], strict=True):
        simulation.comms[worker.rank].num_bytes_sent = state["num_bytes_sent"]
        worker.progress.loss, worker.progress.observed = state["loss"], state["observed"]
        budget_of(worker).taken = state["taken"]
    for saved in rest["all_reduces"]:
        restore_all_reduce(simulation, replay, saved)
    clock.events += [(time, order, *event(simulation, replay, words)) for time, order, *words in rest["events"]]
    heapq.heapify(clock.events)


def restore_worker(simulation: Simulation, worker: Worker, at_step: State) -> list[Mean]:
    """The worker as it was when its step began; the all-reduces that were under way then."""
    import torch

    with torch.no_grad():
        worker.push_sum.copy_(at_step["push_sum"])
        for name, buffer in worker.buffers.items():
            buffer.copy_(at_step["buffers"][name])
    means: list[Mean] = []
    worker.state.update({name: unpacked(value, means) for name, value in at_step["state"].items()})
    progress, comm = worker.progress, simulation.comms[worker.rank]
    progress.step, progress.steps_taken, progress.gradients = at_step["step"], at_step["steps_taken"], at_step["gradients"]
    progress.loss = at_step["loss"]
    for own, saved in zip(simulation.model_buffers[worker.rank], at_step["model_buffers"], strict=True):
        own.copy_(saved)
    comm.all_reduces = at_step["all_reduces"]
    budget_of(worker).taken = at_step["taken"]
    for message in at_step["mailbox"]:
        comm.mailbox.deliver(*message)
    return means


def read_journal(simulation: Simulation, replay: Replay, worker: Worker, algo: Algorithm, journal: Sequence[Event]) -> None:
    """Start the worker and let everything happen to it that has happened since its step began."""
    rank, scheduler = worker.rank, simulation.scheduler
    simulation.start(worker, algo.run(worker))
    scheduler.settle()
    for event in journal:
        match event:
            case "deliver", src, tag, message:
                simulation.mailboxes[rank].deliver(src, tag, message)
            case ("gradient",):
                _, gradient, wait = replay.gradients.pop(rank)
                scheduler.resolve(wait, recomputed(simulation, gradient))
            case "all_reduce", number, mean:
                _, wait = replay.parts.pop((rank, number))
                scheduler.resolve(wait, mean)
        scheduler.settle()


def recomputed(simulation: Simulation, gradient: Gradient) -> Tensor:
    """Its value again; BatchNorm's statistics have seen it before."""
    buffers, gradient.buffers = gradient.buffers, [buffer.clone() for buffer in gradient.buffers]
    simulation.engine.start(gradient)
    value = simulation.engine.finish(gradient)
    gradient.buffers = buffers
    return value


def restore_all_reduce(simulation: Simulation, replay: Replay, saved: State) -> None:
    number = saved["number"]
    operation = simulation.all_reduces[number] = AllReduce(number, simulation.size)
    operation.ready, operation.num_bytes = saved["ready"], saved["num_bytes"]
    for rank in saved["waits"]:
        _, wait = replay.parts[rank, number]
        wait.what = ("all_reduce", number, operation.missing)
        operation.waits[rank] = wait
    for rank, part in saved["parts"].items():
        operation.missing.discard(rank)
        if part is None:
            operation.parts[rank] = restarted(simulation, replay, rank, number)
        else:
            operation.parts[rank] = part, part._version


def restarted(simulation: Simulation, replay: Replay, rank: int, number: int) -> Gradient:
    """The gradient that ``rank`` gives to an all-reduce."""
    gradient, _ = replay.parts[rank, number]
    assert gradient is not None
    simulation.engine.start(gradient)
    return gradient


def event(simulation: Simulation, replay: Replay, words: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """The callback, and its arguments, that `event_words` has described."""
    match words:
        case "finish_gradient", rank:
            worker, gradient, wait = replay.gradients[rank]
            simulation.engine.start(gradient)
            return simulation.finish_gradient, (worker, gradient, wait)
        case "join", number, rank, num_bytes, ready:
            return simulation.join, (number, rank, restarted(simulation, replay, rank, number), num_bytes, ready)
        case "complete", number:
            return simulation.complete, (number,)
        case "reach", message, seconds, late:
            return simulation.fabric.reach, (Sent(*message), seconds, late)
        case "arrive", message:
            return simulation.fabric.arrive, (Sent(*message),)
        case "receive", message:
            return simulation.receive, (Sent(*message),)
    raise TypeError(f"an event of a snapshot that nobody knows: {words}")


def budget_of(worker: Worker) -> OwnBudget:
    """In a simulation every budget counts in this process, the shared one of asynchronous workers too."""
    from sgp_runner.worker import OwnBudget

    assert isinstance(worker.budget, OwnBudget)
    return worker.budget


def packed(value: Any, finish: Callable[[Any], Tensor] | None = None) -> Any:
    """Named state as plain data; an all-reduce under way by its number, with its value if it has ended.

    finish: waits for an all-reduce of a real run.
    """
    if isinstance(value, Mean):
        return {"mean": value.number, "value": value.wait.value if value.wait.done else None}
    if finish is not None and isinstance(value, Awaitable):
        return {"mean": -1, "value": finish(value)}
    if isinstance(value, dict):
        return {name: packed(each, finish) for name, each in value.items()}
    return type(value)(packed(each, finish) for each in value) if isinstance(value, list | tuple) else value


def unpacked(value: Any, means: list[Mean]) -> Any:
    """The reverse of `packed`; collects the all-reduces."""
    if isinstance(value, dict):
        if value.keys() == {"mean", "value"}:
            wait: Wait[Tensor] = Wait()
            if value["value"] is not None:
                wait.value, wait.done = value["value"], True
            means.append(Mean(value["mean"], wait))
            return means[-1]
        return {name: unpacked(each, means) for name, each in value.items()}
    return type(value)(unpacked(each, means) for each in value) if isinstance(value, list | tuple) else value


class Saver:
    """Writes checkpoints of a simulated run while it goes on.

    begun: steps that gradient workers have begun. rest: what else belongs into a checkpoint.
    """

    def __init__(
        self, experiment: Experiment, simulation: Simulation, workers: Sequence[Worker], begun: int, rest: Callable[[], State]
    ) -> None:
        self.experiment, self.simulation, self.workers, self.begun, self.rest = experiment, simulation, workers, begun, rest
        self.trigger = Trigger(experiment.run.checkpoint, self.steps)
        self.draft: Draft | None = None
        self.missing: set[int] = set()

    @property
    def steps(self) -> int:
        """Of the average worker."""
        return self.begun // self.simulation.size

    def start_of_step(self, worker: Worker) -> None:
        if not worker.is_server:
            self.begun += 1
        if self.draft is None:
            if not self.trigger.due(self.steps):
                return
            self.draft = Draft(self.experiment.checkpoints, self.steps)
            self.draft.clear()
            self.missing = {each.rank for each in self.workers}
        check_parameters(worker)
        self.draft.add(f"rank{worker.rank}.pt", save_worker(self.simulation, worker))
        self.simulation.journals[worker.rank] = []
        if worker.rank in self.missing:
            self.missing.remove(worker.rank)
            if not self.missing:
                self.simulation.clock.at(self.simulation.clock.now, self.write, self.draft)

    def write(self, draft: Draft) -> None:
        draft.add("run.pt", save(self.simulation, self.workers) | self.rest() | {"begun": self.begun})
        draft.finish(self.experiment.digest, self.experiment.run.checkpoint.keep)
        self.draft = None
        self.simulation.journals.clear()
        self.trigger.saved(self.steps)
        if (name := self.trigger.signal_name) is not None:
            raise stopped(name, draft.place)
