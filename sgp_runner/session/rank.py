"""One rank of a real run, from the environment that a launcher has set up. ``python -m
sgp_runner.session.rank config.yaml`` runs one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgp_runner.distributed.gloo import GlooTransport, named
from sgp_runner.distributed.gradients import Gradients
from sgp_runner.distributed.launch import STARTED
from sgp_runner.distributed.rank import Rank, SharedBudget
from sgp_runner.distributed.recorded import Recorder
from sgp_runner.distributed.saving import RankSaver, passed_on, restore
from sgp_runner.distributed.watchdog import POLL_SECONDS, Watch, watching
from sgp_runner.distributed.world import World, check_agreement
from sgp_runner.elastic.membership import common_epoch, listed, step_snapshot, take_over
from sgp_runner.elastic.vote import RollCall
from sgp_runner.recording.checkpoint import Found, Trigger, latest_of, read
from sgp_runner.recording.observer import cost_of, results, spread, total_cost
from sgp_runner.session.session import Session, execute
from sgp_runner.utils import waits
from sgp_runner.utils.errors import (
    SAVED,
    Aborted,
    ConfigError,
    Diverged,
    GivenUp,
    LostConnection,
    RankFailed,
    RollCalled,
    StoodStill,
    Stopped,
)
from sgp_runner.utils.launchers import kept_elsewhere
from sgp_runner.utils.memory import keep_freed_memory
from sgp_runner.utils.place import Part
from sgp_runner.utils.provenance import code_version

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.config.experiment import Experiment
    from sgp_runner.core.state import State
    from sgp_runner.core.worker import Budget, StepListener
    from sgp_runner.elastic.membership import Crew
    from sgp_runner.recording.observer import Observer
    from sgp_runner.utils.place import Place


def run_rank(experiment: Experiment, world: World) -> dict[str, object] | None:
    """Run this process's rank; the summary on rank 0, None elsewhere. An error here stops every
    other rank.
    """
    keep_freed_memory()
    run, rank, alarm = experiment.run, world.rank, world.alarm
    roll_call = RollCall(alarm, rank, world.size)
    if world.size != run.ranks:
        devices = f" of {run.gpus_per_node} devices" if run.gpus_per_node > 1 else ""
        extra = f" and {run.algo.servers} server" if run.algo.servers else ""
        need = f"{run.nodes} nodes{devices}{extra} need {run.ranks} processes"
        raise ConfigError("nodes", f"{need}, but the launcher started {world.size}.")
    watch = Watch(world, roll_call)
    with watching(watch, run), staying_for_the_others(world):
        try:
            try:
                world.connect(run.nodes)
                summary = Session(experiment, RankBackend(experiment, watch)).run()
                if watch.world is not None:
                    watch.world.close()
            except (LostConnection, RollCalled) as error:  # and the run cannot go on
                raise gone_for_good(experiment, roll_call, error) from error
        except (Aborted, GivenUp):  # whoever kept the store may be gone; the others go on
            raise
        except Stopped as stop:
            alarm.set("stopped", str(stop))
            if watch.world is not None:
                watch.world.gather(None)  # and no more: the process is about to end
            raise
        except ConfigError as error:  # every rank finds the same
            alarm.set("setting", error.key)
            alarm.set("failed", error.sentence)
            raise
        except StoodStill:  # said so already
            raise
        except Exception as error:
            if (
                alarm.add("errors", 1) > 1
            ):  # that rank speaks; this error may only follow from its end
                raise Aborted(f"rank {rank} stopped because another rank failed") from error
            if isinstance(error, Diverged):
                alarm.set("diverged", json.dumps([error.rank, error.step, error.what]))
                alarm.set("failed", str(error))
                raise
            sentence = (
                str(error)
                if isinstance(error, RankFailed)
                else f"rank {rank}: {type(error).__name__}: {error}"
            )
            alarm.set("failed", sentence)
            raise RankFailed(sentence) from error
    return summary


@contextmanager
def staying_for_the_others(world: World) -> Iterator[None]:
    """After an error, long enough that they can read why, if the store ends with this process."""
    try:
        yield
    except Exception:
        if world.rank == 0 and not kept_elsewhere():
            time.sleep(3 * POLL_SECONDS)
        raise


def gone_for_good(experiment: Experiment, roll_call: RollCall, error: Exception) -> Exception:
    """After a lost connection, why the run ends."""
    if isinstance(error, LostConnection):
        roll_call.call(str(error))
    gone, why = roll_call.verdict()
    if not gone:
        return RankFailed(why)
    return RankFailed(
        f"{listed(gone)} gone for good: {why}, and it no longer answers. {way_on(experiment)}"
    )


def way_on(experiment: Experiment) -> str:
    found = latest_of(experiment)
    return (
        f"The same command goes on from {found}."
        if found is not None
        else "There is no checkpoint yet to go on from."
    )


class RankBackend:
    """This process as a `Backend`: one rank among those of ``watch.world``."""

    def __init__(self, experiment: Experiment, watch: Watch) -> None:
        self.experiment, self.watch = experiment, watch
        self.snapshot: State | None = (
            None  # of the worker, when it last began a step in which nothing was lost
        )
        self.record: Recorder | None = None

    @property
    def world(self) -> World:
        assert self.watch.world is not None
        return self.watch.world

    @property
    def original_rank(self) -> int | None:
        """The first device of a node records and evaluates for all."""
        place = self.world.place
        return None if place.device else self.crew.names[place.rank]

    def open(self) -> Found | None:
        world = self.world
        check_agreement(world, "configuration", self.experiment.digest[:16])
        check_agreement(world, "code version", code_version())
        name, names = world.gather(cut_off(self.experiment) if world.rank == 0 else ("", []))[0]
        if name and self.experiment.run.record:
            began = f"this run was cut off and would resume from {Path(name).name}, but its beginning was not recorded"
            raise ConfigError(
                "record", f"{began}: use record=false, or resume=never to start over."
            )
        return Found(Path(name), names) if name else None

    def build(self, crew: Crew, found: Found | None, listener: StepListener) -> int | None:
        self.crew, self.listener = crew, listener
        if len(crew.names) < self.experiment.run.ranks:
            self.watch.reduce(crew)
            if self.watch.world is None:
                return None
        world, run, place = self.world, crew.run, self.world.place
        self.problem = replace(
            run.make_problem(world.compute), part=Part(place.device, place.devices)
        )
        if not place.is_server:
            self.problem.warm_up(place.rank)
        check_agreement(world, "checksum of the initial parameters", checksum(self.problem.start()))
        if world.leads and place.device:
            with closing(self.problem):
                follow(self.experiment, Gradients(self.problem, world), self.watch)
            world.gather(None)
            return None
        self.saved = (
            read(found.path / f"rank{world.rank}.pt", self.problem.compute.device)
            if found is not None
            else None
        )
        if run.record:
            self.record = Recorder(self.experiment, self.problem, world)
        self.make_worker()
        return (
            0
            if self.saved is None or place.device
            else int(self.saved["observer"]["metrics_bytes"])
        )

    def make_worker(self) -> None:
        """The runtime and worker of this rank in the present membership."""
        run, world, problem = self.crew.run, self.world, self.problem
        survives = self.experiment.run.on_failure == "continue"
        own = run.budget(problem)
        shared = run.algo.asynchronous and world.place.rank < run.nodes
        budget: Budget = SharedBudget(world.store, own.total) if shared else own
        if self.record is None:
            self.runtime = Rank(
                problem, world, run.faults, survives=survives, listener=self.listener
            )
        else:
            self.runtime = Rank(
                problem,
                world,
                run.faults,
                self.record.clock,
                self.record.wrap,
                listener=self.listener,
            )
            budget = self.record.budget(budget) if shared else budget
        runtime = self.runtime
        self.worker = run.make_worker(
            problem, world.place.rank, runtime.comm, budget, runtime, runtime.gradients.buffers
        )
        self.watch.attend(runtime.clock)

    def restore(self, observer: Observer | None) -> None:
        assert self.saved is not None
        restore(self.saved, self.runtime, self.worker, observer)

    def make_saver(self, observer: Observer | None) -> RankSaver | None:
        if self.record is not None:  # a replay begins at the beginning, so nothing is saved
            return None
        saver = RankSaver(self.experiment, self.world, self.runtime, self.worker, observer)
        self.watch.attend(self.runtime.clock, saver.on_tick)
        return saver

    def run(self) -> None:
        algorithm = self.crew.run.algo.run(self.worker)
        with self.record.recording(self.worker) if self.record is not None else nullcontext():
            self.runtime.run(self.worker, algorithm)

    def shrink(self, crew: Crew, loss: Exception) -> tuple[Crew, float]:
        self.leave_behind()
        self.crew = self.agree(crew, loss)
        return self.crew, self.start_over(crew)

    def leave_behind(self) -> None:
        """Stop what computes and sends for the old membership; what it waits for stays on its
        threads.
        """
        transport = self.runtime.comm.transport
        assert isinstance(transport, GlooTransport)
        waits.left_behind.append("waits for ranks that are gone")
        self.runtime.thread.shutdown()
        transport.abandon()
        self.snapshot = self.runtime.step_snapshot or self.snapshot or step_snapshot(self.worker)

    def agree(self, crew: Crew, loss: Exception) -> Crew:
        """Who is left, the same for all of them."""
        roll_call = self.watch.roll_call
        if isinstance(loss, LostConnection):
            roll_call.call(str(loss))
        gone, why = roll_call.verdict()
        waits.interrupt(None)
        own = roll_call.rank
        if own in gone:
            raise GivenUp(f"rank {own} was slow to answer, and the others go on without it: {why}.")
        if not gone:
            raise RankFailed(why)
        if 0 in gone:
            raise RankFailed(
                f"{listed(gone)} gone for good: {why}. Nobody can go on without rank 0, which keeps the records of the run."
            )
        return crew.without([crew.names.index(name) for name in gone if name in crew.names])

    def start_over(self, before: Crew) -> float:
        """Bring this rank to where the smaller membership begins; the epoch that it continues from."""
        from sgp_runner.distributed.processes import DistributedWorld

        assert isinstance(self.world, DistributedWorld) and self.snapshot is not None
        run, old, old_runtime, snapshot = self.crew.run, self.worker, self.runtime, self.snapshot
        dropped = old.steps_taken - snapshot["steps_taken"]
        world = self.watch.world = self.world.among(
            [before.names.index(name) for name in self.crew.names]
        )
        with named("lost a connection while those that are left came together"):
            world.connect(run.nodes)
        own = (
            snapshot["taken"] / old.steps_per_epoch,
            old.budget.taken / old.steps_per_epoch,
            dropped / old.steps_per_epoch,
        )
        each = world.gather(own)
        shared = max(taken for _, taken, _ in each) - sum(dropped for *_, dropped in each)
        epoch = common_epoch(run, [at_rest for at_rest, *_ in each], shared)
        self.problem = run.share(self.problem)
        self.make_worker()
        self.runtime.clock.start = old_runtime.clock.start
        take_over(self.worker, snapshot, old.comm.num_bytes_sent, epoch)
        if run.algo.servers:
            world.broadcast(self.worker.params, world.size - 1)
        self.snapshot = step_snapshot(self.worker)
        return epoch

    def now(self) -> float:
        return self.runtime.now()

    def settle(self) -> None:
        self.runtime.settle()

    def conclude(self, observer: Observer | None) -> dict[str, object] | None:
        """Evaluate every rank's model and their average (or the server's)."""
        worker, world = self.worker, self.world
        if observer is None:
            world.mean(worker.params.clone())
            check_alike(world.gather({"checksum": checksum(worker.params)}), world.place)
            return None
        run = self.crew.run
        own: dict[str, Any] = {
            "cost": cost_of(worker),
            "weight": float(worker.push_sum[-1]),
            "checksum": checksum(worker.params),
        }
        observer.record_training(worker)
        own["metrics"] = observer.evaluate(worker, run.epochs)
        mean = worker.params.clone()
        if not worker.is_server:
            world.mean(mean)
            own["square"] = float((worker.params - mean).norm()) ** 2
        processes = world.gather(own)
        check_alike(processes, world.place)
        if self.original_rank != 0:
            return None
        ranks = [each for each in processes if each is not None and "cost" in each]
        nodes = ranks[: run.nodes]
        metrics = [each["metrics"] for each in nodes]
        if run.algo.servers:
            average = ranks[-1]["metrics"]
        else:
            squares = sum(each["square"] for each in nodes)
            observer.record_average(
                worker,
                run.epochs,
                mean,
                spread(squares, metrics, [each["weight"] for each in nodes]),
            )
            average = observer.average
        costs = total_cost([each["cost"] for each in nodes], time.monotonic() - observer.started)
        return {**costs, **results(observer.problem.dataset.task.metric, metrics, average)}


def cut_off(experiment: Experiment) -> tuple[str, list[int]]:
    """The checkpoint from which the run resumes, empty if there is none, and who was there."""
    found = latest_of(experiment)
    return (
        (str(found), list(read(found / "rank0.pt")["observer"]["names"]))
        if found is not None
        else ("", [])
    )


def follow(experiment: Experiment, gradients: Gradients, watch: Watch) -> None:
    """Serve the first device of this node until its algorithm has ended."""
    trigger, world = Trigger(experiment.run.checkpoint, 0), gradients.world

    def pass_signal_on() -> None:
        if trigger.signal is not None:
            world.alarm.set(passed_on(world.place), str(trigger.signal))

    watch.attend(None, pass_signal_on)
    with trigger.listening():
        gradients.follow()


def checksum(params: Tensor) -> str:
    return sha256(params.cpu().numpy().tobytes()).hexdigest()[:16]


def check_alike(processes: list[Any], place: Place) -> None:
    """Raises RankFailed unless all devices of a node that ran the algorithm have ended with the
    same parameters.
    """
    ends = [
        each["checksum"]
        for process, each in enumerate(processes)
        if each is not None and place.rank_of(process) == place.rank
    ]
    if len(set(ends)) > 1:
        raise RankFailed(
            f"the devices of rank {place.rank} ended with different parameters: {', '.join(ends)}"
        )


def main(config: str, group: str | None) -> int:
    """Run one rank of an experiment; what went wrong is for the launching process to say."""
    from sgp_runner.config.schema import load_experiment
    from sgp_runner.recording.recorder import write_summary

    experiment = replace(
        load_experiment(Path(config), group),
        started=float(os.environ.get(STARTED, time.monotonic())),
    )
    try:
        summary = execute(experiment)
    except (RankFailed, Aborted, ConfigError, Diverged, GivenUp):
        return 1
    except Stopped:
        return SAVED
    if summary is not None:
        write_summary(experiment.directory, summary)
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that still wait for messages must not hold up the exit
