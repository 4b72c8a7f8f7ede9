"""Seeds and generators."""

from __future__ import annotations

import torch

from sgp_runner.utils.seeding import generator, seed_of


def test_seed_is_the_same_on_every_machine() -> None:
    assert (seed_of(), seed_of(1, 23)) == (6510301506637419378, 2409335327811177931)
    assert seed_of(12, 3) != seed_of(1, 23)
    assert all(0 <= seed_of(i, -i) < 2**63 for i in range(100))


def test_generator_repeats() -> None:
    assert torch.equal(
        torch.rand(4, generator=generator(3, 4)), torch.rand(4, generator=generator(3, 4))
    )
