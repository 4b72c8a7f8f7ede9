"""Who can reach a real run, and that nothing which others send is run as code."""

from __future__ import annotations

import ast
import math
import operator
import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from helpers.commands import Command, run_command
from helpers.experiments import make_experiment
from helpers.paths import RANKS
from helpers.processes import wait_for_ranks, wait_until
from helpers.slurm_cluster import free_ports
from test_mpi import ENVIRONMENT, MPIRUN

import sgp_runner
from sgp_runner.assembly.real.launch import launch
from sgp_runner.distributed.gloo_transport import DTYPES, check_header
from sgp_runner.distributed.json_collectives import check_lengths, pack, unpack
from sgp_runner.distributed.torch_world import TorchWorld
from sgp_runner.utils.errors import RankFailed
from sgp_runner.utils.launchers import loopback_interface

ROGUE = str(RANKS / "rogue_rank.py")
WORDS = ["nodes=2", "model=mlp", "epochs=1", "logger=jsonl"]
NOT_JSON = (
    r"sgp-run: rank 1 sent something that is not JSON \(UnicodeDecodeError\): is it a rank of "
    r"this run\?\n"
)
LOOPBACK = {
    "0100007F",
    "00000000000000000000000001000000",
    "0000000000000000FFFF00000100007F",
}  # as the kernel writes addresses


def listens_on(pid: int) -> set[str]:
    """Addresses on which a process accepts connections."""
    return {address.partition(":")[0] for address in listening(pid)}


def listening(pid: int) -> set[str]:
    """``ADDRESS:PORT`` of each socket on which a process accepts connections, as in /proc/net."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        if match := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry)):
            inodes.add(match[1])
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {line[1] for line in lines if line[3] == "0A" and line[9] in inodes}


def shared_files(pid: int) -> set[str]:
    """The files in memory that a process maps, by name."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return set(re.findall(r"/memfd:sgp-run-[0-9a-f]{32} \(deleted\)", maps))


def test_ranks_that_are_started_here_are_out_of_reach_for_others(tmp_path: Path) -> None:
    """They listen on the loopback interface alone, and who may not read a private folder does not
    find them.
    """
    overrides = ("network=gloo", "nodes=2", "model=mlp", "epochs=100000", "logger=jsonl")
    with Command(*overrides, f"results={tmp_path}") as launcher:
        try:
            ranks = wait_for_ranks(tmp_path, 2)
            assert listens_on(launcher.pid) == set()
            for rank in ranks:
                assert listens_on(rank) and listens_on(rank) <= LOOPBACK
            for rank in ranks:  # both map the file of either, which another user cannot open
                found = shared_files(rank)
                assert len(found) == 2 and found == shared_files(ranks[0])
            opened = [Path(file).resolve() for file in Path(f"/proc/{ranks[0]}/fd").iterdir()]
            store = next(path for path in opened if path.name == "store")
            assert stat.S_IMODE(store.parent.stat().st_mode) == 0o700 and store.stat().st_size > 0
            if os.getuid() == 0:
                done = subprocess.run(
                    ["cat", str(store)], user=65534, check=False, capture_output=True, text=True
                )
                assert (done.returncode, done.stdout) == (
                    1,
                    "",
                ) and "Permission denied" in done.stderr
        finally:
            launcher.send_signal(signal.SIGTERM)
    assert not store.parent.exists()


def test_ranks_that_are_started_here_use_no_interface_of_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, seen = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), list[str]()

    def start(program: object, arguments: object, environment: dict[str, str], fork: bool) -> None:
        seen.extend(environment[name] for name in names)
        raise InterruptedError

    for name in names:
        monkeypatch.setenv(name, "eno1")
    monkeypatch.setattr("sgp_runner.assembly.real.launch.start", start)
    with pytest.raises(InterruptedError):
        launch(make_experiment(tmp_path, "network=gloo", "model=mlp", "nodes=2"))
    assert seen == [loopback_interface()] * 2


def num_bytes_recorded(folder: Path) -> list[int]:
    """The lengths of the records of all ranks."""
    return [path.stat().st_size for path in sorted(folder.glob("runs/*/metrics*.jsonl"))]


def test_connections_of_a_stranger_do_not_use_up_the_descriptors_of_a_rank(tmp_path: Path) -> None:
    """A shell gives 1,024 as a rule; a rank raises its limit as far as it may."""

    def lower_the_limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 4096))

    overrides = ["network=gloo", "nodes=2", "model=mlp", "epochs=100000", "logger=jsonl"]
    command = [sys.executable, "-m", "sgp_runner", *overrides, f"results={tmp_path}"]
    with ExitStack() as stack:
        launcher = stack.enter_context(
            subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                preexec_fn=lower_the_limit,
            )
        )
        stack.callback(launcher.kill)
        for rank in wait_for_ranks(tmp_path, 2):
            ports = sorted(int(address.rpartition(":")[2], 16) for address in listening(rank))
            for i in range(300):
                stack.enter_context(socket.create_connection(("127.0.0.1", ports[i % len(ports)])))
            wait_until(lambda rank=rank: len([*Path(f"/proc/{rank}/fd").iterdir()]) > 300, "them")
        before = num_bytes_recorded(tmp_path)
        wait_until(
            lambda: all(map(operator.gt, num_bytes_recorded(tmp_path), before)),
            "more steps of both ranks",
        )
        launcher.send_signal(signal.SIGTERM)
        _, error = launcher.communicate(timeout=600)
        assert launcher.returncode == 75 and "saved in" in error, error


def test_a_rank_that_answers_with_a_pickle_does_not_run_code_here(tmp_path: Path) -> None:
    """Under a launcher, a stranger who reaches the store may be faster than the real rank 1."""
    (port,) = free_ports(1)
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    harm = tmp_path / "harm"
    with subprocess.Popen(
        [sys.executable, ROGUE, "gloo", str(harm)],
        env={**os.environ, **where, "RANK": "1"},
        stderr=subprocess.DEVNULL,
    ) as rogue:
        variables = {**where, "RANK": "0"}
        done = run_command("network=gloo", *WORDS, folder=tmp_path, variables=variables)
        rogue.kill()
    assert not harm.exists()
    assert done.returncode == 1 and re.search(NOT_JSON, done.stderr), done.stderr


def test_a_rank_that_answers_with_a_pickle_over_mpi_does_not_run_code_here(tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    command = [*MPIRUN, "-n", "1", sys.executable, "-m", "sgp_runner", "network=mpi", *WORDS]
    command += [":", "-n", "1", sys.executable, ROGUE, "mpi", str(harm)]
    done = subprocess.run(
        command,
        check=False,
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=1000,
    )
    assert not harm.exists()
    assert done.returncode == 1 and re.search(NOT_JSON, done.stderr), done.stderr


def test_values_come_back_as_they_were_and_others_are_refused() -> None:
    value = {"a": [1, 2.5, None, True], "b": {"c": "\u00fc"}, "d": float("inf")}
    assert unpack(pack(value), 1) == value
    assert math.isnan(unpack(pack(float("nan")), 1))
    for bad in (b"\x80\x04.", b"{", b"[" * 100_000):
        with pytest.raises(
            RankFailed,
            match=r"^rank 3 sent something that is not JSON \(\w+\): is it a rank of this run\?$",
        ):
            unpack(torch.frombuffer(bytearray(bad), dtype=torch.uint8), 3)
    check_lengths([1, 2**24], [0, 1])
    for length in (-1, 0, 2**24 + 1, 2**62):
        with pytest.raises(
            RankFailed,
            match=(
                f"^rank 5 announced a value of {length} bytes, more than 16777216 or none: is it"
            ),
        ):
            check_lengths([1, length], [2, 5])


def test_messages_that_no_rank_announces_are_refused() -> None:
    check_header(1, 0, 0)
    check_header(1, 2**40, len(DTYPES) - 1)
    for length, dtype in ((-1, 0), (2**40 + 1, 0), (2**62, 0), (5, len(DTYPES)), (5, -2)):
        with pytest.raises(
            RankFailed,
            match=(
                f"^process 1 announced a message of {length} numbers of type {dtype}: is it a "
                "rank of this run"
            ),
        ):
            check_header(1, length, dtype)


def test_a_port_that_is_taken_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name, value in {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
        with pytest.raises(
            RankFailed,
            match=(
                rf"^port {port} of 127\.0\.0\.1 is not free \(Address already in use\): set "
                r"another MASTER_PORT\.$"
            ),
        ):
            TorchWorld()


def test_nothing_in_the_package_can_unpickle_what_comes_over_a_network() -> None:
    """Object collectives of PyTorch and the lower-case methods of mpi4py do."""
    objects = {
        "all_gather_object",
        "broadcast_object_list",
        "gather_object",
        "scatter_object_list",
        "send_object_list",
        "recv_object_list",
    }
    found = []
    for path in Path(sgp_runner.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            forbidden = (
                objects | {"allgather", "bcast", "recv", "sendrecv"}
                if path.name == "mpi_world.py"
                else objects
            )
            if (
                isinstance(node, ast.Attribute)
                and node.attr in forbidden
                and ast.unparse(node) != "self.mailbox.recv"
            ):
                found.append(f"{path.name}: {node.attr}")
            trusted = path.name == "program_objects.py"  # reads what its own program has written
            if (
                not trusted
                and isinstance(node, ast.Import)
                and any(
                    name.name in ("pickle", "dill", "cloudpickle", "shelve") for name in node.names
                )
            ):
                found.append(f"{path.name}: {node.names[0].name}")
    assert found == []
