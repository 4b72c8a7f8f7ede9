"""The code of docs/python.md runs as printed, in a fresh folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.paths import ROOT
from torch import nn

import sgp_runner as sgp

PAGE = (ROOT / "docs/python.md").read_text(encoding="utf-8")


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    x = torch.randn(4096, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    names: dict[str, Any] = {"net": nn.Linear(4, 2), "__name__": __name__}
    names |= {"x_train": x[:3072], "y_train": y[:3072], "x_valid": x[3072:], "y_valid": y[3072:]}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    accuracies = []
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec", dont_inherit=True), names)
        accuracies.append(names["result"].summary["average"])
    assert accuracies[0] > 0.95 and accuracies[2] > 0.8
    assert list(names["comparison"].table["seeds"]) == [2, 2, 2, 2]
    # The first block, three settings that are one run, the second data, three algorithms, a sweep.
    assert len(sgp.load()) == 1 + 1 + 1 + 3 + 8
