"""``sgp-run check`` on machines that are imitated: what is found, its fix, and the exit code."""

from __future__ import annotations

import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sgp_runner.cli import check_machine
from sgp_runner.cli.main import main

GB = 10**9
NCCL = ("network=nccl", "nodes=4", "gpus_per_node=8", "logger=jsonl")
VERSIONS = {"driver": "570.86.15", "cuda": "12.8", "cudnn": 91002, "nccl": "2.27.3"}
NO_VERSIONS = {"driver": None, "cuda": None, "cudnn": None, "nccl": None}
OF_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_JOB_NUM_NODES")
OTHERS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "WANDB_MODE", "CXX")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A node of a cluster with eight GPUs, for tests to take something from."""
    for name in (*OF_LAUNCHERS, *OTHERS):
        monkeypatch.delenv(name, raising=False)
    set_gpus(monkeypatch, 8)
    for name, value in {
        "gpu_versions": lambda: VERSIONS,
        "interfaces": lambda: {"lo": "127.0.0.1", "eno1": "10.0.0.7"},
        "own_address": lambda: "10.0.0.7",
        "infiniband": lambda: [],
        "free_bytes": lambda: 400 * GB,
        "most_bytes": lambda: 500 * GB,
        "installed_version": {"torch": "2.13.0", "torchvision": "0.28.0"}.get,
        "has_login": lambda: True,
        "slurm": lambda: check_machine.Finding("Slurm", "slurm 22.05.8"),
    }.items():
        monkeypatch.setattr(check_machine, name, value)
    monkeypatch.setattr("socket.gethostname", lambda: "gpu7")
    monkeypatch.setattr("platform.python_version", lambda: "3.12.3")
    set_files(monkeypatch, 65_536)
    set_disks(monkeypatch, 300 * GB)
    set_programs(monkeypatch, "c++", "mpirun")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    return monkeypatch


def set_gpus(monkeypatch: pytest.MonkeyPatch, count: int, free: int = 79 * GB) -> None:
    card = SimpleNamespace(name="NVIDIA H100", total_memory=80 * GB)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: card)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (free, 80 * GB))


def set_files(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, most))


def set_disks(monkeypatch: pytest.MonkeyPatch, free: int, shared: int = 64 * GB) -> None:
    def usage(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=shared if path == check_machine.SHARED_MEMORY else free)

    monkeypatch.setattr("shutil.disk_usage", usage)
    monkeypatch.setattr(check_machine, "SHARED_MEMORY", Path("/dev"))


def set_programs(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name if name in names else None)


def check(capsys: pytest.CaptureFixture[str], *overrides: str) -> tuple[int, str]:
    """The exit code and the lines that are not ok."""
    code = main(["check", *overrides])
    out, err = capsys.readouterr()
    assert err == "" and max(map(len, out.splitlines())) <= 80
    lines = out.split("\n\n")[1].splitlines()
    bad = False
    kept = []
    for line in lines:
        bad = bad if line.startswith(" ") else not line.startswith("ok ")
        kept += [line] if bad else []
    return code, " ".join(" ".join(kept).split())


SCREEN = """\
gpu7: nccl, 4 nodes of 8 devices, 8 of 32 ranks here

ok       versions     Python 3.12.3, sgp-run 0.3.0, torch 2.13.0, torchvision
                      0.28.0
ok       GPUs         8 x NVIDIA H100, 80 GB each
ok       libraries    driver 570.86.15, CUDA 12.8, cuDNN 91002, NCCL 2.27.3
ok       network      eno1 10.0.0.7
ok       open files   at most 65,536
ok       memory       400 GB free; the run takes about 3.2 GB here
ok       /dev         64 GB free
ok       results      300 GB free; checkpoints take about 6.78 MB
ok       Slurm        slurm 22.05.8
ok       MPI          mpirun, mpi4py
ok       C++ compiler c++
ok       logger       Jsonl

Nothing fails; 0 warnings.
"""


def test_the_screen_of_a_machine_that_has_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    assert main(["check", *NCCL]) == 0
    assert capsys.readouterr().out == SCREEN


@pytest.mark.parametrize(
    ("gpus", "versions", "sentence"),
    [
        (
            0,
            NO_VERSIONS,
            "FAILS GPUs none; the run needs 8 here "
            "This PyTorch is built for CPUs: install one with CUDA (pip install torch). "
            "FAILS libraries driver none, CUDA none, cuDNN none, NCCL none "
            "Install a PyTorch with NCCL, or use network=gloo.",
        ),
        (
            0,
            {**VERSIONS, "driver": None},
            "FAILS GPUs none; the run needs 8 here This machine has no NVIDIA driver: "
            "check the machine of the run: srun --gpus-per-node=8 sgp-run check ...",
        ),
        (
            0,
            VERSIONS,
            "FAILS GPUs none; the run needs 8 here PyTorch finds no GPU although there is a "
            "driver: unset CUDA_VISIBLE_DEVICES, or install a driver for CUDA 12.8.",
        ),
        (
            4,
            VERSIONS,
            "FAILS GPUs 4 x NVIDIA H100, 80 GB each; the run needs 8 here Request more "
            "(sbatch --gpus-per-node=8), or use fewer nodes or gpus_per_node.",
        ),
    ],
)
def test_gpus_that_are_missing(
    gpus: int,
    versions: dict[str, object],
    sentence: str,
    machine: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_gpus(machine, gpus)
    machine.setattr(check_machine, "gpu_versions", lambda: versions)
    assert check(capsys, *NCCL) == (1, sentence)
    assert check(capsys, "network=gloo", "nodes=4", "logger=jsonl") == (0, "")


@pytest.mark.parametrize(("device", "code"), [("cpu", 0), ("auto", 0), ("cuda", 1), ("cuda:2", 1)])
def test_the_simulator_may_need_a_gpu(
    device: str, code: int, machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_gpus(machine, 0)
    overrides = ("network=sim", f"network.device={device}", "logger=jsonl")
    assert check(capsys, *overrides)[0] == code
    set_gpus(machine, 1)
    assert check(capsys, *overrides)[0] == (device == "cuda:2")
    set_gpus(machine, 3)
    assert check(capsys, *overrides) == (0, "")


def test_a_gpu_that_another_program_uses(
    machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_gpus(machine, 8, free=12 * GB)
    assert check(capsys, *NCCL) == (
        0,
        "warning GPUs 8 x NVIDIA H100, 80 GB each "
        "GPU 0 has only 12 GB free: nvidia-smi shows who uses it.",
    )


@pytest.mark.parametrize(
    ("variables", "address", "fix"),
    [
        ({}, "10.0.0.7", ""),
        (
            {},
            "127.0.1.1",
            "This machine's host name resolves to 127.0.1.1, where others cannot reach it: "
            "export GLOO_SOCKET_IFNAME=eno1 (SGP_INTERFACE=eno1 in Slurm).",
        ),
        ({"GLOO": "eno1", "NCCL": "eno"}, "127.0.1.1", ""),
        (
            {"GLOO": "ib0"},
            "10.0.0.7",
            "GLOO_SOCKET_IFNAME is not an interface of this machine: use eno1.",
        ),
        (
            {"NCCL": "=eno"},
            "10.0.0.7",
            "NCCL_SOCKET_IFNAME is not an interface of this machine: use eno1.",
        ),
    ],
)
def test_the_network_of_several_machines(
    variables: dict[str, str],
    address: str,
    fix: str,
    machine: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine.setattr(check_machine, "own_address", lambda: address)
    for name, value in variables.items():
        machine.setenv(f"{name}_SOCKET_IFNAME", value)
    code, bad = check(capsys, *NCCL)
    assert (code, bool(bad)) == (int(bool(fix)), bool(fix)) and bad.endswith(fix)
    assert check(capsys, "network=gloo", "nodes=4", "logger=jsonl")[0] == 0  # over loopback


def test_infiniband_needs_its_library(
    machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.setattr(check_machine, "infiniband", lambda: ["mlx5_0", "mlx5_1"])
    machine.setattr("ctypes.CDLL", missing_library)
    assert check(capsys, *NCCL) == (
        0,
        "warning InfiniBand mlx5_0, mlx5_1 NCCL falls back to TCP without libibverbs: "
        "install it (Debian: libibverbs1).",
    )
    machine.setenv("NCCL_IB_DISABLE", "1")
    assert check(capsys, *NCCL)[1].endswith("NCCL_IB_DISABLE=1 switches it off: unset it.")


def missing_library(name: str) -> None:
    raise OSError(name)


def test_limits(machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    set_files(machine, 500)
    assert check(capsys, *NCCL) == (
        0,
        "warning open files at most 500 "
        "Ranks connect to all others: raise the limit (ulimit -Hn 512).",
    )
    set_files(machine, 512)
    machine.setattr(check_machine, "free_bytes", lambda: 3 * GB)
    assert check(capsys, *NCCL) == (
        0,
        "warning memory 3 GB free; the run takes about 3.2 GB here "
        "Free some memory, or use fewer ranks per machine.",
    )
    machine.setattr(check_machine, "most_bytes", lambda: 10**6)
    code, bad = check(capsys, *NCCL)
    assert code == 1 and "nodes: resnet8, with 70,640 parameters or more," in bad


@pytest.mark.parametrize(("free", "code"), [(64_000_000, 1), (200_000_000, 0), (2 * GB, 0)])
def test_shared_memory_of_nccl(
    free: int, code: int, machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_disks(machine, 300 * GB, shared=free)
    done, bad = check(capsys, *NCCL)
    assert done == code and bad.endswith("docker run --shm-size=8g, or --ipc=host.") == (free < GB)
    assert check(capsys, "network=gloo", "logger=jsonl") == (0, "")


def test_disks(machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    set_disks(machine, 10**6)
    code, bad = check(capsys, *NCCL)
    assert code == 1 and bad.endswith("Use results= on another disk, or a smaller checkpoint.keep.")
    assert check(capsys, *NCCL, "checkpoint.every_minutes=null")[0] == 0
    set_disks(machine, 300 * GB)
    Path("file").touch()
    code, bad = check(capsys, *NCCL, "results=file/results")
    assert code == 1 and bad.endswith("file is not writable: use results=FOLDER, or chmod u+w.")


def test_programs(machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    set_programs(machine)
    fix = "FAILS C++ compiler none torch.compile needs one: install it (Debian: g++), or use "
    assert check(capsys, *NCCL) == (0, "")
    assert check(capsys, *NCCL, "network.compile=true") == (1, f"{fix}network.compile=false.")
    mpi = ("network=mpi", "nodes=4", "logger=jsonl")
    assert check(capsys, *mpi) == (1, "FAILS MPI mpi4py pip install 'sgp-runner[mpi]'.")
    machine.setattr(
        check_machine, "installed_version", {"torch": "2.13.0"}.get
    )  # the other is an extra
    assert check(capsys, "logger=jsonl") == (0, "")
    machine.setattr(check_machine, "installed_version", {"torchvision": "0.28.0"}.get)
    code, bad = check(capsys, "logger=jsonl")
    assert code == 1 and bad.endswith("torch missing, torchvision 0.28.0 pip install torch.")


def test_the_login_of_wandb(
    machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.setattr("sgp_runner.recording.loggers.wandb.has_login", lambda: True)
    assert check(capsys) == (0, "")
    for place in ("sgp_runner.recording.loggers.wandb", "sgp_runner.cli.check_machine"):
        machine.setattr(f"{place}.has_login", lambda: False)
    assert check(capsys) == (
        0,
        "warning logger W&B offline, no login Run wandb login, or logger=jsonl.",
    )
    machine.setenv("WANDB_MODE", "offline")
    assert check(capsys) == (0, "")


def test_one_rank_of_a_machine_prints(
    machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "9", "WORLD_SIZE": "32", "LOCAL_WORLD_SIZE": "8"}.items():
        machine.setenv(name, value)
    for rank, lines in (("1", 0), ("0", 1)):
        machine.setenv("LOCAL_RANK", rank)
        assert main(["check", *NCCL]) == 0
        assert capsys.readouterr().out.count("8 of 32 ranks here") == lines


def test_settings_that_cannot_work_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "nodes=0"]) == 2
    assert capsys.readouterr().err.startswith("sgp-run: nodes: ")
