"""What the simulated clock believes is being trained, and timing studies, which simulate a sample of a schedule.

A *sample* of a long schedule is the same schedule with fewer steps per epoch: everything that goes by epochs (switches of algorithm,
numbers of peers, warm-up) keeps its share of the run. Every step of the sample is simulated exactly and stands for the same number of
real ones, so times are extended in proportion. What happens once, such as the exact average at a switch, is multiplied with them: 0.1 %
of the time in a sample of 1,440 steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sgp_runner.data.dataset import Split
from sgp_runner.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.cluster import Cluster
    from sgp_runner.data.dataset import Batch
    from sgp_runner.models.config import ModelConfig
    from sgp_runner.place import Part
    from sgp_runner.problem import Problem
    from sgp_runner.run import Run


@dataclass(frozen=True)
class TimedAs:
    """The training that a simulated run takes the time of. ``None``: of what is really trained.

    model: name in cluster.step_seconds
    num_parameters: 4 bytes each on the wire
    batch_size: samples per node and step
    """

    model: str | None = None
    num_parameters: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        for key in ("num_parameters", "batch_size"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ConfigError(f"timed_as.{key}", f"{value} must be at least 1.")

    def step_seconds(self, cluster: Cluster, model: str, batch_size: int) -> float:
        """Mean time of a gradient, if nothing else is said of ``model`` on ``batch_size`` samples per node."""
        return cluster.mean_step(self.model or model, self.batch_size or batch_size)

    def wire_scale(self, params: Tensor) -> float:
        """What the size of every message is multiplied by, when ``params`` [D] is the vector that is really sent."""
        num_bytes = params.numel() * params.element_size()
        return 1.0 if self.num_parameters is None else 4 * self.num_parameters / num_bytes


@dataclass(frozen=True)
class Study:
    """The steps of one node in a timing study.

    real: in the whole schedule; None where the data set does not say how long an epoch is. simulated: all of them, or a sample.
    """

    real: int | None
    simulated: int

    def extended(self, seconds: float) -> dict[str, object]:
        """What ``seconds`` of simulated time for the sample mean for the whole schedule."""
        hours = None if self.real is None else seconds / self.simulated * self.real / 3600
        return {"ms_per_iteration": seconds / self.simulated * 1000, "hours": hours, "iterations": self.real}


def study(run: Run, sample_steps: int | None) -> Study:
    """At most ``sample_steps`` of a run's schedule; None for all."""
    samples, batch = run.data.train_size, run.nodes * (run.timed_as.batch_size or run.batch_size)
    if samples is None:
        if sample_steps is None:
            raise ConfigError("model.sample_steps", f"{run.data.name} does not tell the length of an epoch: set it.")
        return Study(None, sample_steps)
    if samples < batch:
        raise ConfigError("batch_size", f"{samples} training samples do not fill one batch of {batch}, all nodes together.")
    real = max(1, round(run.epochs * samples / batch))
    return Study(real, real if sample_steps is None else min(real, sample_steps))


def make_problem(run: Run, study: Study, model: ModelConfig | None = None) -> Problem:
    """The parameters of ``model``, or of the run's own, and the length of an epoch; no data is read."""
    from sgp_runner.data.dataset import Dataset
    from sgp_runner.data.tasks import Regression
    from sgp_runner.flat import FlatModule
    from sgp_runner.problem import Problem

    unread = Unread(study.simulated / run.epochs)
    dataset = Dataset(run.data.name, Regression(), unread, unread, (), 0)
    flat = FlatModule((model or run.model).build(dataset).to(run.torch_dtype))
    return Problem(flat, dataset, unread, run.seed, trains=False, vectorizes=False)


@dataclass(frozen=True)
class Unread(Split):
    """A data set of which only the length matters, and its sampler; whatever would read it is refused."""

    steps_per_epoch: float
    labels: None = None

    def __len__(self) -> int:
        return 0

    def indices(self, worker: int, step: int) -> Tensor:
        raise no_data()

    def weight(self, worker: int, step: int, part: Part) -> float:
        raise no_data()

    def batch(self, indices: Tensor, seed: int = 0) -> Batch:
        raise no_data()


def no_data() -> RuntimeError:
    return RuntimeError("a timing study reads no data")
