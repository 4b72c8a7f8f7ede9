"""``network=sim``: all nodes in this process, on a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sgp_runner.config.run import Run
from sgp_runner.core.problem import Compute
from sgp_runner.utils.devices import check_device, check_present
from sgp_runner.utils.errors import ConfigError, check_least
from sgp_runner.utils.launchers import Launched


@dataclass(frozen=True)
class Sim:
    """All nodes in one process, on a virtual clock.

    engine: how gradients are computed: loop (one by one), vmap (many at once), or auto (vmap for
        small models without BatchNorm, except language models; else loop)
    vmap_width: maximum number of nodes per vmap call; smaller numbers are tried at the start of a
        run; does not change results on a CPU
    device: where gradients, parameters and messages are: cpu, cuda, cuda:1, or auto (a GPU if there
        is one); one process holds all nodes
    autocast: none | bf16: type of the forward pass under PyTorch's autocast; auto: bf16 on a GPU
    channels_last: whether convolutions use the channels-last layout, except under vmap; auto: on a
        GPU, with autocast
    deterministic: whether a GPU uses only deterministic algorithms and no TF32, so that runs on the
        same kind of GPU are byte-identical
    """

    engine: Literal["auto", "loop", "vmap"] = "auto"
    vmap_width: int = 32
    device: str = "cpu"
    autocast: Literal["auto", "none", "bf16"] = "auto"
    channels_last: bool | Literal["auto"] = "auto"
    deterministic: bool = True
    timeout_seconds: ClassVar[float] = float("inf")  # deadlocks are detected at once
    name: ClassVar[str] = "sim"
    clock: ClassVar[Literal["simulated", "wall"]] = "simulated"

    def __post_init__(self) -> None:
        check_least(1, "network", self, "vmap_width")

    @property
    def compute(self) -> Compute:
        return Compute(
            self.device, self.autocast, self.channels_last, deterministic=self.deterministic
        )

    def check(self, run: Run) -> None:
        check_device(self.device, self.autocast, run.dtype)
        run.faults.check(run.nodes, run.algo.servers)
        if run.record:
            raise ConfigError(
                "record",
                "a simulation needs no recording: the same command repeats it. "
                "Use record=false, or network=gloo.",
            )
        if run.gpus_per_node not in (1, run.cluster.devices_per_node):
            devices = f"cluster.devices_per_node={run.cluster.devices_per_node} devices here"
            raise ConfigError(
                "gpus_per_node",
                f"network=sim times whole nodes, which have {devices}: "
                "leave gpus_per_node out, or use network=gloo.",
            )
        run.cluster.check(run.nodes, run.algo.servers)
        if run.faults.timed and not run.model.trains and run.study.real != run.study.simulated:
            every = "a timing study repeats a sample of its steps, but events occur at set times"
            raise ConfigError(
                "faults.events",
                f"{every}: use model.sample_steps=null, or faults that last for the whole run.",
            )
        run.timed_as.step_seconds(run.cluster, run.model.name, run.batch_size)
        if self.engine == "vmap" and run.micro_batch is not None:
            raise ConfigError(
                "network.engine",
                "vmap computes whole batches: use network.engine=loop, or micro_batch=null.",
            )
        if self.engine == "vmap" and not run.model.vectorizes:
            raise ConfigError(
                "network.engine",
                f"vmap cannot run model={run.model.name}; use network.engine=loop.",
            )

    def check_start(self, run: Run, process: Launched | None) -> None:
        check_present(self.device)
        if process and process.size > 1:
            several = f"{process.launcher} has started {process.size}"
            raise ConfigError(
                "network",
                f"the simulator is one process, but {several}; start one, or choose network=gloo.",
            )
