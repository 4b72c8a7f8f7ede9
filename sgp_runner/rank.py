"""One rank of a real run, from the environment that a launcher has set up. ``python -m sgp_runner.rank config.yaml`` runs one."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from sgp_runner.checkpoint import Trigger, going_on, read
from sgp_runner.environment import code_version
from sgp_runner.errors import SAVED, Aborted, ConfigError, Diverged, RankFailed, StoodStill, Stopped
from sgp_runner.gradients import Gradients
from sgp_runner.memory import keep_freed_memory
from sgp_runner.observer import Observer, cost_of, recording, results, spread, total_cost
from sgp_runner.place import Part
from sgp_runner.real import Rank, SharedBudget
from sgp_runner.replay.recorded import RecordedRank
from sgp_runner.saving import RankSaver, passed_on, restore
from sgp_runner.waits import longest_wait, waits_in_words
from sgp_runner.world import World, check_agreement

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.place import Place
    from sgp_runner.run import Experiment
    from sgp_runner.scheduler import RealClock
    from sgp_runner.snapshot import State
    from sgp_runner.worker import Worker

POLL_SECONDS = 0.5
GRACE_SECONDS = 3.0  # for closing files and the W&B mirror once another rank has failed


def run_rank(experiment: Experiment, world: World) -> dict[str, object] | None:
    """Run this process's rank; the summary on rank 0, None elsewhere. An error here stops every other rank."""
    keep_freed_memory()
    run, rank, alarm = experiment.run, world.rank, world.alarm
    if world.size != run.ranks:
        devices = f" of {run.gpus_per_node} devices" if run.gpus_per_node > 1 else ""
        extra = f" and {run.algo.servers} server" if run.algo.servers else ""
        need = f"{run.nodes} nodes{devices}{extra} need {run.ranks} processes"
        raise ConfigError("nodes", f"{need}, but the launcher started {world.size}.")
    with watching(world, run.network.timeout_seconds) as watch:
        try:
            world.connect(run.nodes)
            summary = train(experiment, world, watch)
            world.close()
        except Aborted:  # and whoever kept the store may be gone
            raise
        except Stopped as stop:
            alarm.set("stopped", str(stop))
            world.gather(None)  # and no more: the process is about to end
            raise
        except ConfigError as error:  # every rank finds the same
            alarm.set("setting", error.key)
            alarm.set("failed", error.sentence)
            raise
        except StoodStill:  # said so already
            raise
        except Exception as error:
            if alarm.add("errors", 1) > 1:  # that rank speaks; this error may only follow from its end
                raise Aborted(f"rank {rank} stopped because another rank failed") from error
            if isinstance(error, Diverged):
                alarm.set("diverged", json.dumps([error.rank, error.step, error.what]))
                alarm.set("failed", str(error))
                raise
            sentence = str(error) if isinstance(error, RankFailed) else f"rank {rank}: {type(error).__name__}: {error}"
            alarm.set("failed", sentence)
            raise RankFailed(sentence) from error
    return summary


def train(experiment: Experiment, world: World, watch: Watch) -> dict[str, object] | None:
    """The run itself, then the results of all ranks, put together on rank 0."""
    run, place = experiment.run, world.place
    check_agreement(world, "configuration", experiment.digest[:16])
    check_agreement(world, "code version", code_version())
    problem = replace(run.make_problem(world.compute), part=Part(place.device, place.devices))
    if not place.is_server:
        problem.warm_up(place.rank)
    check_agreement(world, "checksum of the initial parameters", checksum(problem.start()))
    name = world.gather(str(experiment.latest_checkpoint() or ""))[0]  # as rank 0 sees it
    if name and run.record:
        cut_off = f"this run was cut off and would go on from {Path(name).name}, but its beginning was not recorded"
        raise ConfigError("record", f"{cut_off}: use record=false, or resume=never to start over.")
    if world.leads and place.device:
        follow(experiment, world, Gradients(problem, world), watch)
        world.gather(None)
        return None
    own = run.budget(problem)
    found = Path(name) if name else None
    saved = read(found / f"rank{world.rank}.pt", problem.compute.device) if found is not None else None
    runtime = RecordedRank(experiment, problem, world) if run.record else Rank(problem, world, run.faults)
    watch.clock = runtime.clock
    budget = SharedBudget(world.store, own.total) if run.algo.asynchronous and place.rank < run.nodes else own
    worker = run.make_worker(problem, place.rank, runtime.comm, budget, runtime)
    if isinstance(runtime, RecordedRank):
        runtime.record(worker)
    if place.device:  # the first device of a node records and evaluates for all
        go(experiment, world, runtime, worker, watch, saved, None)
        conclude_quietly(worker, world)
        return None
    start = saved["metrics_bytes"] if saved is not None else 0
    with closing(problem), recording(experiment, place.rank, own.total, start) as recorder:
        observer = Observer(run, problem, recorder, {place.rank: runtime.buffers}, runtime.settle)
        runtime.end_of_step_hook = observer.end_of_step
        if found is not None and world.rank == 0:
            print(going_on(found), flush=True)
        go(experiment, world, runtime, worker, watch, saved, observer)
        summary = conclude(experiment, observer, worker, world)
        recorder.finish(summary)
    return summary


def follow(experiment: Experiment, world: World, gradients: Gradients, watch: Watch) -> None:
    """Serve the first device of this node until its algorithm has ended."""
    trigger = Trigger(experiment.run.checkpoint, 0)

    def look() -> None:
        if trigger.signal is not None:
            world.alarm.set(passed_on(world.place), str(trigger.signal))

    watch.look = look
    with trigger.listening():
        gradients.follow()


def go(
    experiment: Experiment, world: World, runtime: Rank, worker: Worker, watch: Watch, saved: State | None, observer: Observer | None
) -> None:
    """Run the algorithm to its end, from what was ``saved``, and save now and then."""
    algorithm = experiment.run.algo.run(worker)
    if experiment.run.record:  # a replay begins at the beginning, so nothing is saved
        runtime.run(worker, algorithm)
        return
    if saved is not None:
        restore(saved, runtime, worker, observer)
    saver = RankSaver(experiment, world, runtime, worker, observer)
    runtime.start_of_step_hook = saver.start_of_step
    watch.look = saver.look
    with saver.trigger.listening():
        runtime.run(worker, algorithm)


def conclude(experiment: Experiment, observer: Observer, worker: Worker, world: World) -> dict[str, object] | None:
    """Evaluate every rank's model and their average (or the server's)."""
    run = experiment.run
    own: dict[str, Any] = {"cost": cost_of(worker), "weight": float(worker.push_sum[-1]), "checksum": checksum(worker.params)}
    observer.record_training(worker)
    own["metrics"] = observer.evaluate(worker, run.epochs)
    mean = worker.params.clone()
    if not worker.is_server:
        world.mean(mean)
        own["square"] = float((worker.params - mean).norm()) ** 2
    processes = world.gather(own)
    check_alike(processes, world.place)
    if worker.rank != 0:
        return None
    ranks = [each for each in processes if each is not None and "cost" in each]
    nodes = ranks[: run.nodes]
    metrics = [each["metrics"] for each in nodes]
    if run.algo.servers:
        average = ranks[-1]["metrics"]
    else:
        squares = sum(each["square"] for each in nodes)
        observer.record_average(worker, run.epochs, mean, spread(squares, metrics, [each["weight"] for each in nodes]))
        average = observer.average
    costs = total_cost([each["cost"] for each in nodes], time.monotonic() - observer.started)
    return {**experiment.facts, **costs, **results(observer.problem.dataset.task.metric, metrics, average)}


def conclude_quietly(worker: Worker, world: World) -> None:
    """What the further devices of a node contribute to `conclude`."""
    world.mean(worker.params.clone())
    check_alike(world.gather({"checksum": checksum(worker.params)}), world.place)


def checksum(params: Tensor) -> str:
    return sha256(params.cpu().numpy().tobytes()).hexdigest()[:16]


def check_alike(processes: list[Any], place: Place) -> None:
    """Raises RankFailed unless all devices of a node that ran the algorithm have ended with the same parameters."""
    ends = [each["checksum"] for process, each in enumerate(processes) if each is not None and place.rank_of(process) == place.rank]
    if len(set(ends)) > 1:
        raise RankFailed(f"the devices of rank {place.rank} ended with different parameters: {', '.join(ends)}")


@dataclass
class Watch:
    """What the watching thread needs to know."""

    ended: Event = field(default_factory=Event)
    clock: RealClock | None = None
    look: Callable[[], None] = lambda: None  # what else to do


@contextmanager
def watching(world: World, timeout_seconds: float) -> Iterator[Watch]:
    """Stop this process when another rank has failed, when it waits for too long, or when whoever keeps the store is gone."""
    watch = Watch()

    def end(error: Exception) -> None:
        if watch.clock is not None:
            watch.clock.post_error(error)
        if not watch.ended.wait(GRACE_SECONDS):
            sys.stdout.flush()
            os._exit(1)

    def look() -> None:
        told = False
        while not watch.ended.wait(POLL_SECONDS):
            try:
                if world.alarm.check(["failed"]):
                    return end(Aborted("another rank failed"))
                if not told and world.alarm.check(["stands still"]):
                    world.alarm.set(f"waits {world.rank}", waits_in_words())
                    told = True
                if not told and longest_wait() > timeout_seconds and world.alarm.add("errors", 1) == 1:
                    return end(report(world))
                watch.look()
            except Exception:
                return end(Aborted("the launching process is gone"))

    thread = Thread(target=look, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.ended.set()
        thread.join(GRACE_SECONDS)  # in the middle of a call to the store it would not survive the end of the interpreter


def report(world: World) -> StoodStill:
    """What every rank that still answers waits for, on stderr and, in short, for the launching process."""
    alarm, own = world.alarm, waits_in_words()
    alarm.set(f"waits {world.rank}", own)
    alarm.set("stands still", "")
    time.sleep(4 * POLL_SECONDS)
    answers = [str(alarm.get(key), "utf-8") if alarm.check([key := f"waits {rank}"]) else None for rank in range(world.size)]
    lines = [f"  rank {rank} {answer or 'does not answer'}" for rank, answer in enumerate(answers)]
    print("\n".join(["The run stands still:", *lines]), file=sys.stderr, flush=True)
    silent = ", ".join(str(rank) for rank, answer in enumerate(answers) if answer is None)
    sentence = f"the run stood still (network.timeout_seconds): rank {world.rank} {own}"
    sentence += f"; rank {silent} does not answer." if silent else "."
    alarm.set("failed", sentence)
    return StoodStill(sentence)


def main(config: str, group: str | None) -> int:
    """Run one rank of an experiment; what went wrong is for the launching process to say."""
    from sgp_runner.recorder import write_summary
    from sgp_runner.schema import load_experiment

    experiment = load_experiment(Path(config), group)
    try:
        summary = experiment.execute()
    except (RankFailed, Aborted, ConfigError, Diverged):
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
