"""Ends of asynchronous gossip: messages that end it, and the order of arrival they depend on."""

from __future__ import annotations

import pytest
import torch
from helpers.tiny import run

from sgp_runner.algorithms.a2cid2 import A2CiD2
from sgp_runner.algorithms.ad_psgd import ADPSGD
from sgp_runner.algorithms.swarm_sgd import SwarmSGD
from sgp_runner.core.mailbox import Mailbox
from sgp_runner.core.scheduler import Scheduler, VirtualClock
from sgp_runner.topology.graphs import BipartiteExponential, Ring


@pytest.mark.parametrize("nodes", [2, 7, 16])
@pytest.mark.parametrize("algo", [ADPSGD, A2CiD2])
def test_as_many_goodbyes_as_workers(algo: type[ADPSGD] | type[A2CiD2], nodes: int) -> None:
    result = run(algo(BipartiteExponential()), nodes, 3)  # type: ignore[arg-type]
    averages = sum(worker.counter("averages") for worker in result.workers)
    sent = sum(worker.comm.num_sent for worker in result.workers)
    passive = nodes - nodes // 2
    assert sent - 2 * averages == nodes // 2 + passive - 1


@pytest.mark.parametrize("nodes", [2, 7, 16])
def test_goodbyes_of_swarm_sgd_pass_through_rank_0(nodes: int) -> None:
    result = run(SwarmSGD(Ring(), period=10**6), nodes, 3)
    goodbyes = [worker.counter("goodbyes") for worker in result.workers]
    assert goodbyes == [nodes - 1] + [1] * (nodes - 1)


def test_messages_of_a_tag_are_polled_in_the_order_of_arrival() -> None:
    mailbox = Mailbox(Scheduler(VirtualClock()))
    for number, (src, tag) in enumerate([(2, 0), (2, 0), (1, 0), (0, 5), (2, 0), (1, 0)]):
        mailbox.deliver(src, tag, torch.tensor(number))
    assert int(mailbox.poll(1, 0)) == 2  # type: ignore[arg-type]
    polled = [(src, int(message)) for src, message in iter(lambda: mailbox.poll_any(0), None)]
    assert polled == [(2, 0), (2, 1), (2, 4), (1, 5)]
    assert mailbox.unread() == [(0, 5, 1)]
