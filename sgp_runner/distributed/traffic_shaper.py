"""A slow link imitated on a faster network by delaying the start and the end of messages.

The model is that of the simulator (`sgp_runner.simulator.fabric`): each direction of a node's link
is a queue that drains at a fixed bit rate and accumulates no credit. A message waits for its
sender's queue, its first bit arrives ``latency_seconds`` after leaving, and then it waits for the
receiver's queue. Each rank reads only its own clock, so ranks may be on several machines: a message
is actually sent when its first bit would leave, and held back at the receiver until its last bit
would have arrived. This holds as long as the real network is faster. An all-reduce occupies both
queues of all nodes for ``2 (n - 1) / n`` times its bytes, starting when the last node has joined.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from threading import Lock

import torch
import torch.distributed as dist
from torch import Tensor

from sgp_runner.core.comm import all_reduce_bytes


class TrafficShaper:
    """The link of one node.

    bandwidth: bit/s in either direction
    now: returns the seconds on any clock
    """

    def __init__(
        self,
        bandwidth: float = math.inf,
        latency_seconds: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds_per_byte, self.latency_seconds, self.now = 8 / bandwidth, latency_seconds, now
        self.out_free = self.in_free = -math.inf  # when each direction's queue is empty
        self.lock = Lock()  # shared by the threads that send, receive and reduce

    def leave(self, num_bytes: int) -> float:
        """Return when the first bit of a message sent now leaves."""
        with self.lock:
            start = max(self.now(), self.out_free)
            self.out_free = start + num_bytes * self.seconds_per_byte
        return start

    def arrive(self, num_bytes: int, left: float) -> float:
        """Return when a message whose first bit left at time ``left`` is complete here."""
        with self.lock:
            self.in_free = (
                max(left + self.latency_seconds, self.in_free) + num_bytes * self.seconds_per_byte
            )
        return self.in_free

    def reduce(self, num_bytes: int, rounds: int) -> float:
        """Return the end time of a collective that all nodes have just joined.

        num_bytes: bytes sent by each node
        rounds: number of messages of each node
        """
        with self.lock:
            begin = max(self.now(), self.out_free, self.in_free)
            self.out_free = self.in_free = (
                begin + num_bytes * self.seconds_per_byte + rounds * self.latency_seconds
            )
        return self.out_free

    def wait_until(self, when: float) -> None:
        time.sleep(max(0.0, when - self.now()))

    def collective(
        self, num_bytes: int, rounds: int, group: dist.ProcessGroup
    ) -> torch.futures.Future[float]:
        """Return a future of the end (s) of a collective started now; arguments as in `reduce`."""
        joined = dist.all_reduce(torch.zeros(1), group=group, async_op=True).get_future()
        end: torch.futures.Future[float] = joined.then(lambda _: self.reduce(num_bytes, rounds))
        return end

    def average(self, group: dist.ProcessGroup, tensor: Tensor) -> torch.futures.Future[Tensor]:
        """Average a bucket of gradients over imitated links, as DistributedDataParallel does."""
        tensor /= group.size()
        end = self.collective(all_reduce_bytes(tensor, group.size()), 2 * (group.size() - 1), group)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        assert work is not None

        def ended(_: object) -> Tensor:
            self.wait_until(end.wait())
            return tensor

        future: torch.futures.Future[Tensor] = work.get_future().then(ended)
        return future
