"""Ranks that look for each other: who waits for whom, where and why, and for how long."""

from __future__ import annotations

import os
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import Command
from helpers.slurm_cluster import free_ports

from sgp_runner.distributed import rendezvous
from sgp_runner.utils.errors import RankFailed

COMMAND = (sys.executable, "-m", "sgp_runner")
RUN = ("network=gloo", "nodes=2", "model=mlp", "epochs=1", "logger=jsonl", "name=run")


def set_variables(monkeypatch: pytest.MonkeyPatch, rank: int, host: str, port: int) -> None:
    where = {"RANK": rank, "WORLD_SIZE": 3, "MASTER_ADDR": host, "MASTER_PORT": port}
    for name, value in where.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.mark.parametrize(
    ("rank", "host", "waits", "fix"),
    [
        (
            0,
            "127.0.0.1",
            "rank 0 waits at 127.0.0.1:{port}: ranks 1, 2 of 3 did not come",
            "start all 3 with the same MASTER_ADDR and MASTER_PORT.",
        ),
        (
            1,
            "127.0.0.1",
            "rank 1 waits for rank 0 at 127.0.0.1:{port}: connection refused",
            "start rank 0, or set MASTER_ADDR and MASTER_PORT to its address.",
        ),
        (
            1,
            "head.invalid",
            "rank 1 waits for rank 0 at head.invalid:{port}: the name head.invalid is unknown on "
            "this machine",
            "start rank 0, or set MASTER_ADDR and MASTER_PORT to its address.",
        ),
    ],
)
def test_a_rank_says_what_it_waits_for_and_gives_up(
    rank: int,
    host: str,
    waits: str,
    fix: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (port,) = free_ports(1)
    set_variables(monkeypatch, rank, host, port)
    monkeypatch.setattr(rendezvous, "FIRST_SECONDS", 0.0)
    with pytest.raises(RankFailed) as refused:
        rendezvous.meet(1)
    waits = waits.format(port=port)
    pattern = rf"{re.escape(waits)}, for \d+ s \(network.start_timeout_seconds\): {re.escape(fix)}"
    assert re.fullmatch(pattern, str(refused.value))
    assert capsys.readouterr().err == f"warning: {waits}\n"


def test_rank_0_refuses_an_address_that_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    set_variables(monkeypatch, 0, "head.invalid", port)
    with pytest.raises(RankFailed, match=rf"^rank 0 cannot reach itself at head.invalid:{port} "):
        rendezvous.meet(1)


def start(rank: int, host: str, port: int, folder: Path, *overrides: str) -> Command:
    where = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": host, "MASTER_PORT": port}
    variables = {name: str(value) for name, value in where.items()}
    return Command(*RUN, *overrides, folder=folder, variables=variables)


def test_a_rank_alone_ends_with_one_sentence(tmp_path: Path) -> None:
    """Nothing of PyTorch's own is printed."""
    (port,) = free_ports(1)
    process = start(1, "127.0.0.1", port, tmp_path, "network.start_timeout_seconds=1")
    out, error = process.communicate()
    said = (
        f"sgp-run: rank 1 waits for rank 0 at 127.0.0.1:{port}: connection refused, for 1 s "
        "(network.start_timeout_seconds): start rank 0, or set MASTER_ADDR and MASTER_PORT to its "
        "address.\n"
    )
    assert (process.returncode, out, error) == (1, "", said)


def test_ranks_meet_at_the_name_of_their_machine(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    ranks = [start(rank, socket.gethostname(), port, tmp_path) for rank in (1, 0)]
    ended = [(rank.communicate(), rank.returncode) for rank in ranks]
    assert [(error, code) for (_, error), code in ended] == [("", 0), ("", 0)]
    assert "accuracy of the averaged model" in ended[1][0][0]


@pytest.mark.parametrize(
    ("limit", "variable", "sentence"),
    [
        ((resource.RLIMIT_NOFILE, 40), "lo", "may open 40 files, too few for its connections: "),
        ((resource.RLIMIT_CORE, 0), "ib7,lo", ": GLOO_SOCKET_IFNAME=ib7,lo names no interface of "),
    ],
)
def test_a_rank_that_cannot_connect_explains_the_cause_on_its_machine(
    limit: tuple[int, int], variable: str, sentence: str, tmp_path: Path
) -> None:
    (port,) = free_ports(1)

    def lower_the_limit() -> None:
        resource.setrlimit(limit[0], (limit[1], limit[1]))

    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    where |= {"GLOO_SOCKET_IFNAME": variable}
    ranks = [
        subprocess.Popen(
            [*COMMAND, *RUN, f"results={tmp_path}"],
            env={**os.environ, **where, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lower_the_limit,
        )
        for rank in range(2)
    ]
    silent, reason = sorted(rank.communicate(timeout=300)[1] for rank in ranks)
    assert [rank.returncode for rank in ranks] == [1, 1]
    assert re.match(f"sgp-run: rank [01] ?{re.escape(sentence)}", reason) and silent == ""
