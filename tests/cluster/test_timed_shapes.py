"""Messages whose length depends on the shapes of tensors have those of the timed model."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
from helpers.experiments import make_experiment, summary_of

from sgp_runner.cluster.timed_as import RESNET50, resnet50_shapes
from sgp_runner.config.overrides import experiment_of

ON_RESNET50 = ("timed_as.model=resnet50", f"timed_as.num_parameters={RESNET50}")


def test_the_tensors_of_resnet50() -> None:
    shapes = resnet50_shapes()
    assert len(shapes) == 161 and sum(map(prod, shapes.values())) == RESNET50
    assert shapes["layer2.0.downsample.weight"] == (512, 256, 1, 1)
    assert shapes["layer4.2.conv2.weight"] == (512, 512, 3, 3)


@pytest.mark.parametrize(
    ("algo", "num_bytes"),
    [
        # p of 2 x 27,560 rows and 54,120 numbers of vectors; q of 2 x 54,931 rows, in float32
        ("algo=powersgd algo.rank=2", 4 * (109_240 + 109_862)),
        # a step with p and a step with q, each with the numbers of vectors
        ("algo=acp_sgd algo.rank=2", 4 * (109_240 + 163_982) / 2),
        # bytes, and a float32 for each of the 161 tensors
        ("algo=ar_sgd algo.codec=int8", RESNET50 + 4 * 161),
    ],
)
@pytest.mark.parametrize("model", ["mlp", "timing_only"])
def test_bytes_of_a_step(algo: str, num_bytes: float, model: str, tmp_path: Path) -> None:
    """Two nodes send each number of a ring all-reduce, or of an all-gather, once."""
    one_step = ["data=digits", "epochs=1", "batch_size=718"]
    how = one_step if model == "mlp" else ["model.sample_steps=2"]
    experiment = make_experiment(
        tmp_path,
        *(f"model={model}", *how, "nodes=2", *algo.split(), *ON_RESNET50),
        *("cluster=ethernet_10g", "cluster.collectives.algorithm=ring"),
    )
    summary = summary_of(experiment)
    assert summary["steps"] == (1 if model == "mlp" else 2)
    if algo.startswith("algo=acp_sgd") and model == "mlp":
        num_bytes = 4 * 109_240
    assert summary["bytes_per_node"] == summary["steps"] * num_bytes


def test_a_run_says_that_the_shapes_of_a_model_are_unknown() -> None:
    assert experiment_of(
        [
            *("model=mlp", "algo=powersgd", "timed_as.model=big"),
            *("timed_as.num_parameters=7000000", "++cluster.step_seconds.big=1s"),
        ]
    ).run.notes(100) == [
        "The shapes of the tensors of big are unknown, so the factors of PowerSGD have the same "
        "share of the parameters as for mlp."
    ]
    assert experiment_of(["model=mlp", "algo=powersgd", *ON_RESNET50]).run.notes(100) == []
