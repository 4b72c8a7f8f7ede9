"""Parts of ``scripts/gpu_check.sh`` on the pretend GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_rig.pretend_check import NUMBERS, TINY, one_pretend_gpu, parts

import gpu_check
from gpu_parts import for_training
from sgp_runner.core import prefetch
from sgp_runner.core.worker import Worker


def seen_by(name: str, out: Path) -> dict[str, Any]:
    with one_pretend_gpu():
        line = gpu_check.answer(parts()[name], 1, out, 600)
    assert "error" not in line
    seen: Any = line["seen"]
    return {**seen, "answer": line["answer"]}


def test_the_machine_starts(tmp_path: Path) -> None:
    seen = seen_by("machine", tmp_path)
    assert (seen["answer"], seen["exchange"]) == ("yes", [3, 3])
    assert [device["name"] for device in seen["gpus"]] == ["Pretend H200"]
    assert 0 < seen["accuracy"] < 1


def test_codecs_have_messages_of_their_length(tmp_path: Path) -> None:
    seen = seen_by("codecs", tmp_path)  # 4,096 numbers, in four matrices of 16 x 64
    lengths = {
        name: by_size["4096"]["bytes_of_message"]
        for name, by_size in seen.items()
        if name != "answer"
    }
    assert lengths == {
        "int8": 4096 + 4 * 4,
        "fp4": 2048 + 4 * 4,
        "two_bit": 1024 + 4 * 5 * 4,
        "sign": 512 + 4 * 4,
        "top_k": 4 * (64 * 4 + 64 * 12 // 8),
        "low_rank": 4 * 2 * (16 + 64) * 4,
    }
    assert all(seen[name]["4096"]["decode"]["ms"] > 0 for name in lengths)


@pytest.mark.parametrize("waits", [False, True])
def test_a_wait_in_each_step_is_named(
    waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {name: for_training.ALGORITHMS[name] for name in ("sgp", "demo")}
    monkeypatch.setattr(for_training, "ALGORITHMS", some)
    if waits:
        step = Worker.local_step

        def waiting(self: Worker) -> Any:
            float(self.params[0])
            return step(self)

        monkeypatch.setattr(Worker, "local_step", waiting)
    seen = seen_by("syncs", tmp_path)
    assert (seen["answer"], bool(seen["sgp"]["in_steps"])) == ("no" if waits else "yes", waits)
    assert seen["sgp"]["all"]  # of records and of the end


def test_steps_of_both_read_the_same_batches_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No batch comes from the host while a step is timed."""
    used: list[object] = []
    monkeypatch.setattr(prefetch.Prefetcher, "batch", lambda *arguments: used.append(arguments))
    seen = seen_by("gpt", tmp_path)["gpt"]
    assert used == []
    assert {*seen["samples_per_s"]} == {"AR-SGD", "SGP", "plain PyTorch"}
    assert [len(table["results"]) for table in seen["tables"]] == [3, 2]
    assert all(result["goal"] == 1.02 for result in seen["tables"][1]["results"])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*NUMBERS} - {"machine", "codecs", "syncs", "gpt"}))
def test_every_other_part_ends(name: str, tmp_path: Path) -> None:
    seen = seen_by(name, tmp_path)
    if name == "speed":
        assert {*seen} == {"channels last", "NCHW", "answer"}
    if name == "profile":
        assert seen["images"]["plain"]["operators"] > 500 < seen["gpt"]["ours"]["operators"]
    if name == "workers":
        assert {*seen["mlp"]["2"]} == {"vmap", "loop"}


def test_a_run_is_saved_and_resumed_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 7)
    settings = ("model=gpt", "model.width=16", "model.heads=2", "data.block=8", "data.valid_size=1")
    sizes = replace(TINY, state=(*settings, "network=gloo"))
    seen: dict[str, Any] = {}
    assert for_training.snapshot(seen, tmp_path, sizes) == "yes"
    assert {record["step"] for record in seen["train"]} == {*range(8)}
    assert seen["checkpoint_bytes"] > 3 * 4 * 16 * 256  # parameters and two moments
    assert seen["resumed_peak_bytes"] == 7
