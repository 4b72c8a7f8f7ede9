"""The root of the configuration: one experiment."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sgp_runner import timing
from sgp_runner.algorithms import Algorithm
from sgp_runner.checkpoint import Checkpoints, latest
from sgp_runner.cluster import Cluster
from sgp_runner.crew import check_on_failure
from sgp_runner.data.dataset import DataConfig
from sgp_runner.errors import ConfigError
from sgp_runner.faults import Faults
from sgp_runner.loggers import Logger
from sgp_runner.memory import flush_denormals
from sgp_runner.models import check as check_model_reads
from sgp_runner.models.config import ModelConfig
from sgp_runner.networks import Network
from sgp_runner.optim import Horizon, Optimizer, Steps
from sgp_runner.recorder import read_summary
from sgp_runner.timing import TimedAs
from sgp_runner.worker import OwnBudget, Worker

if TYPE_CHECKING:
    import torch

    from sgp_runner.comm import Comm
    from sgp_runner.problem import Compute, Problem
    from sgp_runner.worker import Budget, Runtime

# What does not change the result of a run, and so not its name.
NOT_IN_NAME = (
    *("logger", "results", "resume", "name", "checkpoint", "record", "on_failure"),
    *("data.root", "data.workers", "network.timeout_seconds", "format"),
)

MOST_NODES = 2**16  # a larger number is a slip, which would fill the memory


def settings_of(config: Mapping[str, object]) -> dict[str, object]:
    """The part of a configuration that changes the result."""

    def kept(node: Mapping[str, object], parent: str) -> dict[str, object]:
        inner = {key: kept(value, f"{parent}{key}.") if isinstance(value, Mapping) else value for key, value in node.items()}
        return {key: value for key, value in inner.items() if f"{parent}{key}" not in NOT_IN_NAME}

    return kept(config, "")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One experiment.

    nodes: optimisation workers; a parameter server is extra
    gpus_per_node: devices of one node, each a process of a real run
    epochs: passes over the training set, all nodes together
    batch_size: samples per node and step
    seed: decides initial parameters, data order, dropout and simulated compute times
    dtype: float32 | float64
    eval_every: epochs between evaluations; the last one always happens
    eval_workers: evaluate each worker's own model then, not only their average; at the end always
    log_every: steps between records of one worker
    checkpoint: when the state of the run is saved
    record: true: a real run writes down what sgp-replay needs to repeat it; it is not saved meanwhile
    timed_as: the training that simulated time stands for; null: what is really trained
    row: the published row that a preset reproduces
    rehearsal: true: small data and a small model, as the preset says; same algorithm, its time simulated
    on_failure: stop | continue: without a rank that is gone for good (gossip and asynchronous algorithms; sim and gloo)
    resume: auto: a finished run is not repeated, one that was cut off goes on; never: start over
    name: folder in results/runs; null: made from the settings
    results: where results go, relative to where the command is started
    algo: the algorithm
    data: what is trained on
    optim: the local optimizer
    network: what moves the messages, and in whose time
    cluster: the machines that network=sim imitates
    faults: what goes wrong
    logger: where metrics go besides metrics.jsonl
    model: what is trained; may bring data, an optimizer and sizes that suit it
    """

    nodes: int = 8
    gpus_per_node: int = 1
    epochs: float = 15
    batch_size: int = 32
    seed: int = 1
    dtype: Literal["float32", "float64"] = "float32"
    eval_every: int = 1
    eval_workers: bool = True
    log_every: int = 10
    checkpoint: Checkpoints = field(default=Checkpoints())
    record: bool = False
    timed_as: TimedAs = field(default=TimedAs())
    row: str | None = None
    rehearsal: bool = False
    on_failure: Literal["stop", "continue"] = "stop"
    resume: Literal["auto", "never"] = "auto"
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

    def __post_init__(self) -> None:
        for key in ("nodes", "gpus_per_node", "batch_size", "eval_every", "log_every"):
            if getattr(self, key) < 1:
                raise ConfigError(key, f"{getattr(self, key)} must be at least 1.")
        if self.nodes > MOST_NODES:
            raise ConfigError("nodes", f"{self.nodes} must be at most {MOST_NODES}.")
        if not 0 < self.epochs < float("inf"):
            raise ConfigError("epochs", f"{self.epochs} must be positive and finite.")
        if not 0 <= self.seed < 2**63:
            raise ConfigError("seed", f"{self.seed} must be between 0 and 2**63 - 1.")
        if self.name is not None and not re.fullmatch(r"\w[\w.,=+-]{0,99}", self.name):
            raise ConfigError("name", f"'{self.name}' cannot name a folder: use up to 100 letters, digits and . , = + - _, no slashes.")
        if not self.results or "\0" in self.results:
            raise ConfigError("results", f"'{self.results}' cannot name a folder; the present one is results=.")
        check_model_reads(self.model, self.data)
        self.algo.check(self.nodes, self.optim)
        self.network.check(self)
        if self.on_failure == "continue":
            check_on_failure(self)

    @property
    def torch_dtype(self) -> torch.dtype:
        import torch

        return {"float32": torch.float32, "float64": torch.float64}[self.dtype]

    @property
    def ranks(self) -> int:
        """Simulated workers, or processes of a real run, one per device; and servers."""
        return self.nodes * (self.gpus_per_node if self.network.clock == "wall" else 1) + self.algo.servers

    @property
    def label(self) -> str:
        """What kind of result this is."""
        if self.network.clock == "wall":
            return "measured on this machine"
        if not self.model.trains:
            return "timing only; time simulated"
        return f"{'rehearsal' if self.data.stand_in else 'trained'} on {self.data.name}; time simulated"

    @property
    def notes(self) -> list[str]:
        """Settings that have no effect in this run, a sentence each."""
        schedule = self.optim.schedule
        if not self.model.trains or not isinstance(schedule, Steps):
            return []
        note = schedule.without_effect(self.nodes, self.nodes * self.batch_size)
        return [] if note is None else [note]

    def make_problem(self, compute: Compute | None = None) -> Problem:
        """Load the data and build the model; without ``compute``, for this process's CPU."""
        from sgp_runner.problem import ON_CPU, make_problem

        flush_denormals()
        if not self.model.trains:
            return timing.make_problem(self, self.study)
        return make_problem(
            self.model,
            self.data,
            workers=self.nodes,
            batch_size=self.batch_size,
            seed=self.seed,
            dtype=self.torch_dtype,
            compute=compute or ON_CPU,
        )

    def share(self, problem: Problem) -> Problem:
        """What was made for another number of nodes, for those of this run."""
        return problem.among(self.nodes, self.batch_size) if self.model.trains else timing.make_problem(self, self.study)

    @property
    def study(self) -> timing.Study:
        """The length of a timing study."""
        return timing.study(self, getattr(self.model, "sample_steps", None))

    def steps(self, problem: Problem) -> int:
        """Steps of one node."""
        return max(1, round(self.epochs * problem.sampler.steps_per_epoch))

    def budget(self, problem: Problem) -> OwnBudget:
        """Steps of one worker; asynchronous workers share one budget, and their server has as many steps."""
        return OwnBudget(self.steps(problem) * (self.nodes if self.algo.asynchronous else 1))

    def budgets(self, problem: Problem) -> list[OwnBudget]:
        """Of all workers, servers last, where they are in one process."""
        own = [self.budget(problem) for _ in range(self.nodes + self.algo.servers)]
        return [*own[:1] * self.nodes, *own[self.nodes :]] if self.algo.asynchronous else own

    def make_worker(
        self, problem: Problem, rank: int, comm: Comm, budget: Budget, runtime: Runtime, model_buffers: list[torch.Tensor] | None = None
    ) -> Worker:
        """Worker ``rank`` with parameters of its own; ``model_buffers``: None for its own, too."""
        start = problem.start()
        push_sum = start.new_ones(start.numel() + 1)
        push_sum[:-1] = start
        per_epoch = problem.sampler.steps_per_epoch
        worker = Worker(
            rank=rank,
            size=self.nodes,
            push_sum=push_sum,
            layers=problem.flat.layers,
            comm=comm,
            optim=self.optim,
            budget=budget,
            horizon=Horizon(self.epochs, per_epoch, self.nodes, self.nodes * self.batch_size),
            steps_per_epoch=per_epoch * (self.nodes if self.algo.asynchronous else 1),
            runtime=runtime,
            learns=problem.trains,
        )
        worker.buffers = self.optim.buffers(worker.params)
        worker.model_buffers = problem.flat.fresh_buffers() if model_buffers is None else model_buffers
        return worker


@dataclass(frozen=True)
class Experiment:
    """A run with the resolved configuration that describes it, and its place on disk.

    group: the sweep it belongs to. started: when its command, or its turn in a sweep, began, by `time.monotonic`.
    """

    run: Run
    config: Mapping[str, object]
    group: str | None = None
    started: float = field(default_factory=time.monotonic, compare=False)

    @property
    def settings(self) -> dict[str, object]:
        """Everything that changes the result."""
        return settings_of(self.config)

    @property
    def digest(self) -> str:
        """The same for the same settings, and for no others."""
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True, default=str).encode()).hexdigest()

    @property
    def name(self) -> str:
        """As the user wants it, or readable parts of the settings and the start of their digest."""
        run = self.run
        if run.name is not None:
            return run.name
        words = [run.algo.title, run.model.name, run.data.name, f"n{run.nodes}", run.network.name, f"s{run.seed}"]
        return "-".join(re.sub(r"[^a-z0-9]+", "_", word.lower()).strip("_") for word in words) + f"-{self.digest[:8]}"

    @property
    def directory(self) -> Path:
        return Path(self.run.results) / "runs" / self.name

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def latest_checkpoint(self) -> Path | None:
        """Where the run goes on, if it was cut off."""
        return latest(self.checkpoints, self.digest) if self.run.resume == "auto" else None

    @property
    def facts(self) -> dict[str, object]:
        """What tables say of the run besides its results."""
        run = self.run
        return {
            "name": self.name,
            "algorithm": run.algo.title,
            "model": run.model.name,
            "data": run.data.name,
            "nodes": run.nodes,
            "network": run.network.name,
            "seed": run.seed,
            "epochs": run.epochs,
            "row": run.row,
            "fitted": run.row in run.cluster.fitted_on,
            "label": run.label,
            "clock": run.network.clock,
            "server": run.algo.servers > 0,
            "run_dir": str(self.directory),
        }

    @property
    def tags(self) -> list[str]:
        run = self.run
        return [run.algo.title, run.model.name, f"nodes={run.nodes}", run.network.name]

    def finished(self) -> dict[str, object] | None:
        """The summary, if this very run has been done before."""
        return read_summary(self.directory) if self.run.resume == "auto" else None
