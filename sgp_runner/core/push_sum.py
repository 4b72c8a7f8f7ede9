"""Push-sum in one vector: ``[D + 1]`` holds ``D`` parameters and, last, the push-sum weight ``w``.

At rest the first ``D`` entries are the de-biased model ``z = x / w``, which gradients and
evaluation use; while an algorithm mixes they are the numerator ``x``. Keeping one vector instead of
two halves the memory of a simulated worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sgp_runner.core.flat import PIECE, in_pieces

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.core.worker import Worker
    from sgp_runner.topology.graphs import Topology

TOLERANCE = 1e-4  # deviation of the mean weight, which is 1 up to rounding


def to_numerator(x: Tensor) -> None:
    """``z -> x = z w``, in place. On a CPU a weight of exactly one costs nothing."""
    if x.is_cuda or x[-1].item() != 1:
        x[:-1] *= x[-1]


def descend(x: Tensor, d: Tensor) -> None:
    """``z -> x = z w - d``, in place.

    Release ``d`` [D] afterwards, so that a waiting worker does not hold it.
    """
    to_numerator(x)
    x[:-1].sub_(d)


def to_model(x: Tensor) -> None:
    """``x -> z = x / w``, in place."""
    if x.is_cuda or x[-1].item() != 1:
        x[:-1] /= x[-1]


async def average(worker: Worker) -> None:
    """Replace every model by the mean ``sum_i x_i / sum_i w_i``, with weight 1.

    Nothing may be in flight.
    """
    x = worker.push_sum
    to_numerator(x)
    x.copy_(await worker.comm.all_reduce(x.clone()))
    check_mass(float(x[-1]))
    to_model(x)
    x[-1] = 1


def check_mass(mean_weight: float) -> None:
    """Raise RuntimeError unless the push-sum weights add up to the number of workers.

    They do when nothing is in flight.
    """
    if not abs(mean_weight - 1) <= TOLERANCE:
        raise RuntimeError(
            f"push-sum mass was lost: the mean weight of the workers is {mean_weight:.6g}, not 1"
        )


def split(x: Tensor, parts: int) -> Tensor:
    """``x <- x / parts``, in place; return a copy of it, to be given away.

    Multiplying by an exact fraction gives the same bits as dividing and costs a third.
    """
    if x.numel() <= PIECE:
        return divided(x, parts).clone()
    message = x.new_empty(x.shape)
    for kept, copy in in_pieces(x, message):
        copy.copy_(divided(kept, parts))
    return message


def divided(x: Tensor, parts: int) -> Tensor:
    return x.mul_(1 / parts) if parts.bit_count() == 1 else x.div_(parts)


def push(worker: Worker, graph: Topology, step: int, x: Tensor) -> None:
    """Send the shares of the worker's peers in ``step``; keep its own in ``x``."""
    peers = graph.out_peers(worker.rank, worker.size, step)
    weights = graph.weights(worker.rank, worker.size, step)
    if weights is None:
        message = split(x, len(peers) + 1)
        for j in peers:
            worker.comm.send(j, message)
        return
    for j, weight in zip(peers, weights, strict=True):
        worker.comm.send(j, x * weight)
    x *= 1 - sum(weights)
