"""Flags of PyTorch that runs on pretend GPUs set for their process, as they were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def flags_of_this_process() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.allow_tf32 = True
