"""The root of the configuration: one experiment."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol

from sgp_runner.algorithms import Algorithm
from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.cluster.timed_as import TimedAs
from sgp_runner.config.checkpoints import Checkpoints
from sgp_runner.config.choices import PRESET, class_of, groups
from sgp_runner.config.logger import Logger
from sgp_runner.core import timing_study as timing
from sgp_runner.core.codecs.all_codecs import CODECS
from sgp_runner.core.codecs.casts import codes
from sgp_runner.core.optim import Horizon, Optimizer, Shapes, Steps
from sgp_runner.core.pretraining import Pretraining
from sgp_runner.core.problem import Problem
from sgp_runner.data.dataset import DataConfig
from sgp_runner.data.hub_text import HubText
from sgp_runner.models.config import ModelConfig
from sgp_runner.models.hub_model import HubModel
from sgp_runner.models.timing_only import TimingOnly
from sgp_runner.topology.verify import topologies
from sgp_runner.utils.devices import settled
from sgp_runner.utils.errors import ConfigError, check_least, nearest
from sgp_runner.utils.launchers import Launched

if TYPE_CHECKING:
    import torch


IMAGES = "digits"  # the default data of the default model
MAX_EPOCHS = 1e18  # the number of steps must fit 64 bits
MAX_NODES = 2**16  # a larger number is likely a typing error and would exhaust the memory


class Network(Protocol):
    """A choice of the group ``network``."""

    @property
    def name(self) -> str: ...
    @property
    def clock(self) -> Literal["simulated", "wall"]: ...  # of recorded times
    @property
    def timeout_seconds(self) -> float: ...  # how long a rank may wait for others
    def check(self, run: Run) -> None: ...  # raises ConfigError for an unsupported run

    def check_start(self, run: Run, process: Launched | None) -> None:
        """Raise ConfigError if this process was started incorrectly."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One experiment.

    nodes: number of optimisation workers; a parameter server is not counted
    gpus_per_node: devices of a node in a real run, with one process for each device; for
        network=sim, the cluster defines this number
    epochs: passes over the training set, all nodes together
    batch_size: samples per node and step
    micro_batch: samples per forward and backward pass of a device; null: all of its batch. The
        gradient is the same, except that BatchNorm and dropout see one pass at a time
    seed: determines initial parameters, data order, dropout and simulated compute times
    dtype: float32 | float64
    eval_every: epochs between evaluations, such as 5 or 0.25; a run always ends with an evaluation
    eval_workers: true: evaluate each worker's model too, not only their average; the evaluation at
        the end always includes them
    log_every: steps of a worker between its training records
    checkpoint: when the state of the run is saved
    record: true: a real run makes a recording for sgp-replay, and writes no checkpoints
    trace_steps: steps to trace in trace.json, a file for Perfetto, for example 100-103; the trace
        shows the machines of a simulated run or the processes of a real run
    timed_as: the training whose time is simulated; null: the training of this run
    row: the published row that a preset reproduces
    rehearsal: true: run the algorithm of the preset in simulated time, with the small data set and
        model that the preset sets for this purpose
    on_failure: stop | continue: after the loss of a rank, stop or continue without it; continue
        needs a gossip or asynchronous algorithm, and network=sim or gloo
    resume: auto: resume an interrupted run, report a finished one; never: start from scratch;
        resize: continue a synchronous run that was saved with another number of nodes, as a new run
    name: name of the folder in results/runs; null: derived from the settings
    results: folder of all results, relative to the working directory of the command
    algo: the algorithm
    data: the data set
    optim: the local optimizer
    network: the transport of messages; sim: simulated, others: real processes
    cluster: the machines that network=sim models
    faults: slow nodes and links, crashes, lost messages
    logger: destination of the metrics besides metrics.jsonl
    model: the model to train; it may set the defaults of the data set, the optimizer and sizes
    pretrain: plain training of one model before the run; all workers start from it
    """

    nodes: int = 8
    gpus_per_node: int = 1
    epochs: float = 15
    batch_size: int = 32
    micro_batch: int | None = None
    seed: int = 1
    dtype: Literal["float32", "float64"] = "float32"
    eval_every: int | float = 1
    eval_workers: bool = True
    log_every: int = 10
    checkpoint: Checkpoints = field(default=Checkpoints())
    record: bool = False
    trace_steps: str | int | None = None
    timed_as: TimedAs = field(default=TimedAs())
    row: str | None = None
    rehearsal: bool = False
    on_failure: Literal["stop", "continue"] = "stop"
    resume: Literal["auto", "never", "resize"] = "auto"
    name: str | None = None
    results: str = "results"
    algo: Algorithm
    data: DataConfig
    optim: Optimizer
    network: Network
    cluster: Cluster
    faults: Faults
    logger: Logger
    model: ModelConfig
    pretrain: Pretraining = field(default=Pretraining())

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", settled(self.network, self.dtype))
        if isinstance(self.data, HubText):
            model = self.model.path if isinstance(self.model, HubModel) else None
            object.__setattr__(self, "data", self.data.with_tokenizer(model))
        if (
            isinstance(self.model, TimingOnly)
            and self.timed_as.num_parameters is None
            and self.timed_as.model in (None, self.model.stands_for)
        ):
            timed_as = replace(self.timed_as, num_parameters=self.model.num_parameters)
            object.__setattr__(self, "timed_as", timed_as)
        self.timed_as.check(self.cluster, groups()["model"], self.model.name)
        self.cluster.codecs.check(CODECS)
        check_row("row", [self.row] if self.row is not None else [])
        check_row("cluster.validated.fitted_on", self.cluster.validated.fitted_on)
        check_least(1, "", self, "nodes", "gpus_per_node", "batch_size", "log_every")
        if self.micro_batch is not None:
            self.check_micro_batch(self.micro_batch)
        if self.trace_steps is not None:
            steps_in(self.trace_steps)
        if not self.eval_every > 0:
            raise ConfigError(
                "eval_every", f"{self.eval_every} must be positive, for example 1 or 0.25."
            )
        if self.nodes > MAX_NODES:
            raise ConfigError("nodes", f"{self.nodes} must be at most {MAX_NODES}.")
        if not 0 < self.epochs < float("inf"):
            raise ConfigError("epochs", f"{self.epochs} must be positive and finite.")
        if self.epochs >= MAX_EPOCHS:
            raise ConfigError("epochs", f"{self.epochs} must be less than {MAX_EPOCHS:g}.")
        if not 0 <= self.seed < 2**63:
            raise ConfigError("seed", f"{self.seed} must be between 0 and 2**63 - 1.")
        if self.name is not None and not re.fullmatch(r"\w[\w.,=+-]{0,99}", self.name):
            raise ConfigError(
                "name",
                f"'{self.name}' is not a valid folder name: use up to 100 letters, digits and "
                ". , = + - _, no slashes.",
            )
        if not self.results or "\0" in self.results:
            raise ConfigError(
                "results",
                f"'{self.results}' is not a valid folder name; the current folder is results=.",
            )
        check_model_reads(self.model, self.data)
        self.algo.check(self.nodes, self.optim)
        self.network.check(self)
        if self.on_failure == "continue":
            self.check_on_failure()

    def check_micro_batch(self, size: int) -> None:
        """Raise ConfigError unless a batch divides into micro-batches of ``size`` samples."""
        batch = self.batch_size // self.gpus_per_node
        if size < 1 or batch % size:
            sizes = [divisor for divisor in range(1, batch + 1) if batch % divisor == 0]
            fits = min(sizes, key=lambda divisor: abs(divisor - size))
            raise ConfigError(
                "micro_batch",
                f"{batch} samples per device do not divide into micro-batches of {size}: "
                f"use micro_batch={fits}, or another divisor of {batch}.",
            )

    def check_on_failure(self) -> None:
        """Raise ConfigError if ``on_failure=continue`` cannot work.

        For example, it cannot work if the run would be invalid with one node fewer.
        """
        key = "on_failure"
        if not can_lose_ranks(self.algo):
            what = f"{self.algo.title} needs all of its ranks in its all-reduce"
            raise ConfigError(
                key,
                f"{what}: use on_failure=stop and resume with the same command, "
                "or use a gossip algorithm.",
            )
        if self.network.name not in ("sim", "gloo"):
            raise ConfigError(
                key,
                f"network={self.network.name} cannot continue without a rank: "
                "use on_failure=stop, or network=gloo.",
            )
        if self.gpus_per_node > 1:
            raise ConfigError(
                key,
                "nodes with several devices cannot continue without a rank: "
                "use on_failure=stop, or gpus_per_node=1.",
            )
        if self.nodes == 1:
            raise ConfigError(
                key, "on_failure=continue needs at least 2 nodes: use on_failure=stop, or nodes=2."
            )
        try:
            self.subset(range(1, self.ranks))
        except ConfigError as error:
            raise ConfigError(
                key,
                f"the run is invalid without one of its {self.nodes} nodes "
                f"({error.sentence[:-1]}): use on_failure=stop.",
            ) from error

    def subset(self, left: Sequence[int]) -> Run:
        """Return the run with only the ranks in ``left``, renumbered from 0.

        Raises ConfigError if that run is invalid.
        """
        new = {old: rank for rank, old in enumerate(left)}
        return replace(
            self,
            nodes=len(left) - self.algo.servers,
            cluster=self.cluster.subset(new),
            faults=self.faults.subset(new),
            on_failure="stop",  # checked in the run as configured
        )

    @property
    def torch_dtype(self) -> torch.dtype:
        import torch

        return {"float32": torch.float32, "float64": torch.float64}[self.dtype]

    @property
    def ranks(self) -> int:
        """The number of ranks: devices of a real run, or nodes of a simulated one, plus servers."""
        return (
            self.nodes * (self.gpus_per_node if self.network.clock == "wall" else 1)
            + self.algo.servers
        )

    @property
    def calls(self) -> str:
        """Settings that determine the calls of the ranks, as text; one number for the cluster."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "cluster"]
        parts = [repr(getattr(self, name)) for name in names]
        return " ".join([*parts, str(len(self.cluster.links.rates))])

    @property
    def label(self) -> str:
        """The kind of result, in words."""
        if self.network.clock == "wall":
            return "measured on this machine"
        if not self.model.trains:
            return "timing only; time simulated"
        stands_for_a_row = self.row is not None and self.data.stand_in
        kind = "rehearsal" if stands_for_a_row else "trained"
        return f"{kind} on {self.data.name}; time simulated"

    def notes(self, steps: int) -> list[str]:
        """Return a sentence for each setting without effect in this run of ``steps`` steps."""
        notes = [self.algo.warning(steps, self.epochs), self.note_on_shapes]
        if not self.model.trains:
            whole = self.study.real is not None and self.algo.warning(self.study.real, self.epochs)
            more = "" if whole else " Simulate more of the schedule with model.sample_steps."
            return [note + more for note in notes if note is not None]
        if isinstance(schedule := self.optim.schedule, Steps):
            notes.append(schedule.warning(self.nodes, self.nodes * self.batch_size))
        return [note for note in notes if note is not None]

    @property
    def note_on_shapes(self) -> str | None:
        """Warning if factors are sent, but the shapes of the timed model's tensors are unknown."""
        factors = self.algo.message_layout == "factors"
        if self.timed_as.num_parameters is None or self.timed_as.known_shapes or not factors:
            return None
        model = self.timed_as.model or f"a model of {self.timed_as.num_parameters} parameters"
        here = self.model.name if self.model.trains else "60 equal matrices"
        return (
            f"The shapes of the tensors of {model} are unknown, so the factors of "
            f"{self.algo.title} have the same share of the parameters as for {here}."
        )

    @property
    def study(self) -> timing.Study:
        """The sample of the schedule that a timing study simulates."""
        batch = self.nodes * (self.timed_as.batch_size or self.batch_size)
        return timing.study(
            self.data, batch, self.epochs, getattr(self.model, "sample_steps", None)
        )

    @property
    def timed_shapes(self) -> Shapes | None:
        """Shapes of the model whose time is simulated; None if messages do not depend on them."""
        return (
            self.timed_as.shapes
            if self.algo.message_layout != "model" or codes(self.algo)
            else None
        )

    def steps(self, problem: Problem) -> int:
        """Return the number of steps of one node."""
        return self.horizon(problem).steps

    def horizon(self, problem: Problem) -> Horizon:
        """Return the constants of the run that a schedule may depend on."""
        per_epoch = problem.sampler.steps_per_epoch
        return Horizon(self.epochs, per_epoch, self.nodes, self.nodes * self.batch_size)

    def total_steps(self, problem: Problem) -> int:
        """Return the steps in a budget; all workers share it if the algorithm is asynchronous."""
        return self.steps(problem) * (self.nodes if self.algo.asynchronous else 1)


def steps_in(text: str | int) -> range:
    """Return the steps in ``text``, such as 5 or 100-103. Raises ConfigError for any other text."""
    match = re.fullmatch(r"(\d{1,12})(?:-(\d{1,12}))?", str(text))
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if last < first:
        raise ConfigError(
            "trace_steps", f"'{text}' is not a range of steps: use 5 or 100-103, counted from 0."
        )
    return range(first, last + 1)


def check_row(key: str, rows: Iterable[str]) -> None:
    """Raise ConfigError if no preset reproduces one of the published ``rows``."""
    presets = groups()[PRESET]
    for row in rows:
        if row not in presets:
            raise ConfigError(key, f"no preset reproduces the row '{row}'.{nearest(row, presets)}")


def check_model_reads(model: ModelConfig, data: DataConfig) -> None:
    """Raise ConfigError, listing valid choices, if ``model`` cannot be trained on ``data``."""
    if data.task in model.tasks:
        return
    classes = {name: class_of("model", name) for name in groups()["model"]}
    readers = [
        name
        for name, cls in classes.items()
        if cls is not None and cls.trains and data.task in cls.tasks
    ]
    # Image data are not an alternative for a user who chose text or numbers.
    others = [f"model={' or '.join(readers)}"] if readers else []
    others += [f"data={model.default_data}"] if not readers or model.default_data != IMAGES else []
    raise ConfigError(
        "data",
        f"model={model.name} reads {' or '.join(model.tasks)} data; data={data.name} is "
        f"{data.task}. Use {', or '.join(others)}.",
    )


def can_lose_ranks(algo: Algorithm) -> bool:
    """Return whether the algorithm can continue without a rank.

    Asynchronous algorithms can. A synchronous algorithm can if all its parts use gossip, because
    the workers then only exchange messages.
    """
    assert dataclasses.is_dataclass(algo)
    parts = [
        part
        for field in dataclasses.fields(algo)
        if isinstance(part := getattr(algo, field.name), Algorithm)
    ]
    return algo.asynchronous or (
        all(map(can_lose_ranks, parts)) if parts else any(topologies(algo))
    )
