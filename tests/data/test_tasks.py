"""Losses and evaluations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from sgp_runner.data.dataset import TensorSplit
from sgp_runner.data.tasks import Classification, Regression, Translation
from sgp_runner.utils.seeding import generator


def test_classification_counts_every_sample_once() -> None:
    targets = torch.zeros(1000, dtype=torch.int64)
    targets[:250] = 1
    logits = torch.tensor([math.log(3.0), 0.0]).expand(1000, 2).clone()
    module = nn.Linear(2, 2)
    with torch.no_grad():
        module.weight.copy_(torch.eye(2))
        module.bias.zero_()
        result = Classification().evaluate(module, TensorSplit((logits,), targets, None))
    assert result["accuracy"] == 0.75
    assert result["loss"] == pytest.approx(0.75 * math.log(4 / 3) + 0.25 * math.log(4))


def test_regression_is_half_the_squared_distance() -> None:
    assert (
        float(Regression().loss(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.zeros(2, 2))) == 6.25
    )


def test_regression_reports_the_gradient_of_the_whole_split() -> None:
    module = nn.Linear(1, 1, bias=False)
    split = TensorSplit((torch.tensor([[1.0], [2.0]]),), torch.tensor([[0.0], [0.0]]), None)
    with torch.no_grad():
        module.weight.fill_(3.0)
        assert Regression().evaluate(module, split) == {
            "loss": 11.25,
            "gradient_norm": 7.5,
        }  # w^2 E[x^2] / 2 and w E[x^2]
    assert module.weight.grad is None


def test_translation_loss_equals_torch_and_ignores_padding() -> None:
    task = Translation(0, 1, 2, ("<pad>", "<bos>", "<eos>", "a", "b"), label_smoothing=0.1)
    outputs = torch.randn(3, 4, 5, dtype=torch.float64, generator=generator(0))
    targets = torch.tensor([[3, 4, 2, 0], [2, 0, 0, 0], [4, 4, 4, 2]])
    expected = nn.functional.cross_entropy(
        outputs.flatten(0, 1), targets.flatten(), ignore_index=0, label_smoothing=0.1
    )
    assert float(task.loss(outputs, targets)) == pytest.approx(float(expected), abs=1e-14)
    stacked = torch.func.vmap(task.loss)(outputs.expand(2, -1, -1, -1), targets.expand(2, -1, -1))
    assert stacked.tolist() == pytest.approx([float(expected)] * 2)


class Copier(nn.Module):
    """Says the source again, word by word; then ends."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        return self.decode(source, self.encode(source), target_in)

    def encode(self, source: Tensor) -> Tensor:
        return source

    def decode(self, source: Tensor, memory: Tensor, target_in: Tensor) -> Tensor:
        return 50.0 * nn.functional.one_hot(memory[:, : target_in.shape[1]], 6).double()


def test_greedy_decoding_scores_exact_matches_and_bleu() -> None:
    task = Translation(
        0, 1, 2, ("<pad>", "<bos>", "<eos>", "eins", "▁", "zwei"), label_smoothing=0.0
    )
    source = torch.tensor([[3, 4, 5, 2], [3, 2, 0, 0], [5, 2, 0, 0], [5, 4, 5, 2]])
    targets = source.clone()
    targets[3, 0] = 3
    target_in = torch.cat([torch.ones(4, 1, dtype=torch.int64), targets[:, :-1]], 1)
    with torch.no_grad():
        result = task.evaluate(Copier(), TensorSplit((source, target_in), targets, None))
    assert result["accuracy"] == 0.75
    assert set(result) == {"loss", "accuracy", "bleu"}
    assert [task.text(ids) for ids in ([3, 4, 5, 2, 0, 0], [3, 0, 0])] == ["eins zwei", "eins"]


def test_examples_are_sentences_of_the_whole_split_beside_references_and_translations() -> None:
    task = Translation(0, 1, 2, ("<pad>", "<bos>", "<eos>", "a", "b", "c"))
    source = torch.tensor([[3 + n % 3, 3, 2, 0] for n in range(12)])
    with torch.no_grad():
        examples = task.examples(Copier(), TensorSplit((source, source), source.flip(0), None))
    assert examples == [{"source": "a a", "reference": "ca", "translation": "aa"}] * 4
