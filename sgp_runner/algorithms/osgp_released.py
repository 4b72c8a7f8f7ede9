"""OSGP in the order of operations of the released code; its 1-OSGP is ``tau = 0`` here.

A step adds late messages, sends, computes the gradient at the share that the node keeps, and makes
the local step. If messages are one step late, the value ``y`` after receipt follows
``y' = P y - d(y)``. With ``tau = 0`` (``synch_freq=0``) messages travel during one gradient; each
further step of ``tau`` allows one more gradient. ``released_2019`` also scales the local step by
the weight that the node keeps. For one peer, this halves the learning rate and the weight decay of
the network mean. The version of the code that gave the paper's tables did this.
"""

from __future__ import annotations

from sgp_runner.core.gossip import split
from sgp_runner.core.late_messages import LateMessages
from sgp_runner.core.push_sum import descend, to_model, to_numerator
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Topology


async def run_released(
    worker: Worker,
    topology: Topology,
    tau: int,
    interval: int,
    weighted: bool,
    scale_by_weight: bool,
) -> None:
    """Run OSGP in the order of the released code.

    weighted: false: the biased ablation
    scale_by_weight: whether to scale the local step by the node's own weight, as in 2019
    """
    x = worker.push_sum
    late = LateMessages(worker, x, weighted)
    for k in worker.steps():
        to_numerator(x)
        if k % interval == 0:
            peers = worker.peers(topology, k // interval)
            for j, share in split(worker, peers, x):
                worker.comm.send(j, share)
            if not weighted:
                x[-1] = 1
            late.expect(k, peers.incoming)
        to_model(x)
        d = await worker.local_step()  # at the node's share, while messages travel
        if scale_by_weight:
            worker.descend(d)
            to_numerator(x)  # x <- (z - d) w
        else:
            descend(x, d)  # x <- z w - d
        await late.fold(deadline=k - tau)
    to_numerator(x)
    await late.fold(deadline=worker.step)
