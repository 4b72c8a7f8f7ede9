"""Samplers and partitions: which samples a worker reads."""

from __future__ import annotations

import random

import pytest
import torch
from helpers.refusals import refusal

from sgp_runner.data.dataset import TensorSplit
from sgp_runner.data.digits import Digits
from sgp_runner.data.sampler import (
    IID,
    Dirichlet,
    Sampler,
    deal,
    deal_equally,
    partition_of,
    whole_labels,
)
from sgp_runner.utils.errors import ConfigError


def _split(samples: int, classes: int = 10) -> TensorSplit:
    values = torch.arange(samples)
    return TensorSplit((values,), values % classes, values % classes)


def test_iid_reads_every_sample_once_per_epoch() -> None:
    sampler = IID().sampler(_split(26), workers=3, batch_size=2, seed=1)
    assert sampler.steps_per_epoch == 4
    for epoch in (0, 1):
        steps = range(4 * epoch, 4 * epoch + 4)
        read = torch.cat([sampler.indices(w, s) for s in steps for w in range(3)])
        assert len(read) == 24 and len(set(read.tolist())) == 24


@pytest.mark.parametrize("partition", [IID(), Dirichlet(0.3), Dirichlet(0.3, equal=True)])
def test_indices_do_not_depend_on_the_order_of_calls(partition: IID | Dirichlet) -> None:
    def make() -> Sampler:
        return partition.sampler(_split(100), workers=4, batch_size=5, seed=7)

    calls = [(w, s) for w in range(4) for s in range(40)]
    forward = {call: make().indices(*call).tolist() for call in calls}
    sampler = make()
    random.Random(0).shuffle(calls)
    assert all(sampler.indices(*call).tolist() == forward[call] for call in calls)
    assert forward[(0, 0)] != forward[(0, sampler.steps_per_epoch)]
    assert partition.sampler(_split(100), 4, 5, seed=8).indices(0, 0).tolist() != forward[(0, 0)]


def test_shards_are_disjoint_cover_everything_and_hold_a_batch() -> None:
    shards = deal(torch.arange(1000) % 10, workers=16, at_least=32, alpha=0.05, seed=3)
    assert torch.equal(torch.cat(shards).sort().values, torch.arange(1000))
    assert min(map(len, shards)) >= 32


def test_small_alpha_gives_few_labels_and_large_alpha_all_in_equal_parts() -> None:
    labels = torch.arange(10_000) % 10

    def largest_share(alpha: float) -> float:
        counts = (labels[shard].bincount() for shard in deal(labels, 8, 1, alpha, seed=0))
        return sum(float(c.max() / c.sum()) for c in counts) / 8

    assert largest_share(1000.0) < 0.12
    assert largest_share(0.05) > 0.4


def test_a_shard_is_read_pass_by_pass() -> None:
    split = _split(20, classes=1)
    sampler = Dirichlet(1.0).sampler(split, workers=2, batch_size=3, seed=0)
    for worker, shard in enumerate(deal(split.targets, 2, 3, 1.0, seed=0)):
        stream = torch.cat([sampler.indices(worker, step) for step in range(2 * len(shard))])
        for number in range(6):
            one_pass = stream[number * len(shard) : (number + 1) * len(shard)]
            assert torch.equal(one_pass.sort().values, shard)


def test_too_large_a_batch_is_refused_with_the_largest_that_works() -> None:
    assert str(refusal(IID().sampler, _split(1437), workers=32, batch_size=64, seed=0)) == (
        "batch_size: 1437 training samples do not fill one batch of 64 on each of 32 nodes. The "
        "largest batch size that works is 44."
    )
    with pytest.raises(ConfigError, match="Use at most 10 nodes"):
        Dirichlet().sampler(_split(10), workers=11, batch_size=1, seed=0)


def test_equal_dirichlet_deals_shards_of_one_size_and_each_sample_once() -> None:
    labels = torch.arange(1003) % 10
    shards = deal_equally(labels, workers=8, alpha=0.1, seed=0)
    assert [len(shard) for shard in shards] == [125] * 8
    assert len(set(torch.cat(shards).tolist())) == 1000
    most = [int(labels[shard].bincount().max()) for shard in shards]
    assert min(most) == 46 and sum(most) == 480  # 13 and 104 if all had the same
    even = deal_equally(labels, workers=8, alpha=10_000.0, seed=0)
    assert max(int(labels[shard].bincount().max()) for shard in even) < 25


def test_equal_dirichlet_uses_up_what_is_left() -> None:
    shards = deal_equally(torch.tensor([0, 0, 0, 1, 1, 1]), workers=3, alpha=1e-3, seed=0)
    assert sorted(torch.cat(shards).tolist()) == [0, 1, 2, 3, 4, 5]


def test_dirichlet_needs_labels() -> None:
    with pytest.raises(ConfigError, match=r"Use data\.partition=iid"):
        Dirichlet().sampler(
            TensorSplit((), torch.zeros(100), None), workers=2, batch_size=2, seed=0
        )


def test_the_fields_of_a_data_config_choose_the_partition() -> None:
    assert [partition_of(name, 0.3) for name in ("iid", "dirichlet", "dirichlet_equal")] == [
        *(IID(), Dirichlet(0.3), Dirichlet(0.3, equal=True))
    ]
    with pytest.raises(
        ConfigError, match=r"data\.partition: 'dirichlett' .* Did you mean 'dirichlet'"
    ):
        Digits(partition="dirichlett")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"data\.alpha"):
        Digits(partition="dirichlet", alpha=0.0)


def test_shards_by_label_are_equal_and_hold_neighbouring_labels() -> None:
    sampler = partition_of("by_label", 0.1).sampler(_split(20, classes=4), 2, 5, seed=1)
    read = [torch.cat([sampler.indices(w, s) for s in (0, 1)]) % 4 for w in (0, 1)]
    assert [part.sort().values.tolist() for part in read] == [[0] * 5 + [1] * 5, [2] * 5 + [3] * 5]


def test_whole_documents_go_to_the_worker_with_the_fewest_samples() -> None:
    shards = whole_labels(torch.tensor([0, 0, 1, 1, 1, 2, 3, 3]), workers=2)
    assert [shard.tolist() for shard in shards] == [[2, 3, 4, 5], [0, 1, 6, 7]]


@pytest.mark.parametrize(
    ("workers", "batch", "key", "sentence"),
    [
        (5, 1, "nodes", "4 documents are too few for 5 nodes: use fewer nodes, or "),
        (2, 6, "batch_size", "the smallest node's documents have 5 samples: use a smaller batch, "),
    ],
)
def test_too_few_documents(workers: int, batch: int, key: str, sentence: str) -> None:
    labels = torch.tensor([0] * 12 + [1, 1, 2, 2, 3])
    split = TensorSplit((labels,), labels, labels)
    error = refusal(partition_of("by_document", 0.1).sampler, split, workers, batch, seed=1)
    assert str(error).startswith(f"{key}: {sentence}")
