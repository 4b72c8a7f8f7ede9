"""Execution of the NCCL calls that the ranks of a run have made, by NCCL's rules.

A GPU runs the calls of one communicator in the order of their launch. A collective ends when all
members of its communicator are at it. A batch ends when each of its sends and receives has met its
counterpart in the batch that its peer runs. On *one queue* (``CUDA_DEVICE_MAX_CONNECTIONS=1``, or a
GPU without room for two calls) a GPU runs all its calls in the order of their launch, whatever
communicators they belong to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

PREPOSITION = {"send": "to", "recv": "from"}
COUNTERPART = {"send": "recv", "recv": "send"}
ALIGNMENT = 16  # bytes


class Tensor(NamedTuple):
    """A tensor of a call, as far as NCCL sees it.

    peer: process that it goes to or comes from; None in a collective
    """

    verb: str
    num_bytes: int
    peer: int | None = None
    contiguous: bool = True
    aligned: bool = True

    def __str__(self) -> str:
        whom = "" if self.peer is None else f" {PREPOSITION[self.verb]} {self.peer}"
        return f"{self.verb} of {self.num_bytes} bytes{whom}"


class Call(NamedTuple):
    """A collective, or a batch of sends and receives.

    members: processes of the communicator
    """

    communicator: str
    members: Sequence[int]
    tensors: Sequence[Tensor]

    @property
    def is_batch(self) -> bool:
        return self.tensors[0].peer is not None

    def __str__(self) -> str:
        texts = " + ".join(map(str, self.tensors))
        return f"{texts} on {self.communicator} {[*self.members]}"


Logs = Mapping[int, Sequence[Call]]  # calls by process, in the order of their launch


class WouldFail(AssertionError):
    """NCCL would wait for ever, or move garbage."""


def check(logs: Logs) -> None:
    """Raise WouldFail unless all calls end, whether or not GPUs run calls at the same time."""
    for one_queue in (False, True):
        Execution(logs, one_queue).run()


def unsuitable(logs: Logs) -> list[str]:
    """Return the calls with a tensor that is not contiguous, or not aligned to 16 bytes."""
    return [
        f"process {process}: {call}"
        for process, calls in logs.items()
        for call in calls
        if not all(tensor.contiguous and tensor.aligned for tensor in call.tensors)
    ]


def unstarted(logs: Logs) -> list[str]:
    """Return the first calls of communicators that are no calls of all members.

    NCCL connects the members in the first call; they would wait for those that do not make it.
    """
    first: dict[tuple[int, str], Call] = {}
    for process, calls in logs.items():
        for call in calls:
            first.setdefault((process, call.communicator), call)
    return [f"process {process}: {call}" for (process, _), call in first.items() if call.is_batch]


class Execution:
    """The calls that are left, in the queues of the GPUs."""

    def __init__(self, logs: Logs, one_queue: bool) -> None:
        self.one_queue = one_queue
        self.queues: dict[tuple[int, str], deque[Call]] = {}
        for process, calls in logs.items():
            for call in calls:
                self.queues.setdefault(self.key(process, call.communicator), deque()).append(call)
        # Tensors of the present batches that have met their counterparts, by queue.
        self.met: dict[tuple[int, str], set[int]] = {key: set() for key in self.queues}

    def key(self, process: int, communicator: str) -> tuple[int, str]:
        return process, "" if self.one_queue else communicator

    def running(self, process: int, communicator: str) -> Call | None:
        """Return the call of ``communicator`` that the GPU of ``process`` runs, if any."""
        queue = self.queues.get(self.key(process, communicator))
        return queue[0] if queue and queue[0].communicator == communicator else None

    def run(self) -> None:
        """Raise WouldFail unless all calls end."""
        while any(self.queues.values()):
            moved = [self.step(key[0], queue[0]) for key, queue in self.queues.items() if queue]
            if not any(moved):
                raise WouldFail(self.report())

    def step(self, process: int, call: Call) -> bool:
        """Return whether the call of ``process`` came further."""
        return (self.exchange if call.is_batch else self.join)(process, call)

    def join(self, process: int, call: Call) -> bool:
        """End a collective that all members are at."""
        others = {member: self.running(member, call.communicator) for member in call.members}
        present = {member: other for member, other in others.items() if other is not None}
        for member, other in present.items():
            if not other.is_batch and sizes(other) != sizes(call):
                raise WouldFail(f"process {process}: {call}; process {member}: {other}")
        if len(present) < len(others) or any(other.is_batch for other in present.values()):
            return False
        for member in call.members:
            self.queues[self.key(member, call.communicator)].popleft()
        return True

    def exchange(self, process: int, call: Call) -> bool:
        """Let the tensors of a batch meet their counterparts; end it when all have."""
        key, came_further = self.key(process, call.communicator), False
        for index, tensor in self.unmet(key, call):
            assert tensor.peer is not None
            other = self.running(tensor.peer, call.communicator)
            if other is None or not other.is_batch:
                continue
            peer_key = self.key(tensor.peer, call.communicator)
            for number, counterpart in self.unmet(peer_key, other):
                if counterpart.peer != process or counterpart.verb != COUNTERPART[tensor.verb]:
                    continue
                if counterpart.num_bytes != tensor.num_bytes:
                    raise WouldFail(f"process {process}: {call}; process {tensor.peer}: {other}")
                self.met[key].add(index)
                self.met[peer_key].add(number)
                came_further = True
                break
        if len(self.met[key]) == len(call.tensors):
            self.queues[key].popleft()
            self.met[key] = set()
            return True
        return came_further

    def unmet(self, key: tuple[int, str], call: Call) -> Iterator[tuple[int, Tensor]]:
        return (
            (index, tensor)
            for index, tensor in enumerate(call.tensors)
            if index not in self.met[key]
        )

    def report(self) -> str:
        how = "on one queue per GPU" if self.one_queue else "on one queue per communicator"
        return f"stuck {how}: " + "; ".join(
            f"process {process} waits in {queue[0]}, with {len(queue) - 1} calls behind it"
            for (process, _), queue in self.queues.items()
            if queue
        )


def sizes(call: Call) -> list[tuple[str, int]]:
    return [(tensor.verb, tensor.num_bytes) for tensor in call.tensors]
