"""`Averager` in a training loop ends with the parameters of `sgp-run`, and resumes exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from helpers.experiments import final_parameters, instrumented, make_experiment
from helpers.paths import RANKS
from helpers.processes import run_world

from sgp_runner.assembly.build import build_problem
from sgp_runner.assembly.start import execute
from sgp_runner.config.experiment import Experiment
from sgp_runner.config.overrides import prepare_algorithms

TINY = (
    "dtype=float64",
    "model=mlp",
    "model.hidden=[6]",
    "data=synthetic",
    "data.image_size=4",
    "data.num_classes=10",
    "data.size=288",
    "data.valid_size=32",
    "nodes=3",
    "batch_size=8",
    "epochs=0.92",  # 11 steps
)
SGD = ("optim.lr=0.5", "optim.schedule=cosine", "optim.schedule.warmup_epochs=0.2")
ADAMW = ("optim=adamw", "optim.schedule=constant", "optim.lr=0.01", "optim.clip=0.5")
#: Variant -> its algorithm and settings here, the same for sgp-run, and how the loop is written:
#: the parts of a batch, whether its length is known, and whether messages go over pairs (NCCL).
VARIANTS: dict[str, tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "sgp": ("sgp", {}, (), {"parts": 2}),
    "osgp": ("osgp", {"tau": 0}, ("algo.tau=0",), {}),
    "d_psgd": ("d_psgd", {"topology": "ring"}, (), {}),
    "d_psgd over pairs": ("d_psgd", {"topology": "ring"}, (), {"paired": True}),
    "slowmo": ("slowmo", {"tau": 4}, ("algo.tau=4",), {"paired": True}),
    "slowmo-local": (
        "slowmo",
        {"base": "local_sgd", "tau": 3},
        ("base@algo.base=local_sgd", "algo.tau=3", "algo.buffers=average"),
        {"rules": {"optimizer_state": "mean"}},
    ),
    "local_sgd": ("local_sgd", {"tau": 3}, ("algo.tau=3",), {"steps": True}),
    "diloco": ("diloco", {"period": 3}, ("algo.period=3", *ADAMW), {"steps": True}),
    "streaming_diloco": (
        "streaming_diloco",
        {"period": 4, "delay": 2, "codec": "fp4"},
        ("algo.period=4", "algo.delay=2", "algo.codec=fp4"),
        {"steps": True, "paired": True},
    ),
    "diloco-delayed": (
        "diloco",
        {"period": 3, "overlap": "delayed"},
        ("algo.period=3", "algo.overlap=delayed", *ADAMW),
        {"steps": True},
    ),
    "diloco-eager": (
        "diloco",
        {"period": 3, "overlap": "eager"},
        ("algo.period=3", "algo.overlap=eager"),
        {"steps": True, "paired": True},
    ),
    "noloco": (
        "noloco",
        {"topology": "complete", "period": 3},
        ("algo.topology=complete", "algo.period=3"),
        {"steps": True},
    ),
    "qg_dsgdm": ("qg_dsgdm", {}, (), {"parts": 2}),
    "ar_sgd": ("ar_sgd", {}, (), {}),
    "pipe_sgd": ("pipe_sgd", {}, (), {"steps": True}),
    "d_squared": ("d_squared", {}, (), {}),
    "gradient_tracking": ("gradient_tracking", {}, (), {"paired": True}),
    "gossip_pga": ("gossip_pga", {"period": 3}, ("algo.period=3",), {}),
    "demo": ("demo", {"k": 3}, ("algo.k=3",), {}),
    "powersgd": ("powersgd", {"rank": 1}, ("algo.rank=1",), {}),
    "acp_sgd": ("acp_sgd", {"rank": 1}, ("algo.rank=1",), {"parts": 2}),
    "des_loc": (
        "des_loc",
        {"period": 2, "period_u": 3, "period_v": 4},
        ("algo.period=2", "algo.period_u=3", "algo.period_v=4", *ADAMW),
        {"steps": True},
    ),
    "relay_sgd": ("relay_sgd", {}, (), {"paired": True}),
    "ef_sign": ("ef_sign", {}, (), {}),
    "choco_sgd": ("choco_sgd", {}, (), {}),
    "sparseloco": (
        "sparseloco",
        {"period": 3, "codec": {"k": 3}},
        ("algo.period=3", "algo.codec.k=3"),
        {"steps": True},
    ),
}


#: Messages are two steps late over pairs, so they are in flight whenever the loop saves its state.
IN_FLIGHT = ("osgp", {"tau": 2}, ("algo.tau=2",), {"paired": True})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Experiment]:
    """Every variant, simulated and then in loops of three processes."""
    folder = tmp_path_factory.mktemp("averager")
    experiments = {}
    prepare_algorithms(
        ["logger=jsonl", f"results={folder}", *TINY, *SGD],
        [
            [f"algo={algo}", *overrides]
            for algo, _, overrides, _ in VARIANTS.values()
            if ADAMW[0] not in overrides
        ],
    )
    for name, (algo, settings, overrides, how) in {**VARIANTS, "in flight": IN_FLIGHT}.items():
        optim = () if "optim=adamw" in overrides else SGD
        arguments = (*TINY, *optim, f"algo={algo}", *overrides, f"name={name.replace(' ', '_')}")
        experiments[name] = experiment = make_experiment(folder, *arguments)
        if name in VARIANTS:
            execute(instrumented(experiment))
        described = json.dumps({"algo": algo, "settings": settings, **how})
        (experiment.directory / "how.json").write_text(described)
    run_world(folder, 1, str(RANKS / "averager_rank.py"), str(experiment.directory.parent))
    return experiments


def loops(experiment: Experiment) -> list[dict[str, torch.Tensor]]:
    """The files that the ranks of a loop have saved."""
    error = experiment.directory / "error"
    assert not error.exists(), error.read_text()
    paths = [experiment.directory / f"loop{rank}.pt" for rank in range(3)]
    return [torch.load(path, weights_only=True) for path in paths]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_loop_ends_with_the_parameters_of_sgp_run(name: str, runs: dict[str, Experiment]) -> None:
    expected = torch.stack(final_parameters(runs[name]))
    found = torch.stack([loop["params"] for loop in loops(runs[name])])
    assert float((expected - found).abs().max()) < 1e-10
    assert float((expected[0] - build_problem(runs[name].run).start()).abs().max()) > 0.01


@pytest.mark.parametrize("name", [*VARIANTS, "in flight"])
def test_a_loop_continues_exactly_from_its_state(name: str, runs: dict[str, Experiment]) -> None:
    assert all(torch.equal(loop["params"], loop["resumed"]) for loop in loops(runs[name]))


def test_the_state_contains_messages_in_flight(runs: dict[str, Experiment]) -> None:
    folder = runs["in flight"].directory
    states = [torch.load(folder / f"state{rank}", weights_only=True) for rank in range(3)]
    mailboxes = [state["averager"]["worker"]["comm"]["mailbox"] for state in states]
    assert [len(mailbox) for mailbox in mailboxes] == [2, 2, 2]
    assert sum(float(loop["weight"]) for loop in loops(runs["in flight"])) == pytest.approx(3)
