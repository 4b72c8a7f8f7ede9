"""Observation of a run: training records, and evaluations of the workers and their average.

Evaluation happens between two steps of a worker, takes no simulated time and does not wait for
other workers. The average of an epoch is over the models with which the workers finished that
epoch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from sgp_runner.config.membership import Membership, full_membership, membership_of
from sgp_runner.config.run import Run
from sgp_runner.core.parts import PartShapes
from sgp_runner.core.problem import Problem
from sgp_runner.core.worker import Worker
from sgp_runner.recording.checkpoint import Found
from sgp_runner.recording.divergence import check_loss, check_parameters
from sgp_runner.recording.epoch_average import EpochAverage, averages_in, mean_min_max
from sgp_runner.recording.latest_model import LatestModel
from sgp_runner.recording.recorder import Position, Recorder
from sgp_runner.recording.throughput import Throughput, mean_rates
from sgp_runner.utils.sums import sum_in_order

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Grid:
    """The epochs at which a run is evaluated: multiples of ``every``, exact for fractions.

    An asynchronous worker may skip an epoch of the grid. It is then evaluated at the next
    multiple if ``every`` is whole, and after its next step if ``every`` is a fraction.
    """

    every: int | float

    def before(self, amount: float, per_epoch: float) -> float:
        """Return the last epoch within ``amount`` that can be on the grid.

        This is a whole number if ``every`` is whole, and otherwise a multiple of ``every``.

        per_epoch: amount of one epoch, in the unit of ``amount``
        """
        if isinstance(self.every, int):
            return amount // per_epoch
        unit = Fraction(str(self.every))
        return float(amount * unit.denominator // (unit.numerator * per_epoch) * unit)

    def has(self, epoch: float) -> bool:
        return isinstance(self.every, float) or epoch % self.every == 0


def is_recorded(run: Run, worker: Worker) -> bool:
    """Return whether the training record of a finished step is due."""
    every = run.log_every * (1 if worker.rank < worker.size else worker.size)
    return worker.steps_taken % every == 0 or worker.steps_taken == 1


def bytes_sent(worker: Worker) -> int:
    """Return the bytes that a node has sent so far; devices that send separately are added up."""
    shapes, here = worker.shapes, worker.comm.num_bytes_sent
    if not isinstance(shapes, PartShapes):
        return here
    import torch

    return int(shapes.devices.total(worker.push_sum.new_tensor(here, dtype=torch.int64)))


class Observer:
    """Recorder of the workers of one process, under their original ranks.

    settle: called before recording at the end of a step
    started: start of the run's command, by `time.monotonic`
    throughput: throughput of the worker in a real run
    """

    def __init__(
        self,
        run: Run,
        problem: Problem,
        recorder: Recorder,
        settle: Callable[[], None] = lambda: None,
        membership: Membership | None = None,
        started: float | None = None,
        throughput: Throughput | None = None,
    ) -> None:
        self.throughput = throughput
        self.run, self.problem, self.recorder, self.settle = run, problem, recorder, settle
        self.started = time.monotonic() if started is None else started
        self.evaluated: dict[int, float] = {}  # original rank -> last evaluated epoch
        self.averages: dict[float, EpochAverage] = {}  # by epoch
        self.first_losses: dict[int, float] = {}  # original rank -> first recorded loss
        self.average: dict[str, float] = {}  # latest metrics of the averaged (or server) model
        self.translations: dict[str, object] = {}  # by that model at the end
        self.latest = LatestModel(run.network.clock)
        self.membership = membership or full_membership(run)
        self.grid = Grid(run.eval_every)
        self.unsaved: list[str] = []  # variables of the algorithm that checkpoints lose
        self.lost_state: list[str] = []  # those that were lost when the run was resumed

    def follow(
        self, membership: Membership, problem: Problem, now: float, epoch: float, records: bool
    ) -> None:
        """Switch to another membership, which continues from ``epoch``.

        records: whether to write records of lost or rejoined ranks
        """
        before, after = {*self.membership.original_ranks}, {*membership.original_ranks}
        self.membership, self.problem = membership, problem
        self.averages.clear()
        if self.throughput is not None:
            self.throughput.restart()
        self.evaluated = dict.fromkeys(membership.original_ranks, self.grid.before(epoch, 1))
        if records and before != after:
            kind = "lost" if before - after else "rejoined"
            stamp = {"kind": kind, "time_s": now, "clock": self.run.network.clock}
            ranks, total = sorted(before ^ after), membership.run.total_steps(problem)
            self.recorder.write(
                stamp
                | {"ranks": ranks, "epoch": epoch, "nodes": membership.run.nodes, "steps": total}
            )

    def resize(
        self, checkpoint: Found, saved: Mapping[str, Any], now: float, epoch: float, records: bool
    ) -> None:
        """Start at ``epoch`` from the checkpoint of another run, with the observer state ``saved``.

        records: whether to record the change
        """
        assert checkpoint.origin is not None
        self.follow(self.membership, self.problem, now, epoch, records=False)
        self.lost_state = list(map(str, saved.get("unsaved", ())))
        if records:
            before = {"run": checkpoint.origin.run, "step": checkpoint.origin.steps}
            before |= {"nodes_before": len(checkpoint.original_ranks), "epoch": epoch}
            run = self.membership.run
            after = {"nodes": run.nodes, "steps": run.total_steps(self.problem)}
            self.recorder.write(self.stamp("resized", now) | before | after)

    @property
    def gone(self) -> list[int]:
        """The original ranks that were lost."""
        return self.membership.lost(self.run)

    @property
    def lost(self) -> dict[str, object]:
        """The entries of the summary for lost ranks and lost state."""
        entries = {"lost": self.gone, "lost_state": self.lost_state}
        return {key: value for key, value in entries.items() if value}

    def name(self, worker: Worker) -> int:
        return self.membership.original_ranks[worker.rank]

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs. Raises the errors of `Recorder.position`."""
        position, throughput = self.recorder.position(), self.throughput
        return {
            **({} if throughput is None else {"throughput": throughput.state_dict()}),
            "real_s": time.monotonic() - self.started,
            "evaluated": self.evaluated,
            "gatherings": {epoch: vars(average) for epoch, average in self.averages.items()},
            "first_losses": self.first_losses,
            "average": self.average,
            "metrics_bytes": position.num_bytes,
            "metrics_checksum": position.checksum,
            "names": self.membership.original_ranks,
            "unsaved": sorted({*self.unsaved, *self.lost_state}),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        self.started -= saved["real_s"]
        self.evaluated = saved["evaluated"]
        self.averages = averages_in(saved)
        self.first_losses = saved["first_losses"]
        self.average = saved["average"]
        # Its calls were verified when ranks were lost.
        self.membership = membership_of(self.run, saved["names"], lambda _: None)
        self.lost_state = list(map(str, saved.get("unsaved", ())))
        if self.throughput is not None:
            self.throughput.load_state_dict(saved.get("throughput"))

    def end_of_step(self, worker: Worker) -> None:
        record = is_recorded(self.run, worker)
        if not self.problem.trains:
            if record:
                self.record_training(worker)
            return
        epoch = self.grid.before(worker.step + 1, worker.steps_per_epoch)
        due = epoch > self.evaluated.get(self.name(worker), 0) and self.grid.has(epoch)
        evaluate = due and not worker.budget.spent
        if record or evaluate:
            self.settle()
        if record:
            self.record_training(worker)
        if evaluate:
            self.evaluated[self.name(worker)] = epoch
            self.evaluate(worker, epoch, self.run.eval_workers)

    def stamp(self, kind: str, now: float) -> dict[str, object]:
        return {"kind": kind, "time_s": now, "clock": self.run.network.clock}

    def record_training(self, worker: Worker) -> None:
        """Record the training state of a worker; then raise Diverged if it has diverged."""
        now = worker.now
        worker.check_now()
        progress = worker.progress
        logged = {
            name: sum_in_order(row) / len(row) for name, row in progress.observed.items() if row
        }
        progress.observed.clear()
        record: dict[str, object] = {
            "step": worker.step,
            "epoch": worker.epoch,
            "lr": worker.lr,
            "bytes_sent": bytes_sent(worker),
            "staleness": logged.pop("staleness", None),
        }
        stamp = self.stamp("server" if worker.is_server else "train", now)
        if not worker.is_server:
            stamp["rank"] = self.name(worker)
            record |= {
                "loss": float(progress.loss) if self.problem.trains else None,
                "push_sum_weight": worker.push_sum_weight,
            }
            if self.throughput is not None:
                record |= self.throughput.since_last_record(worker, self.problem, now)
        stamped = stamp | record
        self.recorder.write(stamped | {key: logged[key] for key in logged if key not in stamped})
        if self.problem.trains and worker.steps_taken:
            if not worker.is_server:
                loss = float(progress.loss)
                check_loss(worker, loss, self.first_losses.setdefault(self.name(worker), loss))
            check_parameters(worker)

    def evaluate(self, worker: Worker, epoch: float, of_worker: bool = True) -> dict[str, float]:
        """Evaluate and record the server's model or, if ``of_worker``, the model of one worker.

        In simulated time, the last worker to finish an epoch also triggers the evaluation of the
        average of all workers, unless there is a server.
        """
        if worker.is_server and worker.rank < worker.size + self.run.algo.servers - 1:
            return {}  # the last server has the model
        if worker.is_server:
            self.record_average(worker, epoch, worker.model, {})
            return self.average
        metrics: dict[str, float] = {}
        if of_worker:
            with self.recorder.meter.timed():
                metrics = self.latest.evaluate(self.problem, worker.model, worker.model_buffers)
            self.recorder.write(
                self.stamp("eval", worker.now)
                | {"rank": self.name(worker), "step": worker.step, "epoch": epoch}
                | metrics
            )
        # In real runs an average would need a barrier.
        if self.run.network.clock == "simulated" and not self.run.algo.servers:
            self.gather(worker, epoch, metrics)
        return metrics

    def gather(self, worker: Worker, epoch: float, metrics: dict[str, float]) -> None:
        average = self.averages.setdefault(epoch, EpochAverage(worker.size))
        average.add(
            *(worker.rank, worker.model, worker.push_sum_weight, metrics, bytes_sent(worker))
        )
        if average.complete:
            self.averages = {other: rest for other, rest in self.averages.items() if other > epoch}
            self.record_average(worker, epoch, *average.result())

    def record_average(
        self, worker: Worker, epoch: float, params: Tensor, rest: dict[str, float]
    ) -> None:
        with self.recorder.meter.timed():
            self.average = self.latest.evaluate_re_estimated(self.problem, params) | rest
            if epoch == self.run.epochs:
                self.translations = self.problem.translations(params)
        self.recorder.write(self.stamp("average", worker.now) | {"epoch": epoch} | self.average)

    def conclude(self, workers: Sequence[Worker]) -> dict[str, object]:
        """Evaluate all workers, servers last, and return the results for the summary."""
        gradient_workers = [worker for worker in workers if not worker.is_server]
        for worker in workers:
            self.record_training(worker)
        costs = [cost_of(worker) for worker in gradient_workers]
        if not self.problem.trains:
            more = self.membership.run.study.extended(max(worker.now for worker in workers))
            return total_cost(costs, time.monotonic() - self.started) | more
        self.averages.clear()
        metrics = [self.evaluate(worker, self.run.epochs) for worker in workers]
        quality = results(
            self.problem.dataset.task.metric, metrics[: len(gradient_workers)], self.average
        )
        return total_cost(costs, time.monotonic() - self.started) | quality | self.translations


def position_in(saved: Mapping[str, Any]) -> Position:
    """Return the position in the records when the observer state ``saved`` was saved.

    Raises KeyError, TypeError or ValueError for a state that an observer cannot load.
    """
    averages_in(saved)
    if not all(isinstance(saved[key], dict) for key in ("evaluated", "first_losses", "average")):
        raise TypeError("it has no evaluations")
    if not math.isfinite(saved["real_s"]) or saved["metrics_bytes"] < 0:
        raise ValueError("the state has no position in the records")
    return Position(saved["metrics_bytes"], saved.get("metrics_checksum"))


def cost_of(worker: Worker, throughput: Throughput | None = None) -> dict[str, Any]:
    """Return the time, steps and bytes of one worker so far, and the rates of a real run."""
    cost = {"time_s": worker.now, "steps": worker.steps_taken, "bytes": bytes_sent(worker)}
    return cost if throughput is None else cost | throughput.rates(throughput.total)


def total_cost(costs: Sequence[dict[str, Any]], real_seconds: float) -> dict[str, object]:
    """Return the time of the slowest worker, and means over gradient workers."""
    return {
        "time_s": max(cost["time_s"] for cost in costs),
        "real_s": real_seconds,
        "steps": round(sum(cost["steps"] for cost in costs) / len(costs)),
        "bytes_per_node": round(sum(cost["bytes"] for cost in costs) / len(costs)),
        **mean_rates(costs),
    }


def results(
    metric: str, workers: Sequence[dict[str, float]], average: dict[str, float]
) -> dict[str, object]:
    """Return the quality of the workers' models and of the averaged or server model."""
    names = ["bits_per_byte"] * ("excess_loss" not in average) + ["bleu", "consensus_distance"]
    return {
        "metric": metric,
        "average": average[metric],
        "average_loss": average["loss"],
        **{f"worker_{name}": value for name, value in mean_min_max(workers, metric).items()},
        **{name: average[name] for name in names if name in average},
    }
