"""``sgp-run check [SETTINGS]``: check, on one screen, whether a run would work here.

Each line is a `Finding` about this machine. The command trains nothing and contacts no other
machine.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import resource
import shutil
import socket
import subprocess
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sgp_runner._version import __version__
from sgp_runner.cli.argparser import put
from sgp_runner.cli.options import load
from sgp_runner.config.command_line import parse
from sgp_runner.config.experiment import make_experiment
from sgp_runner.config.logger import NeedsPackages
from sgp_runner.config.overrides import compose, configs
from sgp_runner.config.run import Run
from sgp_runner.config.size import (
    ITEM,
    check_memory,
    estimated_bytes,
    kept_by_optimizer,
    parameters,
)
from sgp_runner.recording.loggers.wandb import Wandb, has_login
from sgp_runner.utils.devices import count_gpus, device_of
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.extras import install
from sgp_runner.utils.launchers import launched, local_ranks, machines_of_job
from sgp_runner.utils.memory import free_bytes, most_bytes
from sgp_runner.utils.network_interfaces import (
    chooses_none,
    infiniband,
    interfaces,
    is_loopback,
    own_address,
)
from sgp_runner.utils.provenance import gpu_versions, installed_version
from sgp_runner.utils.units import counted, num_bytes

HELP = """usage: sgp-run check [KEY=VALUE ...]

Checks whether this machine has what a run of these settings needs: GPUs and their
libraries, network, limits, memory, disk and programs. Every line is ok, a warning,
or something that makes the run fail, with its fix. The exit code is 1 if the run
would fail, else 0.

  sgp-run check                                        this machine
  srun --nodes=4 --gpus-per-node=8 sgp-run check network=nccl nodes=4 gpus_per_node=8"""

WIDTH, MARK, SUBJECT = 80, 9, 13  # columns: of a line, of its mark and of its subject
SHARED_MEMORY = Path("/dev/shm")
NCCL_BYTES = 10_000_000  # of shared memory that a rank of NCCL takes at least
CONNECTIONS = 8  # of a rank to every other one, at most, in all process groups


@dataclass(frozen=True)
class Finding:
    """A line of the output.

    fix: advice to the user, as a sentence; empty if nothing needs to be done
    fails: whether the run would fail
    """

    subject: str
    text: str
    fix: str = ""
    fails: bool = False

    @property
    def lines(self) -> str:
        mark = "FAILS" if self.fails else "warning" if self.fix else "ok"
        first = f"{mark:<{MARK}}{self.subject:<{SUBJECT}}"
        blanks = " " * len(first)
        return "\n".join(
            textwrap.fill(
                text, WIDTH, initial_indent=head, subsequent_indent=blanks, break_on_hyphens=False
            )
            for head, text in [(first, self.text), *([(blanks, self.fix)] if self.fix else [])]
        )


@dataclass(frozen=True)
class RunHere:
    """This machine and the ranks of ``run`` on it; ``gpus`` is the number of visible GPUs."""

    run: Run
    gpus: int

    @property
    def ranks(self) -> int:
        """Return the number of processes of the run on this machine, estimated without a launcher.

        Without a launcher, nodes for which this machine lacks GPUs count as nodes on other
        machines.
        """
        run = self.run
        if run.network.clock == "simulated":
            return 1
        if launched() is not None:
            return local_ranks(run.ranks)
        machines = machines_of_job()
        if machines == 1 and run.network.name == "nccl" and run.ranks > self.gpus:
            return run.gpus_per_node
        return -(-run.ranks // machines)

    @property
    def needed_gpus(self) -> int:
        """Return the number of GPUs that the run needs on this machine."""
        if self.run.network.name == "nccl":
            return min(self.ranks, self.run.nodes * self.run.gpus_per_node)
        kind, _, number = device_of(self.run.network).partition(":")
        return int(number or 0) + 1 if kind == "cuda" else 0

    def findings(self) -> Iterator[Finding]:
        yield versions()
        yield self.cards()
        yield self.libraries()
        if self.run.network.name in ("gloo", "nccl"):
            yield self.network()
        if adapters := infiniband():
            yield self.fabric(", ".join(adapters))
        yield self.files()
        yield self.memory()
        yield self.shared_memory()
        yield self.disk()
        yield slurm()
        yield self.mpi()
        yield self.compiler()
        yield self.logger()

    def cards(self) -> Finding:
        import torch

        needed = self.needed_gpus
        properties = [torch.cuda.get_device_properties(number) for number in range(self.gpus)]
        counts = Counter((card.name, num_bytes(card.total_memory)) for card in properties)
        text = "; ".join(f"{n} x {name}, {size} each" for (name, size), n in counts.items())
        if self.gpus < needed:
            have = text or "none"
            return Finding("GPUs", f"{have}; the run needs {needed} here", self.why(), fails=True)
        for number, card in enumerate(properties):
            free, _ = torch.cuda.mem_get_info(number)
            if free < 0.9 * card.total_memory:
                fix = f"GPU {number} has only {num_bytes(free)} free: nvidia-smi shows who uses it."
                return Finding("GPUs", text, fix)
        return Finding("GPUs", text or "none, and the run needs none")

    def why(self) -> str:
        """Return why there are too few GPUs, and the fix; or the fix alone."""
        gpu = gpu_versions()
        if gpu["cuda"] is None:
            return "This PyTorch is built for CPUs: install one with CUDA (pip install torch)."
        if self.gpus:
            return (
                f"Request more (sbatch --gpus-per-node={self.needed_gpus}), "
                "or use fewer nodes or gpus_per_node."
            )
        if gpu["driver"] is None:
            command = f"srun --gpus-per-node={self.needed_gpus} sgp-run check ..."
            return f"This machine has no NVIDIA driver: check the machine of the run: {command}"
        return (
            "PyTorch finds no GPU although there is a driver: unset CUDA_VISIBLE_DEVICES, or "
            f"install a driver for CUDA {gpu['cuda']}."
        )

    def libraries(self) -> Finding:
        numbers = gpu_versions()
        names = {"driver": "driver", "CUDA": "cuda", "cuDNN": "cudnn", "NCCL": "nccl"}
        text = ", ".join(f"{name} {numbers[key] or 'none'}" for name, key in names.items())
        missing = self.run.network.name == "nccl" and numbers["nccl"] is None
        fix = "Install a PyTorch with NCCL, or use network=gloo." if missing else ""
        return Finding("libraries", text, fix, fails=missing)

    def network(self) -> Finding:
        addresses = interfaces()
        outer = {name: ip for name, ip in addresses.items() if not is_loopback(ip)}
        text = ", ".join(f"{name} {ip}" for name, ip in outer.items()) or "only loopback"
        chosen = {name: os.environ.get(f"{name}_SOCKET_IFNAME") for name in ("GLOO", "NCCL")}
        for name, value in chosen.items():
            text += f"; {name}_SOCKET_IFNAME={value}" if value else ""
        if not (self.run.network.clock == "wall" and self.ranks < self.run.ranks):
            return Finding("network", text)  # all ranks use loopback
        first = next(iter(outer), "")
        fix = ""
        for name, value in chosen.items():
            if value and chooses_none(name, value, addresses):
                fix = f"{name}_SOCKET_IFNAME is not an interface of this machine: use {first}."
        if not outer:
            fix = "The other machines cannot be reached: connect this one to a network."
        elif not chosen["GLOO"] and ((ip := own_address()) == "" or is_loopback(ip)):
            fix = (
                f"This machine's host name resolves to {ip or 'no address'}, where others cannot "
                f"reach it: export GLOO_SOCKET_IFNAME={first} (SGP_INTERFACE={first} in Slurm)."
            )
        return Finding("network", text, fix, fails=bool(fix))

    def fabric(self, adapters: str) -> Finding:
        if os.environ.get("NCCL_IB_DISABLE", "0") == "1":
            return Finding("InfiniBand", adapters, "NCCL_IB_DISABLE=1 switches it off: unset it.")
        try:
            ctypes.CDLL("libibverbs.so.1")
        except OSError:
            fix = "NCCL falls back to TCP without libibverbs: install it (Debian: libibverbs1)."
            return Finding("InfiniBand", adapters, fix)
        return Finding("InfiniBand", adapters)

    def files(self) -> Finding:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = CONNECTIONS * self.run.ranks + 256 if self.run.network.clock == "wall" else 256
        if most == resource.RLIM_INFINITY:
            return Finding("open files", "unlimited")
        fix = f"Ranks connect to all others: raise the limit (ulimit -Hn {needed})."
        return Finding("open files", f"at most {most:,}", fix if most < needed else "")

    def memory(self) -> Finding:
        free, most = free_bytes(), most_bytes()
        expected = estimated_bytes(self.run)
        if self.run.network.clock == "wall":
            expected = expected * self.ranks // self.run.ranks
        text = f"{num_bytes(free)} free; the run takes about {num_bytes(expected)} here"
        try:
            check_memory(self.run, self.ranks, most)
        except ConfigError as error:
            return Finding("memory", text, f"{error}", fails=True)
        fix = "Free some memory, or use fewer ranks per machine." if expected > free else ""
        return Finding("memory", text, fix)

    def shared_memory(self) -> Finding:
        name = str(SHARED_MEMORY)
        free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
        nccl = self.run.network.name == "nccl" and self.ranks > 1
        fix = "NCCL and data workers need it: docker run --shm-size=8g, or --ipc=host."
        return Finding(
            name,
            f"{num_bytes(free)} free",
            fix if free < 10**9 and (nccl or free < 10**7) else "",
            fails=nccl and free < self.ranks * NCCL_BYTES,
        )

    def disk(self) -> Finding:
        path = Path(self.run.results).absolute()
        folder = next(parent for parent in (path, *path.parents) if parent.exists())
        free = shutil.disk_usage(folder).free
        needed = self.checkpoint_bytes()
        text = f"{num_bytes(free)} free; checkpoints take about {num_bytes(needed)}"
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            fix = f"{folder} is not writable: use results=FOLDER, or chmod u+w."
            return Finding("results", text, fix, fails=True)
        if free < needed:
            fix = "Use results= on another disk, or a smaller checkpoint.keep."
            return Finding("results", text, fix, fails=True)
        return Finding("results", text, "Free disk space, or use results=." if free < 10**9 else "")

    def checkpoint_bytes(self) -> int:
        """Return the largest total size of the checkpoints on disk; 0 if none are saved."""
        run = self.run
        if run.checkpoint.every_steps is None and run.checkpoint.every_minutes is None:
            return 0
        count, _ = parameters(run.model, run.data)
        node_bytes = count * ITEM[run.dtype] * (1 + kept_by_optimizer(run))
        return (run.checkpoint.keep + 1) * run.nodes * node_bytes

    def mpi(self) -> Finding:
        parts = {"mpirun": shutil.which("mpirun"), "mpi4py": importlib.util.find_spec("mpi4py")}
        missing = [name for name, place in parts.items() if place is None]
        unneeded = {"mpirun"} if launched() else set()  # another launcher has started the ranks
        needs = self.run.network.name == "mpi" and bool(set(missing) - unneeded)
        text = ", ".join(name for name in parts if name not in missing) or "not installed"
        return Finding("MPI", text, f"{install('mpi')}." if needs else "", fails=needs)

    def compiler(self) -> Finding:
        names = [os.environ.get("CXX", "c++"), "g++", "clang++"]
        compiler = next((name for name in names if shutil.which(name)), None)
        needs = compiler is None and getattr(self.run.network, "compile", False)
        fix = "torch.compile needs one: install it (Debian: g++), or use network.compile=false."
        return Finding("C++ compiler", compiler or "none", fix if needs else "", fails=needs)

    def logger(self) -> Finding:
        logger = self.run.logger
        if isinstance(logger, NeedsPackages):
            try:
                logger.check_installed()
            except ConfigError as error:
                return Finding("logger", type(logger).__name__, str(error), fails=True)
        if not isinstance(logger, Wandb):
            return Finding("logger", type(logger).__name__)
        mode, login = logger.actual_mode, has_login()
        text = f"W&B {mode}, {'logged in' if login else 'no login'}"
        asked = logger.mode != "auto" or "WANDB_MODE" in os.environ
        fix = "" if login or (asked and mode != "online") else "Run wandb login, or logger=jsonl."
        return Finding("logger", text, fix)


def main(argv: Sequence[str]) -> int:
    """Print the findings and return 1 if a run with these settings would fail here, else 0."""
    overrides = load(argv).overrides
    with configs():
        run = make_experiment(compose(parse(overrides))).run
    process = launched()
    if process is not None and process.local_rank not in (None, 0):
        return 0  # one screen per machine
    machine = RunHere(run, count_gpus())
    findings = list(machine.findings())
    put(
        "\n".join(
            [title(machine), "", *(finding.lines for finding in findings), "", verdict(findings)]
        )
    )
    return int(any(finding.fails for finding in findings))


def title(machine: RunHere) -> str:
    run = machine.run
    devices = f" of {counted(run.gpus_per_node, 'device')}" if run.gpus_per_node > 1 else ""
    here = f", {machine.ranks} of {counted(run.ranks, 'rank')} here"
    text = f"{socket.gethostname()}: {run.network.name}, {counted(run.nodes, 'node')}{devices}"
    return textwrap.shorten(text + (here if run.network.clock == "wall" else ""), WIDTH)


def verdict(findings: Sequence[Finding]) -> str:
    fails = sum(finding.fails for finding in findings)
    warnings = sum(bool(finding.fix) and not finding.fails for finding in findings)
    first = f"{counted(fails, 'problem')} would make the run fail" if fails else "Nothing fails"
    return f"{first}; {counted(warnings, 'warning')}."


def versions() -> Finding:
    packages = {name: installed_version(name) for name in ("torch", "torchvision")}
    text = ", ".join(f"{name} {number or 'missing'}" for name, number in packages.items())
    missing = packages["torch"] is None
    summary = f"Python {platform.python_version()}, sgp-run {__version__}, {text}"
    return Finding("versions", summary, "pip install torch." if missing else "", fails=missing)


def slurm() -> Finding:
    if shutil.which("srun") is None:
        return Finding("Slurm", "not installed")
    try:
        done = subprocess.run(
            ["srun", "--version"], capture_output=True, text=True, timeout=10, check=False
        )
        answer = done.stdout.strip() if done.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        answer = ""
    if not answer:
        return Finding("Slurm", "without a cluster", "Set SLURM_CONF if there is a cluster.")
    job = os.environ.get("SLURM_JOB_ID")
    machines = counted(machines_of_job(), "machine")
    return Finding("Slurm", f"{answer}, job {job} on {machines}" if job else answer)
