"""Models of Hugging Face: in runs of both backends, their weights, and refusals."""

from __future__ import annotations

import importlib
import json
import math
import shutil
import signal
import sys
from contextlib import suppress
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from helpers.experiments import final_parameters, instrumented, make_experiment
from helpers.hub_folders import CACHE, hosts_asked_for, save_gpt2, save_json, save_tokenizer, texts
from helpers.paths import RANKS
from helpers.refusals import refusal
from test_resume import events, whole_and_interrupted
from test_saving import run_to_the_end

from sgp_runner.assembly.build import build_problem
from sgp_runner.assembly.real.launch import launch
from sgp_runner.assembly.start import execute
from sgp_runner.config.overrides import experiment_of
from sgp_runner.core.flops import flops_per_sample
from sgp_runner.core.problem import Compute, Problem
from sgp_runner.data.documents import load_encoder
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.hub import import_hub

__all__ = ["events"]  # a fixture

REAL_RANK = str(RANKS / "real_rank.py")
NOWHERE = "http://127.0.0.1:9"  # no server listens there
STREAM = ("data.streaming=true", "data.tokens=1200", "data.buffer=20")
MEMORY = ("data.streaming=false",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model (config.json), its tokenizer, and text."""
    folder = tmp_path_factory.mktemp("hub")
    save_gpt2(folder / "model", dropout=0.1)
    save_tokenizer(folder / "model")
    save_json(folder / "text", texts(300))
    return folder


def words(folder: Path, *more: str) -> tuple[str, ...]:
    model = (f"model=hf:{folder / 'model'}", "model.pretrained=false", f"data=hf:{folder / 'text'}")
    return (*model, "data.block=8", "batch_size=4", "optim.lr=0.01", *more)


def problem(*overrides: str) -> Problem:
    return build_problem(experiment_of(["nodes=2", "logger=jsonl", *overrides]).run)


# Runs


@pytest.mark.parametrize("reads", [MEMORY, STREAM])
def test_the_loss_falls(folder: Path, tmp_path: Path, reads: tuple[str, ...]) -> None:
    experiment = make_experiment(
        tmp_path, *words(folder, "nodes=2", "epochs=4", "eval_every=2", *reads)
    )
    execute(experiment)
    found = [record for record in read_metrics(experiment.directory) if record["kind"] == "average"]
    losses = [record["loss"] for record in found]
    # 10 tokens; only the first word of a text is hard to predict.
    assert len(losses) == 2 and math.log(10) > losses[0] > losses[1] + 0.1 and losses[1] < 1
    assert found[1]["perplexity"] == pytest.approx(math.exp(losses[1]))


@pytest.mark.parametrize("reads", [MEMORY, STREAM])
def test_a_resumed_run_has_the_same_bytes(
    folder: Path, tmp_path: Path, events: list[int], reads: tuple[str, ...]
) -> None:
    settings = words(folder, "epochs=1", "nodes=3", "algo=sgp", *reads)
    whole_and_interrupted(tmp_path, events, 3, *settings)


@pytest.mark.parametrize("reads", [pytest.param(MEMORY, marks=pytest.mark.slow), STREAM])
def test_simulator_and_real_processes_agree(
    folder: Path, tmp_path: Path, reads: tuple[str, ...]
) -> None:
    settings = ("nodes=2", "epochs=0.3", "dtype=float64", "algo=ar_sgd", *reads)
    simulated = make_experiment(tmp_path / "sim", *words(folder, *settings))
    execute(instrumented(simulated))
    real = make_experiment(tmp_path / "gloo", "network=gloo", *words(folder, *settings))
    summary = launch(real, program=(REAL_RANK, "-1"))
    torch.testing.assert_close(
        final_parameters(real), final_parameters(simulated), rtol=0, atol=1e-10
    )
    assert summary is not None and summary["tokens_per_s"] > 0  # type: ignore[operator]
    assert summary["flops_per_s"] is None


@pytest.mark.slow
@pytest.mark.parametrize("reads", [MEMORY, STREAM])
def test_resumed_processes_have_the_same_bytes(
    folder: Path, tmp_path: Path, reads: tuple[str, ...]
) -> None:
    more = ("network=gloo", "nodes=2", "epochs=12", "checkpoint.every_steps=40", *reads)
    whole, cut = (make_experiment(tmp_path / name, *words(folder, *more)) for name in "ab")
    launch(whole, program=(REAL_RANK, "-1"))
    assert run_to_the_end(cut, Random(1), signal.SIGUSR1, 1) == 1
    torch.testing.assert_close(final_parameters(cut), final_parameters(whole), rtol=0, atol=0)


# Gradients


def test_gradients_are_computed_one_by_one(folder: Path) -> None:
    assert not problem(*words(folder)).vectorizes
    with pytest.raises(ConfigError, match="^network.engine: vmap cannot run model=model; use "):
        experiment_of([*words(folder), "network.engine=vmap"])


def gradient(of: Problem, step: int = 0) -> torch.Tensor:
    return of.gradient(of.start(), of.flat.fresh_buffers(), rank=1, step=step)[0]


def test_dropout_is_that_of_worker_and_step(folder: Path) -> None:
    small = problem(*words(folder))
    first = gradient(small, 1)
    for seed in (5, 6):
        torch.manual_seed(seed)
        assert torch.equal(gradient(small, 1), first)


@pytest.mark.parametrize("reads", [MEMORY, STREAM])
def test_pieces_of_a_batch_count_by_their_tokens(
    tmp_path: Path, folder: Path, reads: tuple[str, ...]
) -> None:
    model = f"model=hf:{save_gpt2(tmp_path / 'model')}"
    settings = (*words(folder, *reads, "dtype=float64"), model, f"data.tokenizer={folder}/model")
    whole, pieces = (gradient(problem(*settings, *more)) for more in ((), ("micro_batch=1",)))
    assert float((whole - pieces).abs().max()) < 1e-7 * float(whole.abs().max())


def test_a_forward_pass_may_be_cast(folder: Path, tmp_path: Path) -> None:
    model = f"model=hf:{save_gpt2(tmp_path / 'model')}"
    run = experiment_of([*words(folder), model, f"data.tokenizer={folder}/model"]).run
    full, cast = (gradient(build_problem(run, Compute(autocast=to))) for to in ("none", "bf16"))
    assert 1e-6 < float((full - cast).norm() / full.norm()) < 0.05


def test_operations_are_not_counted(folder: Path) -> None:
    assert flops_per_sample(problem(*words(folder)), 0) is None


# Weights


def test_weights_are_drawn_from_the_seed(folder: Path) -> None:
    first, same, other = (problem(*words(folder, f"seed={seed}")).start() for seed in (1, 1, 2))
    assert torch.equal(first, same) and not torch.equal(first, other)


def test_weights_are_loaded_and_tied_weights_count_once(tmp_path: Path) -> None:
    path = save_gpt2(tmp_path / "model", weights=True, vocab_size=256)
    read = (f"model=hf:{path}", "data.train_size=64", "data.block=16")
    small = problem(*read)
    # Embeddings of 256 tokens and 32 positions, a block of width 16, and the last norm.
    assert len(small.start()) == (256 + 32) * 16 + (12 * 16 * 16 + 13 * 16) + 2 * 16
    from safetensors.torch import load_file

    saved = load_file(f"{path}/model.safetensors")
    assert torch.equal(small.start()[: 256 * 16], saved["transformer.wte.weight"].flatten())
    assert not torch.equal(problem(*read, "model.pretrained=false").start(), small.start())


def test_a_llama_has_tied_weights_too(tmp_path: Path, folder: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 12}
    more = {"num_attention_heads": 2, "max_position_embeddings": 32, "tie_word_embeddings": True}
    import_hub("transformers", "model").LlamaConfig(**sizes, **more).save_pretrained(tmp_path)
    small = problem(*words(folder, f"model.path={tmp_path}", f"data.tokenizer={folder}/model"))
    assert len(small.start()) == 12 * 16 + 4 * 16 * 16 + 3 * 16 * 32 + 3 * 16
    assert float(gradient(small).norm()) > 0


def test_a_classifier_has_the_classes_of_the_images(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    more = {"intermediate_size": 32, "image_size": 8, "patch_size": 4, "num_channels": 3}
    import_hub("transformers", "model").ViTConfig(**sizes, **more).save_pretrained(tmp_path / "vit")
    vit = (f"model=hf:{tmp_path / 'vit'}", "model.pretrained=false", "batch_size=4")
    small = problem(*vit, "data=digits")
    (images,), _ = small.batch(0, 0)
    assert small.flat.module(images).shape == (4, 10)
    assert refused_model(*vit, "data=shapes", "data.train_size=64", "data.valid_size=8").startswith(
        f"model.path: model=hf:{tmp_path / 'vit'} cannot read images of 3 x 16 x 16 ("
    )


def test_weights_that_are_missing_or_not_finite_are_refused(tmp_path: Path) -> None:
    path = save_gpt2(tmp_path / "model", weights=True, vocab_size=256)
    name, file = "transformer.ln_f.bias", tmp_path / "model/model.safetensors"
    tensors = importlib.import_module("safetensors.torch")
    weights = tensors.load_file(file)
    overrides = (f"model=hf:{path}", "data=python_text", "data.block=8", "batch_size=4")
    (key,) = (key for key in weights if key.endswith("ln_f.bias"))
    tensors.save_file({**weights, key: weights[key] + math.nan}, file, {"format": "pt"})
    assert refused_model(*overrides) == (
        f"model.path: '{path}' has NaN or infinity in the weights {name}: get the model again."
    )
    del weights[key]
    tensors.save_file(weights, file, {"format": "pt"})
    assert refused_model(*overrides) == (
        f"model.path: '{path}' lacks the weights {name}: get the model again."
    )


def test_only_the_last_layer_of_a_classifier_may_be_new(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    more = {"intermediate_size": 32, "image_size": 8, "patch_size": 4, "num_channels": 3}
    transformers = import_hub("transformers", "model")
    config = transformers.ViTConfig(**sizes, **more, num_labels=3)
    path = tmp_path / "vit"
    transformers.ViTForImageClassification(config).save_pretrained(path)
    overrides = (f"model=hf:{path}", "data=digits", "batch_size=4")
    assert problem(*overrides).flat.module(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    config.patch_size = 2
    config.save_pretrained(path)
    assert refused_model(*overrides).startswith(
        f"model.path: '{path}' lacks the weights vit.embeddings."
    )


# Refusals


def refused_model(*overrides: str) -> str:
    return str(refusal(problem, *overrides))


def test_folders_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    model, text = folder / "model", folder / "text"
    small = save_gpt2(tmp_path / "small", vocab_size=9)
    for settings, sentence in (
        (
            [f"model=hf:{text}"],
            f"model.path: '{text}' has no config.json, so it is not a Hugging Face model.",
        ),
        (
            ["model=hf:./none"],
            "model.path: there is no folder './none'; write a name on the Hub without ./ in front.",
        ),
        (
            [f"model=hf:{model}"],
            f"model.path: '{model}' has no weights: use model.pretrained=false to draw them "
            "from the seed.",
        ),
        (
            words(folder, f"model.path={small}", f"data.tokenizer={model}"),
            f"data: text has 10 different tokens, but the embedding of model=hf:{small} has 9: use "
            "the tokenizer of the model, or another model.",
        ),
        (
            words(folder, "data.block=33"),
            f"data.block: 33 tokens exceed the 32 positions of model=hf:{model}.",
        ),
        (
            words(folder, "model.sha256=abc"),
            f"model.sha256: the contents of '{model}' changed: their checksum is ",
        ),
        (
            ["model=hf:" + str(model), "model.pretrained=false", "data=digits"],
            f"model.path: the model '{model}' cannot be loaded (ValueError: Unrecognized ",
        ),
    ):
        assert refused_model(*settings).startswith(sentence)


def test_code_in_a_folder_does_not_run_and_nobody_is_asked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = shutil.copytree(folder / "model", tmp_path / "model")
    (place / "conf.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    auto_map = {"AutoConfig": "conf.Own", "AutoTokenizer": ["conf.Own", None]}
    for name in ("config.json", "tokenizer_config.json"):
        (place / name).write_text(
            json.dumps({"model_type": "own", "tokenizer_class": "Own", "auto_map": auto_map})
        )
    monkeypatch.setattr(sys, "stdin", asked := StringIO("y\n" * 9))
    tokenizer = f"data.tokenizer={folder / 'model'}"
    assert refused_model(*words(folder, f"model.path={place}", tokenizer)).startswith(
        f"model.path: the model '{place}' cannot be loaded (ValueError: The repository {place} "
        "contains custom code which must be executed to correctly load the model."
    )
    with suppress(ConfigError):  # without its code, the tokenizer may be a plain one
        load_encoder(str(place))
    assert not (tmp_path / "ran").exists() and asked.tell() == 0


def test_without_the_hub_a_name_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    asked = hosts_asked_for(monkeypatch)
    assert refused_model("model=hf:org/tiny") == (
        "model.path: the model 'org/tiny' is not on this machine, which cannot reach the Hugging "
        "Face Hub: on a machine with network, hf download org/tiny --local-dir tiny; then copy the "
        "folder here and write model=hf:./tiny"
    )
    assert asked == ["127.0.0.1"]  # once: the package does not try


def test_without_the_hub_a_name_in_the_cache_is_enough(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    cached = Path(CACHE.name, "hub", "models--org--cached")
    shutil.copytree(folder / "model", cached / "snapshots" / ("1" * 40))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("1" * 40)
    cached_model, model = words(folder, "model.path=org/cached"), words(folder)
    assert len(problem(*cached_model).start()) == len(problem(*model).start())
    constants: Any = sys.modules["huggingface_hub.constants"]
    assert not constants.HF_HUB_OFFLINE


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert refused_model(f"model=hf:{folder / 'model'}", "model.pretrained=false").startswith(
        "model: hf needs transformers: pip install 'sgp-runner[hf]' ("
    )
