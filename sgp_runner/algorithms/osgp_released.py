"""The order of operations in the released code of OSGP, of which 1-OSGP is ``tau = 0``.

Fold in, send, gradient at the kept share, local step. With ``y`` the value after receipt and
messages one step late, ``y' = P y - d(y)``. Messages of ``tau = 0`` (``synch_freq=0``) travel
during one gradient, and each further step of ``tau`` allows one more. In ``released_2019`` the
local step is scaled by the kept weight as well, which for one peer halves learning rate and weight
decay on the network mean; the version behind the paper's tables did this.
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

    weighted: false is the biased ablation
    scale_by_weight: whether the local step is scaled by the kept weight, as in 2019
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
        d = await worker.local_step()  # at the kept share; messages travel meanwhile
        if scale_by_weight:
            worker.descend(d)
            to_numerator(x)  # x <- (z - d) w
        else:
            descend(x, d)  # x <- z w - d
        await late.fold(deadline=k - tau)
    to_numerator(x)
    await late.fold(deadline=worker.step)
