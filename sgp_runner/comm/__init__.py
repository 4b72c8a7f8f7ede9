"""How workers talk: the verbs an algorithm may use.

A message is one contiguous tensor. `send` gives the tensor away: the sender never writes to it again, and a receiver only reads it.
Between two workers messages of one tag arrive in the order in which they were sent.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Comm(Protocol):
    """The communication of one worker."""

    num_bytes_sent: int

    def send(self, dst: int, message: Tensor, tag: int = 0) -> None:
        """Give ``message`` away to ``dst``; returns at once, in simulated and in real time."""

    def recv(self, src: int, tag: int = 0) -> Awaitable[Tensor]:
        """The next message from ``src``."""

    def recv_any(self, tag: int = 0) -> Awaitable[tuple[int, Tensor]]:
        """The message that arrived first, with its sender."""

    def poll(self, src: int, tag: int = 0) -> Tensor | None:
        """The next message from ``src`` if one has arrived."""

    def all_reduce(self, tensor: Tensor) -> Awaitable[Tensor]:
        """Mean of ``tensor`` over all workers, in a tensor of one's own. Starts at the call; ``tensor`` is given away."""


def all_reduce_bytes(tensor: Tensor, size: int) -> int:
    """What each of ``size`` workers sends in a bandwidth-optimal all-reduce."""
    return round(2 * (size - 1) / size * tensor.numel() * tensor.element_size())
