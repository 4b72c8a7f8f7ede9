"""A training loop under an elastic torchrun continues on fewer ranks after one is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.paths import RANKS
from helpers.ranks.elastic_rank import HALF, STEPS, loss, started
from helpers.slurm_cluster import free_ports


@pytest.mark.slow
def test_a_loop_continues_from_all_states_on_the_ranks_that_are_left(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    torchrun = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1"),
        *("--max-restarts=3", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"),
    ]
    program = str(RANKS / "elastic_rank.py"), str(tmp_path)
    agents = [
        subprocess.Popen(
            [*torchrun, f"--rdzv-conf=is_host={host},last_call_timeout=1", *program],
            env={**os.environ, **lost},
            stderr=subprocess.PIPE,
            text=True,
        )
        for host, lost in ((True, {}), (False, {"LOST": "yes"}))
    ]
    errors = [agent.communicate()[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, -9], errors
    assert "another process has ended, and its message states the cause; continue" in errors[0]
    size, end = torch.load(tmp_path / "end.pt")
    assert size == 1
    nets = [started(), started()]
    for step in range(STEPS):
        trained = nets[: 2 if step < HALF else 1]
        for rank, net in enumerate(trained):
            net.zero_grad()
            loss(net, rank, step).backward()
            with torch.no_grad():
                for p in net.parameters():
                    assert p.grad is not None
                    p.sub_(p.grad, alpha=0.1)
        if step % 2:
            with torch.no_grad():
                for parts in zip(*(net.parameters() for net in trained), strict=True):
                    mean = torch.stack(parts).mean(0)
                    for part in parts:
                        part.copy_(mean)
    for name, value in nets[0].state_dict().items():
        assert float((value - end[name]).abs().max()) < 1e-14
