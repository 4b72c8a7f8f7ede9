"""fairseq: its data, models and beam search in a run, and nothing of it anywhere else."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.corpora import binarised, parallel_text
from helpers.experiments import final_parameters, instrumented, make_experiment
from helpers.paths import RANKS
from helpers.refusals import refusal
from test_resume import events, whole_and_interrupted

from sgp_runner.assembly.real.launch import launch
from sgp_runner.assembly.start import execute
from sgp_runner.cli.main import main
from sgp_runner.config.experiment import Experiment
from sgp_runner.core.problem import Problem, make_problem
from sgp_runner.data.dataset import Dataset
from sgp_runner.data.sampler import TokenSampler
from sgp_runner.data.with_fairseq import BeamTranslation, SentencePairs, TokenBatches
from sgp_runner.data.wmt16_en_de import WMT16EnDe
from sgp_runner.models.fairseq_transformer import FairseqTransformer
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.shard import Shard

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("fairseq") is None,
    reason="fairseq is not installed: make .venv/.fairseq",
)
__all__ = ["events"]  # a fixture

REAL_RANK = str(RANKS / "real_rank.py")
WIDTHS = (("layers", 1), ("embed_dim", 32), ("ffn_embed_dim", 64))
SMALL = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in WIDTHS}
OVERRIDES = "{" + ", ".join(f"{name}: {value}" for name, value in SMALL.items()) + "}"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wmt")
    return binarised(folder / "binarised", parallel_text(folder / "text"))


@pytest.fixture(scope="module")
def dataset(root: Path) -> Dataset:
    return WMT16EnDe(root=str(root)).load(torch.float32)


def words(root: Path, *more: str) -> tuple[str, ...]:
    return (
        "model=fairseq_transformer",
        "model.arch=transformer_iwslt_de_en",
        f"model.overrides={OVERRIDES}",
        f"data.root={root}",
        "data.max_tokens=200",
        "optim.lr=0.005",
        "optim.schedule.warmup_steps=20",
        *more,
    )


def problem(
    root: Path, workers: int, arch: str = "transformer_iwslt_de_en", **overrides: Any
) -> Problem:
    return make_problem(
        FairseqTransformer(arch=arch, overrides={**SMALL, **overrides}),
        WMT16EnDe(root=str(root), max_tokens=200),
        workers=workers,
        batch_size=1024,
        seed=3,
        dtype=torch.float64,
    )


def test_importing_fairseq_leaves_hydra_and_logging_alone() -> None:
    code = """
import logging
from hydra.core.config_store import ConfigStore
from sgp_runner.data.with_fairseq import import_fairseq
logging.getLogger().setLevel(logging.ERROR)
before = repr(ConfigStore.instance().repo)
assert import_fairseq().__name__ == "fairseq"
assert repr(ConfigStore.instance().repo) == before
assert (logging.getLogger().handlers, logging.getLogger().level) == ([], logging.ERROR)
"""
    # If fairscale is there, for the benchmarks, fairseq imports it, which warns.
    done = subprocess.run(
        [sys.executable, "-W", "ignore::FutureWarning", "-c", code],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


# Batches


def test_binarised_text_of_another_dictionary_is_refused(root: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(root, tmp_path / "other"))
    text, dictionary = other / "train.en-de.de.bin", other / "dict.de.txt"
    dictionary.write_text("".join(dictionary.read_text().splitlines(keepends=True)[:9]))
    start = f"{text} does not fit its .idx and dict.de.txt: "
    assert refusal(WMT16EnDe(root=str(other)).load, torch.float32).sentence == (
        f"{start}tokens 2 to 205, but dict.de.txt has 13."
    )
    text.write_bytes(text.read_bytes()[:400])
    said = refusal(WMT16EnDe(root=str(other)).load, torch.float32).sentence
    assert said.startswith(start) and " tokens instead of " in said


def test_a_corpus_is_read_as_it_was_written(dataset: Dataset) -> None:
    assert (dataset.name, len(dataset.train), len(dataset.valid)) == ("wmt16_en_de", 600, 40)
    task = dataset.task
    assert isinstance(task, BeamTranslation)
    (source, lengths, target_in), targets = dataset.train.batch(torch.tensor([5, 0, 1]))
    assert (
        lengths.tolist()
        == sorted(lengths.tolist(), reverse=True)
        == (source != task.source.pad()).sum(1).tolist()
    )
    assert min(task.target.string(row[row != task.target.pad()]) for row in targets) == (
        "acht@@ hundert@@ acht@@ und@@ siebzig@@ tausend@@ sechs@@ hundert@@ elf"
    )
    assert min(map(task.text, targets)) == "achthundertachtundsiebzigtausendsechshundertelf"
    assert target_in[:, 0].tolist() == [task.target.eos()] * 3


def test_batches_are_full_of_tokens_and_hold_every_sentence_once(dataset: Dataset) -> None:
    assert isinstance(dataset.train, SentencePairs)
    sampler = TokenBatches(max_tokens=200, multiple=8).sampler(
        dataset.train, workers=3, batch_size=1024, seed=1
    )
    read = [
        sampler.indices(worker, step)
        for step in range(sampler.steps_per_epoch)
        for worker in range(3)
    ]
    assert (
        len(torch.cat(read).unique()) == len(torch.cat(read)) > 560
    )  # but for the last, incomplete row
    for indices in read:
        (source, _, _), targets = dataset.train.batch(indices)
        assert source.numel() <= 200 and targets.numel() <= 200
        assert len(indices) % 8 == 0 or len(indices) < 8
    assert (
        sum(
            max(dataset.train.batch(i)[1].numel(), dataset.train.batch(i)[0][0].numel())
            for i in read
        )
        / len(read)
        > 140
    )
    again = TokenBatches(200, 8).sampler(dataset.train, 3, 1024, seed=1)
    assert torch.equal(again.indices(2, 7), sampler.indices(2, 7))
    assert [len(again.indices(0, step)) for step in range(9)] != [
        len(again.indices(0, 18 + step)) for step in range(9)
    ]
    most = TokenBatches(200, 1).sampler(dataset.train, 3, batch_size=5, seed=1)
    assert max(len(most.indices(worker, step)) for worker in range(3) for step in range(20)) == 5


def test_every_token_counts_the_same_whoever_reads_it() -> None:
    batches = torch.tensor([0, 1]), torch.tensor([2]), torch.tensor([3, 4])
    sampler = TokenSampler(batches, torch.tensor([1, 2, 9, 4, 2]), workers=3, seed=0)
    weights = {
        tuple(sampler.indices(worker, 0).tolist()): sampler.weight(worker, 0, Shard())
        for worker in range(3)
    }
    assert weights == {(0, 1): 3 * 3 / 18, (2,): 9 * 3 / 18, (3, 4): 6 * 3 / 18}
    (of_one,) = [worker for worker in range(3) if len(sampler.indices(worker, 0)) == 1]
    assert [sampler.weight(of_one, 0, Shard(device, 2)) for device in (0, 1)] == [9 * 3 * 2 / 18, 0]


def test_the_mean_of_the_gradients_is_the_gradient_of_the_mean_over_all_tokens(root: Path) -> None:
    small = problem(root, workers=3, dropout=0.0)
    params, buffers = small.start(), small.flat.fresh_buffers()
    for step in (0, 5):
        mean = torch.stack(
            [small.gradient(params, buffers, rank, step)[0] for rank in range(3)]
        ).mean(0)
        module = small.flat.bind(params, buffers).train()
        task = small.dataset.task
        assert isinstance(task, BeamTranslation)
        sums = [
            task.loss_sums(module(*inputs), targets)
            for inputs, targets in (small.batch(rank, step) for rank in range(3))
        ]
        (sum(total for total, _, _ in sums) / sum(tokens for _, _, tokens in sums)).backward()  # type: ignore[union-attr]
        assert len({int(tokens) for _, _, tokens in sums}) > 1
        expected = torch.cat(
            [
                torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
                for p in small.flat.parameters
            ]
        )
        assert torch.allclose(
            mean, expected, rtol=0, atol=1e-8
        )  # fairseq's attention rounds its softmax to float32
        for p in small.flat.parameters:
            p.grad = None


def test_dropout_is_that_of_worker_and_step(root: Path) -> None:
    small = problem(root, workers=2, dropout=0.3)
    first, other, again = (
        small.gradient(small.start(), small.flat.fresh_buffers(), 0, step)[0] for step in (1, 2, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_label_smoothing_spreads_over_the_other_words(dataset: Dataset) -> None:
    task = dataset.task
    assert isinstance(task, BeamTranslation)
    outputs = torch.tensor(
        [[[0.0, 0.0, 0.0, 0.0, 2.0], [1.0, 2.0, 3.0, 4.0, 5.0]]], dtype=torch.float64
    )
    log_p = outputs[0, 0].log_softmax(0)
    smoothed, nll, tokens = task.loss_sums(outputs, torch.tensor([[4, task.target.pad()]]))
    assert (int(tokens), float(nll)) == (1, pytest.approx(-float(log_p[4])))
    assert float(smoothed) == pytest.approx(-0.9 * float(log_p[4]) - 0.1 * float(log_p[:4].mean()))


# Models


@pytest.mark.parametrize(
    ("arch", "width", "parameters"),
    [
        ("transformer_wmt_en_de", 512, 44_138_496),
        ("transformer_vaswani_wmt_en_de_big", 1024, 176_357_376),
    ],
)
def test_sizes(arch: str, width: int, parameters: int, dataset: Dataset) -> None:
    with torch.device("meta"):
        module = FairseqTransformer(arch=arch).build(dataset)
    assert sum(p.numel() for p in module.parameters()) == parameters + width * dataset.num_classes


@pytest.mark.parametrize(
    "arch", ["fconv_iwslt_de_en", "lightconv_iwslt_de_en", "lstm_luong_wmt_en_de"]
)
def test_other_architectures_have_gradients(arch: str, dataset: Dataset) -> None:
    torch.manual_seed(0)
    module = FairseqTransformer(arch=arch, share_all_embeddings=False).build(dataset)
    inputs, targets = dataset.train.batch(torch.arange(4))
    dataset.task.loss(module(*inputs), targets).backward()
    assert sum(float(p.grad.square().sum()) for p in module.parameters() if p.grad is not None) > 0


# Runs


def test_words_are_learnt_and_bleu_is_of_whole_words(root: Path, tmp_path: Path) -> None:
    longer = (
        "algo=ar_sgd",
        "nodes=2",
        "epochs=50",
        "eval_every=50",
        "data.max_tokens=800",
        "data.beam=2",
        "optim.lr=0.01",
    )
    experiment = make_experiment(tmp_path, *words(root, *longer, "model.overrides.dropout=0.0"))
    summary = execute(experiment)
    assert (
        summary is not None
        and summary["metric"] == "bleu"
        and summary["label"] == "trained on wmt16_en_de; time simulated"
    )
    assert float(str(summary["average"])) > 25
    (last,) = [
        record for record in read_metrics(experiment.directory) if record["kind"] == "average"
    ]
    assert 0 < float(str(last["nll"])) < float(str(last["loss"]))


@pytest.mark.parametrize("algo", ["slowmo", pytest.param("ad_psgd", marks=pytest.mark.slow)])
def test_a_killed_run_ends_with_the_same_bytes(
    algo: str, root: Path, tmp_path: Path, events: list[int]
) -> None:
    whole_and_interrupted(
        tmp_path,
        events,
        4,
        *words(root, f"algo={algo}", "epochs=1", "batch_size=1024", "data.beam=1", "eval_every=2"),
    )


@pytest.fixture(scope="module")
def real(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, tuple[Experiment, Experiment]]:
    """By the devices of a node, a run of four devices in all, simulated and real; one launch runs
    both real ones.
    """
    runs, folder = {}, tmp_path_factory.mktemp("runs")
    for devices in (1, 2):
        short = (
            "algo=sgp",
            f"nodes={4 // devices}",
            "epochs=0.3",
            "dtype=float64",
            "data.beam=1",
            "model.overrides.dropout=0.0",
        )
        simulated = make_experiment(folder, *words(root, *short))
        execute(instrumented(simulated))
        runs[devices] = (
            simulated,
            make_experiment(
                folder, *words(root, *short, "network=gloo", f"gpus_per_node={devices}")
            ),
        )
    (_, first), (_, last) = runs.values()
    launch(last, program=(REAL_RANK, "-1", str(first.directory / "config.yaml")))
    return runs


@pytest.mark.parametrize("devices", [1, 2])
def test_real_ranks_end_with_the_simulators_parameters(
    devices: int, real: dict[int, tuple[Experiment, Experiment]]
) -> None:
    simulated, measured = real[devices]
    torch.testing.assert_close(
        final_parameters(measured), final_parameters(simulated), rtol=0, atol=1e-10
    )


# What cannot work


@pytest.mark.usefixtures("in_an_empty_folder")
def test_missing_data_are_one_sentence_and_leave_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model=fairseq_transformer", "logger=jsonl"]) == 2
    assert capsys.readouterr().err == (
        "sgp-run: data.root: there is no binarised WMT'16 at data/wmt16_en_de, where dict.en.txt "
        "should be: get wmt16_en_de.tar.gz from https://drive.google.com/uc?export=download&id="
        "0B_bZck-ksdkpM25jRUN2X2UxMm8 and binarise it with scripts/prepare_wmt16.sh, or set "
        "data.root; model=transformer data=numbers_en_de needs no files.\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_models_read_the_text_that_they_can(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model=transformer", "data=wmt16_en_de"]) == 2
    assert capsys.readouterr().err == (
        "sgp-run: data: model=transformer reads translation data; data=wmt16_en_de is "
        "fairseq_translation. Use model=fairseq_transformer, or data=numbers_en_de.\n"
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"arch": "transformer_wmt_en_dee"},
            (
                "model.arch: 'transformer_wmt_en_dee' is not an encoder-decoder model of fairseq. "
                "Did you mean "
            ),
        ),
        (
            {"arch": "roberta_base"},
            "model.arch: 'roberta_base' is not an encoder-decoder model of fairseq.",
        ),
        (
            {"overrides": {"encoder_layer": 2}},
            "model.overrides.encoder_layer: .* has no such option. Did you mean 'encoder_layers'?",
        ),
        (
            {"overrides": {"encoder_attention_heads": 7}},
            "model.overrides: fairseq cannot build transformer_vaswani_wmt_en_de_big ",
        ),
    ],
)
def test_models_that_fairseq_does_not_have_are_refused(
    settings: dict[str, Any], sentence: str, dataset: Dataset
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        FairseqTransformer(**settings).build(dataset)


def test_different_dictionaries_are_refused(root: Path, dataset: Dataset, tmp_path: Path) -> None:
    for path in root.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "dict.de.txt").unlink()
    (tmp_path / "dict.de.txt").write_text((root / "dict.de.txt").read_text() + "neu 1\n")
    with pytest.raises(
        ConfigError,
        match=(
            "model.share_all_embeddings: the languages have different dictionaries: binarise with "
            "--joined"
        ),
    ):
        FairseqTransformer().build(WMT16EnDe(root=str(tmp_path)).load(torch.float32))


@pytest.mark.parametrize(
    ("max_tokens", "workers", "sentence"),
    [
        (
            5,
            1,
            "data.max_tokens: a batch of 5 tokens is too small for the longest sentence: use "
            "[0-9]+ or more.",
        ),
        (
            100_000,
            2,
            "600 sentences make 1 batches of up to 100000 tokens, which are not enough for 2 nodes",
        ),
    ],
)
def test_batches_that_cannot_be_made_are_refused(
    max_tokens: int, workers: int, sentence: str, dataset: Dataset
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        TokenBatches(max_tokens, 1).sampler(dataset.train, workers, 1024, 0)
