"""Mixing: a node keeps one share of its vector, sends the rest, and adds the received shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sgp_runner.core.flat import divide_by, pieces
from sgp_runner.core.optim import LocalStep
from sgp_runner.core.push_sum import descending
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Exchange, Topology
from sgp_runner.utils.sums import sum_in_order

if TYPE_CHECKING:
    from torch import Tensor


def split(
    worker: Worker, peers: Exchange, x: Tensor, minus: LocalStep | None = None
) -> list[tuple[int, Tensor]]:
    """Replace ``x`` [n] by the node's own share; return (peer, share) for each peer.

    Without weights, all shares are one tensor, which must not be written to.

    minus: a local step ``d`` to subtract in the same pass over memory: ``x`` [D + 1] is a model
        with its push-sum weight, and ``z w - d`` is split
    """
    empty_like, outgoing, weights = worker.comm.empty_like, peers.outgoing, peers.weights
    if weights is None:
        shares = [empty_like(x, outgoing)] * len(outgoing)
    else:
        shares = [empty_like(x, [j]) for j in outgoing]
    parts = len(outgoing) + 1 if weights is None else 1
    for where in pieces(x) if minus is None else descending(x, minus, parts):
        chunk = x[where]
        if weights is not None:
            divide_by_weights(chunk, weights, [share[where] for share in shares])
            continue
        if minus is None:
            divide_by(chunk, parts)
        if shares:
            shares[0][where].copy_(chunk)
    return list(zip(outgoing, shares, strict=True))


def shares(worker: Worker, peers: Exchange, x: Tensor) -> tuple[Tensor, list[tuple[int, Tensor]]]:
    """Return the node's own share of ``x`` [n] and the outgoing shares; leave ``x`` unchanged.

    Without weights, the node's own share is the tensor that is sent.
    """
    share = x.clone()
    outgoing = split(worker, peers, share)
    return outgoing[0][1] if outgoing and peers.weights is None else share, outgoing


def divide_by_weights(x: Tensor, weights: Sequence[float], shares: Sequence[Tensor]) -> None:
    """``share <- weight x`` for each of ``shares``; leave the remainder in ``x``."""
    import torch

    for weight, share in zip(weights, shares, strict=True):
        torch.mul(x, weight, out=share)
    x *= 1 - sum_in_order(weights)


async def gossip(worker: Worker, topology: Topology, k: int, x: Tensor) -> None:
    """``x_i <- sum_j w_ij x_j`` over the neighbours of step ``k`` and the node itself, in place."""
    peers = worker.peers(topology, k)
    for j, share in split(worker, peers, x):
        worker.comm.send(j, share)
    for j in peers.incoming:
        x += await worker.comm.recv(j)
