"""One rank of a real run, from the environment that a launcher has set up. ``python -m sgp_runner.rank config.yaml`` runs one."""

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

from sgp_runner.checkpoint import Trigger, going_on, read
from sgp_runner.crew import crew_of, listed, whole_crew
from sgp_runner.environment import code_version
from sgp_runner.errors import SAVED, Aborted, ConfigError, Diverged, GivenUp, LostConnection, RankFailed, RollCalled, StoodStill, Stopped
from sgp_runner.gradients import Gradients
from sgp_runner.launch import STARTED
from sgp_runner.launchers import kept_elsewhere
from sgp_runner.memory import keep_freed_memory
from sgp_runner.observer import Observer, cost_of, recording, results, spread, total_cost
from sgp_runner.place import Part
from sgp_runner.real import Rank, SharedBudget
from sgp_runner.replay.recorded import Recorder
from sgp_runner.roll_call import RollCall
from sgp_runner.saving import RankSaver, passed_on, restore
from sgp_runner.survivors import Survivor
from sgp_runner.watch import POLL_SECONDS, Watch, watching
from sgp_runner.worker import Steps
from sgp_runner.world import World, check_agreement

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.place import Place
    from sgp_runner.run import Experiment
    from sgp_runner.state import State
    from sgp_runner.worker import Budget, Worker


def run_rank(experiment: Experiment, world: World) -> dict[str, object] | None:
    """Run this process's rank; the summary on rank 0, None elsewhere. An error here stops every other rank."""
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
                summary = train(experiment, watch)
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
    return RankFailed(f"{listed(gone)} gone for good: {why}, and it no longer answers. {way_on(experiment)}")


def way_on(experiment: Experiment) -> str:
    found = experiment.latest_checkpoint()
    return f"The same command goes on from {found}." if found is not None else "There is no checkpoint yet to go on from."


def train(experiment: Experiment, watch: Watch) -> dict[str, object] | None:
    """The run itself, then the results of all ranks, put together on rank 0."""
    run, world = experiment.run, watch.world
    assert world is not None
    place = world.place
    check_agreement(world, "configuration", experiment.digest[:16])
    check_agreement(world, "code version", code_version())
    problem = replace(run.make_problem(world.compute), part=Part(place.device, place.devices))
    if not place.is_server:
        problem.warm_up(place.rank)
    check_agreement(world, "checksum of the initial parameters", checksum(problem.start()))
    name, names = world.gather(cut_off(experiment) if world.rank == 0 else ("", []))[0]
    if name and run.record:
        began = f"this run was cut off and would go on from {Path(name).name}, but its beginning was not recorded"
        raise ConfigError("record", f"{began}: use record=false, or resume=never to start over.")
    if world.leads and place.device:
        follow(experiment, world, Gradients(problem, world), watch)
        world.gather(None)
        return None
    crew = whole_crew(run)
    if len(names) < len(crew.names) and name:
        crew = crew_of(run, names)
        watch.reduce(crew)
        if watch.world is None:
            problem.close()
            return None
        run, problem, world, place = crew.run, crew.run.share(problem), watch.world, watch.world.place
    own = run.budget(problem)
    found = Path(name) if name else None
    saved = read(found / f"rank{world.rank}.pt", problem.compute.device) if found is not None else None
    steps = Steps()
    record = Recorder(experiment, problem, world) if run.record else None
    if record is not None:
        runtime = Rank(problem, world, run.faults, record.clock, record.wrap, listener=steps)
    else:
        runtime = Rank(problem, world, run.faults, survives=experiment.run.on_failure == "continue", listener=steps)
    watch.clock = runtime.clock
    shared = run.algo.asynchronous and place.rank < run.nodes
    budget: Budget = SharedBudget(world.store, own.total) if shared else own
    if record is not None and shared:
        budget = record.budget(budget)
    worker = run.make_worker(problem, place.rank, runtime.comm, budget, runtime, runtime.gradients.buffers)
    if place.device:  # the first device of a node records and evaluates for all
        go(experiment, world, runtime, worker, watch, steps, saved, None)
        conclude_quietly(worker, world)
        return None
    start = saved["observer"]["metrics_bytes"] if saved is not None else 0
    with closing(problem), recording(experiment, crew.names[place.rank], own.total, start) as recorder:
        observer = Observer(experiment.run, problem, recorder, runtime.settle, crew, experiment.started)
        steps.recorder = observer.end_of_step
        if found is not None and world.rank == 0:
            print(going_on(found, observer.gone), flush=True)
        try:
            with record.recording(worker) if record is not None else nullcontext():
                go(experiment, world, runtime, worker, watch, steps, saved, observer)
            summary = conclude(experiment, observer, worker, world)
        except (LostConnection, RollCalled) as error:
            if experiment.run.on_failure == "stop":
                raise
            from sgp_runner.comm.groups import DistributedWorld

            def go_again(world: World, runtime: Rank, worker: Worker) -> None:
                watch.world, watch.clock = world, runtime.clock
                go(experiment, world, runtime, worker, watch, steps, None, observer)

            assert isinstance(world, DistributedWorld)
            summary = survive(experiment, Survivor(world, runtime, worker, observer, watch.roll_call, go_again), error)
        recorder.finish(summary)
    return summary


def cut_off(experiment: Experiment) -> tuple[str, list[int]]:
    """The checkpoint from which the run goes on, empty if there is none, and who was there."""
    found = experiment.latest_checkpoint()
    return (str(found), list(read(found / "rank0.pt")["observer"]["names"])) if found is not None else ("", [])


def survive(experiment: Experiment, survivor: Survivor, error: Exception) -> dict[str, object] | None:
    """Go on without those that are gone, to the summary of the run."""
    while True:
        survivor.go_on(error)
        try:
            return conclude(experiment, survivor.observer, survivor.worker, survivor.world)
        except (LostConnection, RollCalled) as another:
            error = another


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
    experiment: Experiment,
    world: World,
    runtime: Rank,
    worker: Worker,
    watch: Watch,
    steps: Steps,
    saved: State | None,
    observer: Observer | None,
) -> None:
    """Run the algorithm to its end, from what was ``saved``, and save now and then."""
    algorithm = experiment.run.algo.run(worker)
    if experiment.run.record:  # a replay begins at the beginning, so nothing is saved
        runtime.run(worker, algorithm)
        return
    if saved is not None:
        restore(saved, runtime, worker, observer)
    saver = RankSaver(experiment, world, runtime, worker, observer)
    saver.trigger.signal = watch.signal()
    watch.signal = lambda: saver.trigger.signal
    steps.saver = saver.start_of_step
    watch.look = saver.look
    with saver.trigger.listening():
        runtime.run(worker, algorithm)


def conclude(experiment: Experiment, observer: Observer, worker: Worker, world: World) -> dict[str, object] | None:
    """Evaluate every rank's model and their average (or the server's)."""
    run = observer.crew.run
    own: dict[str, Any] = {"cost": cost_of(worker), "weight": float(worker.push_sum[-1]), "checksum": checksum(worker.params)}
    observer.record_training(worker)
    own["metrics"] = observer.evaluate(worker, run.epochs)
    mean = worker.params.clone()
    if not worker.is_server:
        world.mean(mean)
        own["square"] = float((worker.params - mean).norm()) ** 2
    processes = world.gather(own)
    check_alike(processes, world.place)
    if observer.name(worker) != 0:
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
    return {**experiment.facts, **costs, **results(observer.problem.dataset.task.metric, metrics, average), **observer.lost}


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


def main(config: str, group: str | None) -> int:
    """Run one rank of an experiment; what went wrong is for the launching process to say."""
    from sgp_runner.recorder import write_summary
    from sgp_runner.schema import load_experiment

    experiment = replace(load_experiment(Path(config), group), started=float(os.environ.get(STARTED, time.monotonic())))
    try:
        summary = experiment.execute()
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
