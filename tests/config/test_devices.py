"""Devices of a run: what `auto` stands for, their names, and what a machine without one says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sgp_runner.assembly.build import build_problem
from sgp_runner.cli.main import main
from sgp_runner.config.experiment import Experiment, from_stored, stored
from sgp_runner.config.overrides import experiment_of
from sgp_runner.console.estimate import bfloat16_hint, bytes_of_vectors, gpu_memory
from sgp_runner.core.problem import Compute
from sgp_runner.simulator import engines
from sgp_runner.utils import devices
from sgp_runner.utils.errors import ConfigError

TINY = ("model=mlp", "nodes=2", "logger=jsonl")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "count_gpus", lambda: 2)


def network(*overrides: str) -> dict[str, Any]:
    return experiment_of([*TINY, *overrides]).config["network"]  # type: ignore[return-value]


def named(*overrides: str) -> Experiment:
    return experiment_of([*TINY, *overrides])


def test_auto_is_a_gpu_where_there_is_one_and_stored_as_what_it_is(two_gpus: None) -> None:
    assert network("network.device=auto")["device"] == "cuda"
    casts = {
        "network.device=auto": "bf16",
        "network.device=auto dtype=float64": "none",
        "network.device=cuda:1 network.autocast=none": "none",
        "network=nccl": "bf16",
    }
    assert {words: network(*words.split())["autocast"] for words in casts} == casts
    assert network() == network("network.device=cpu", "network.autocast=none")


def test_auto_is_the_cpu_elsewhere() -> None:
    tree = network("network.device=auto", "network.autocast=auto", "network.channels_last=auto")
    assert (tree["device"], tree["autocast"], tree["channels_last"]) == ("cpu", "none", False)


LAYOUTS = {
    "network=sim": False,
    "network=gloo": False,
    "network=sim network.device=cuda": True,
    "network=gloo network.device=cuda": True,
    "network=nccl": True,
    "network=nccl network.autocast=fp16": True,
    "network=nccl network.autocast=none": False,
    "network=nccl dtype=float64": False,
    "network=nccl network.channels_last=false": False,
    "network=gloo network.channels_last=true": True,
}


@pytest.mark.parametrize("overrides", LAYOUTS)
def test_images_are_channels_last_where_a_gpu_computes_in_16_bits(overrides: str) -> None:
    assert network(*overrides.split())["channels_last"] is LAYOUTS[overrides]


def test_the_kind_of_a_device_names_a_run_and_its_number_does_not(two_gpus: None) -> None:
    on_cpu, *on_gpus = (
        named(*overrides.split()).digest
        for overrides in (
            "network.device=cpu",
            "network.device=cuda",
            "network.device=cuda:1",
            "network.device=auto",
        )
    )
    assert len({*on_gpus}) == 1
    assert on_cpu == named().digest != on_gpus[0]
    assert named("network.device=cuda", "network.deterministic=false").digest != on_gpus[0]


@pytest.mark.parametrize("override", ["network=sim", "network=gloo"])
def test_runs_from_before_there_were_devices_keep_their_names(override: str) -> None:
    experiment = named(override)
    tree = stored(experiment)
    before = {
        key: value
        for key, value in tree["network"].items()  # type: ignore[attr-defined]
        if key not in ("device", "deterministic")
        and f"{override} {key}" not in ("network=sim autocast", "network=sim channels_last")
    }
    assert from_stored({**tree, "network": before}, experiment.directory).name == experiment.name


def test_another_device_of_a_stored_run_is_not_looked_for(two_gpus: None) -> None:
    experiment = named("network.device=cuda:1")
    assert from_stored(stored(experiment), experiment.directory).run.network == (
        experiment.run.network
    )


REFUSED = {
    "network.device=gpu": "'gpu' is not a device: use cpu, cuda, cuda:1 or auto.",
    "network.device=cuda:x": "'cuda:x' is not a device: use cpu, cuda, cuda:1 or auto.",
    "network=gloo network.device=CPU": "'CPU' is not a device: use cpu, cuda, cuda:1 or auto.",
    "network.device=cuda": "cuda needs a GPU, and PyTorch finds none on this machine: use "
    "network.device=cpu.",
    "network=gloo network.device=cuda:1": "cuda:1 needs a GPU, and PyTorch finds none on this "
    "machine: use network.device=cpu.",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_a_device_that_is_not_there(overrides: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, *overrides.split()]) == 2
    assert capfd.readouterr().err == f"sgp-run: network.device: {REFUSED[overrides]}\n"


def test_a_gpu_beyond_the_last_one(two_gpus: None, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "network.device=cuda:2"]) == 2
    assert capfd.readouterr().err == (
        "sgp-run: network.device: there is no cuda:2: the last GPU here is cuda:1.\n"
    )


@pytest.mark.parametrize(
    ("overrides", "key", "sentence"),
    [
        ("gpus_per_node=2", "gpus_per_node", "over gloo, ranks share GPUs as nodes of one device"),
        ("faults.slow_nodes={0:2}", "faults", "gradients on a GPU cannot be slowed artificially"),
        ("record=true", "record", "a GPU's results cannot be repeated to the last bit"),
        ("network.autocast=bf16 dtype=float64", "network.autocast", "applies only to float32"),
    ],
)
def test_what_ranks_that_share_gpus_cannot_do(overrides: str, key: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: {sentence}"):
        named("network=gloo", "network.device=cuda", *overrides.split())


@pytest.mark.parametrize("has", [True, False])
def test_bfloat16_needs_units_for_it(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    present: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_device", present.append)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    units: dict[bool, bool] = {True: True, False: has}  # emulated units count as units
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: units[including_emulation]
    )
    devices.use_gpu("cpu", "bf16")
    assert present == []
    devices.use_gpu("cuda:1", "none")
    if has:
        devices.use_gpu("cuda:1", "bf16")
        return
    sentence = "network.autocast: the Tesla V100 does not support bfloat16 in hardware: use "
    fix = "network.autocast=none, or fp16 with network=gloo or nccl."
    with pytest.raises(ConfigError, match=f"^{sentence}{fix}$"):
        devices.use_gpu("cuda:1", "bf16")
    assert present == ["cuda:1"] * 2


def test_a_simulation_makes_its_gpu_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(engines, "use_gpu", lambda *arguments: seen.append(arguments))
    monkeypatch.setattr(engines, "repeat_to_the_bit", lambda compute: None)
    problem = build_problem(experiment_of([*TINY]).run)
    engines.prepare_process(problem)
    engines.prepare_process(replace(problem, compute=Compute("cuda:1", "bf16")))
    assert seen == [("cpu", "none"), ("cuda:1", "bf16")]


def test_the_memory_of_the_gpu_is_named_and_checked() -> None:
    run = experiment_of([*TINY, "data=digits", "model.hidden=[1000]"]).run
    problem = build_problem(run)
    count = 65 * 1000 + 1001 * 10  # of parameters
    needed = 4 * count * (2 + 2 * 3)  # model, gradient; for each node parameters, momentum, message
    assert bytes_of_vectors(run, problem) == needed == 2_400_320
    real = [*TINY, "data=digits", "model.hidden=[1000]", "network=gloo", "gpus_per_node=2"]
    whole, parts = (experiment_of([*real, *extra]).run for extra in ([], ["network.shard=state"]))
    assert bytes_of_vectors(whole, problem) == 4 * count * (2 + 3)
    assert bytes_of_vectors(parts, problem) == 4 * count * (2 + 3 / 2)
    assert gpu_memory(run, problem, 8 * 10**9) == (
        "Of 8 GB free on the GPU, this takes 2.4 MB for parameters, optimizer state and messages; "
        "activations come on top."
    )
    with pytest.raises(
        ConfigError,
        match="^nodes: 2 nodes of model=mlp need 2.4 MB for parameters, optimizer state and "
        "messages, but the GPU has 2.4 MB free: use fewer nodes, or network.device=cpu.",
    ):
        gpu_memory(run, problem, needed - 1)


@pytest.mark.parametrize(
    ("unit", "changes", "hinted"),
    [
        ("amx_bf16", [], True),
        ("avx512_bf16", [], True),
        ("avx512_f", [], False),
        ("amx_bf16", ["network.autocast=bf16"], False),
        ("amx_bf16", ["dtype=float64"], False),
        ("amx_bf16", ["model.hidden=[1000]"], False),
    ],
)
def test_a_processor_with_units_for_bfloat16_is_named(
    unit: str, changes: list[str], hinted: bool
) -> None:
    run = experiment_of([*TINY, "data=digits", "model.hidden=[1000,500]", *changes]).run
    hint = bfloat16_hint(run, build_problem(run), {"avx512_bf16": False, unit: True})
    assert (hint or "").count("network.autocast=bf16") == hinted
