"""Gradients of batches that are cut into pieces are those of whole batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.experiments import distance, instrumented, make_experiment
from helpers.paths import RANKS

from sgp_runner.assembly.build import build_problem
from sgp_runner.assembly.real.launch import launch
from sgp_runner.assembly.start import execute
from sgp_runner.cli.main import main
from sgp_runner.config.overrides import experiment_of
from sgp_runner.core.problem import Problem

DOUBLE = ("dtype=float64", "nodes=2", "batch_size=12", "logger=jsonl")
MODELS = {
    "mlp": "model=mlp",
    "quadratic": "model=quadratic",
    "transformer": "model=transformer model.dropout=0",  # its loss counts tokens, not padding
    "gpt": "model=gpt model.layers=1 data.train_size=640",
}


def problem(*overrides: str) -> Problem:
    return build_problem(experiment_of([*DOUBLE, *overrides]).run)


def gradient(of: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    return of.gradient(of.start(), of.flat.fresh_buffers(), rank=1, step=3)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("size", [1, 4])
def test_the_gradient_of_pieces_is_that_of_the_batch(model: str, size: int) -> None:
    whole, loss = gradient(problem(*MODELS[model].split()))
    pieces, same_loss = gradient(problem(*MODELS[model].split(), f"micro_batch={size}"))
    assert float((pieces - whole).abs().max()) < 1e-12 * max(1.0, float(whole.abs().max()))
    assert float(same_loss) == pytest.approx(float(loss), abs=1e-12)


def test_a_piece_counts_by_its_tokens() -> None:
    of = problem(*MODELS["transformer"].split(), "micro_batch=4")
    pieces = of.pieces(of.batch(1, 3))
    tokens = [int((targets != 0).sum()) for (_, targets), _ in pieces]
    assert len(set(tokens)) > 1
    assert [float(share) for _, share in pieces] == [count / sum(tokens) for count in tokens]


@pytest.mark.parametrize("overrides", ["model=resnet8", "model=mlp model.dropout=0.5"])
def test_batch_norm_and_dropout_see_one_piece_at_a_time(overrides: str) -> None:
    (whole, _), (pieces, _) = (
        gradient(problem(*overrides.split(), *more)) for more in ([], ["micro_batch=4"])
    )
    assert float((pieces - whole).abs().max()) > 1e-6


def test_pieces_draw_different_dropout() -> None:
    of = problem("model=mlp", "model.dropout=0.5", "micro_batch=4")
    seeds = {
        of.dropout_seed(rank, step, piece)
        for rank in (0, 1)
        for step in (0, 1)
        for piece in range(3)
    }
    assert len(seeds) == 12


def test_real_ranks_and_simulated_ones_end_with_the_parameters_of_whole_batches(
    tmp_path: Path,
) -> None:
    overrides = (*DOUBLE, "model=mlp", "epochs=0.1")
    real = []
    for algo in ("ar_sgd", "sgp"):
        whole = make_experiment(tmp_path, *overrides, f"algo={algo}")
        pieces = make_experiment(tmp_path, *overrides, f"algo={algo}", "micro_batch=3")
        for experiment in (whole, pieces):
            execute(instrumented(experiment))
        over_gloo = make_experiment(
            tmp_path, *overrides, f"algo={algo}", "micro_batch=3", "network=gloo"
        )
        real += [(whole, over_gloo), (whole, pieces)]
    (_, first), _, (_, second), _ = real
    program = (str(RANKS / "real_rank.py"), "-1", str(first.directory / "config.yaml"))
    launch(second, program=program)
    for whole, cut in real:
        assert distance(whole, cut) < 1e-12


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            "micro_batch=5",
            "micro_batch: 12 samples per device do not divide into micro-batches of 5: use "
            "micro_batch=4, "
            "or another divisor of 12.",
        ),
        (
            "micro_batch=0",
            "micro_batch: 12 samples per device do not divide into micro-batches of 0: use "
            "micro_batch=1, "
            "or another divisor of 12.",
        ),
        (
            "micro_batch=4 network.engine=vmap",
            "network.engine: vmap computes whole batches: use network.engine=loop, or "
            "micro_batch=null.",
        ),
    ],
)
def test_sizes_that_cannot_be(
    overrides: str, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*DOUBLE, "model=mlp", *overrides.split()]) == 2
    assert capfd.readouterr().err == f"sgp-run: {sentence}\n"
