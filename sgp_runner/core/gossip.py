"""One step of symmetric gossip: the average of a node's vector and those of its neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.core.worker import Worker
    from sgp_runner.topology.graphs import Topology


async def gossip(worker: Worker, topology: Topology, k: int, x: Tensor) -> Tensor:
    """``sum_j w_ij x_j``, of the neighbours j in step ``k`` and the worker itself, in a new tensor.

    All weights are equal: ``w_ij = 1 / (neighbours + 1)``.
    """
    peers = topology.at(worker.epoch).out_peers(worker.rank, worker.size, k)
    message = x / (len(peers) + 1)
    for j in peers:
        worker.comm.send(j, message)
    mean = message.clone()
    for j in peers:
        mean += await worker.comm.recv(j)
    return mean
