"""One step of symmetric gossip: the average of a node's vector and those of its neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.core.worker import Worker
    from sgp_runner.topology.graphs import Topology


def shares(
    worker: Worker, topology: Topology, k: int, x: Tensor
) -> tuple[Tensor, dict[int, Tensor]]:
    """The share of ``x`` that a node keeps in step ``k``, and those that it sends, by peer.

    Those with equal weights are one tensor, which must not be written to.
    """
    import torch

    empty_like = worker.comm.empty_like
    graph = topology.at(worker.epoch)
    peers = graph.out_peers(worker.rank, worker.size, k)
    weights = graph.weights(worker.rank, worker.size, k)
    if weights is None:
        equal = torch.div(x, len(peers) + 1, out=empty_like(x, peers))
        return equal, dict.fromkeys(peers, equal)
    sent = {
        j: torch.mul(x, weight, out=empty_like(x, [j]))
        for j, weight in zip(peers, weights, strict=True)
    }
    return x * (1 - sum(weights)), sent


async def gossip(worker: Worker, topology: Topology, k: int, x: Tensor) -> Tensor:
    """``sum_j w_ij x_j``, of the neighbours j in step ``k`` and the worker itself, in a new tensor.

    The graph is symmetric, and so are its weights.
    """
    kept, sent = shares(worker, topology, k, x)
    for j, share in sent.items():
        worker.comm.send(j, share)
    mean = kept.clone()
    for j in sent:
        mean += await worker.comm.recv(j)
    return mean
