"""Adapters step in the real loops of other libraries, with the numbers of a plain loop."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.paths import RANKS, ROOT
from safetensors.torch import load_file

from sgp_runner.utils.errors import ConfigError

LIBRARIES = {"accelerate": "accelerate", "trainer": "transformers", "lightning": "lightning"}
VARIANTS = ("local_sgd", "diloco")
HALF, BATCH = 10, 4
FOUR = pytest.mark.slow


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((library, size), id=f"{library}-{size}", marks=[FOUR] if size == 4 else [])
        for size in (2, 4)
        for library in LIBRARIES
    ],
)
def ended(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, int, Path]:
    """A library, the number of ranks, and the folder that its loops have left."""
    library, size = request.param
    for module in {LIBRARIES[library], "accelerate" if library == "trainer" else "torch"}:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}: pip install 'sgp-runner[{library}]'")
    folder = tmp_path_factory.mktemp(f"{library}{size}")
    if size == 2:
        write_script(library, folder)
    command = [sys.executable, str(RANKS / "host_rank.py"), library, str(folder), str(size)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    (folder / "stderr").write_text(done.stderr)
    errors = [path.read_text() for path in folder.glob("error *")]
    assert (done.returncode, errors) == (0, [])
    return library, size, folder


def write_script(library: str, folder: Path) -> None:
    """Write the script of the library's page, with the lines that its page adds."""
    text = (ROOT / f"docs/{library}.md").read_text()
    files = dict(re.findall(r"^`([\w.]+)`:\n\n```\w+\n([\s\S]*?)^```$", text, re.MULTILINE))
    for name, content in files.items():
        (folder / name).write_text(content)
    diff = files["averager.diff"].splitlines()
    assert sum(line.startswith("+") for line in diff[2:]) <= 5
    command = ["git", "apply", "--unidiff-zero", "averager.diff"]
    subprocess.run(command, cwd=folder, check=True)


def results(ended: tuple[str, int, Path], name: str) -> list[dict[str, Any]]:
    _, size, folder = ended
    return [torch.load(folder / f"{name}_{rank}.pt", weights_only=True) for rank in range(size)]


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_are_those_of_a_plain_loop(ended: tuple[str, int, Path], name: str) -> None:
    """The plain loop is compared with sgp-run in tests/distributed/test_averager.py."""
    ranks = results(ended, name)
    for rank in ranks:
        assert float((rank["params"] - rank["plain"]).abs().max()) < 1e-10
    assert float((ranks[0]["half"] - ranks[1]["half"]).abs().max()) > 1e-4


@pytest.mark.parametrize("name", VARIANTS)
def test_a_loop_continues_exactly_from_its_checkpoint(
    ended: tuple[str, int, Path], name: str
) -> None:
    for rank in results(ended, name):
        assert torch.equal(rank["params"], rank["resumed"])


def mean_net(ended: tuple[str, int, Path], name: str) -> torch.nn.Module:
    """The network with the mean parameters of the plain loops at the checkpoint."""
    model: torch.nn.Module = host_rank().Net().eval()
    ranks = results(ended, name)
    mean = ranks[0]["half_mean"]
    if name == "local_sgd":
        expected = torch.stack([rank["half"] for rank in ranks]).mean(0)
        assert float((mean - expected).abs().max()) < 1e-10
    torch.nn.utils.vector_to_parameters(mean, model.parameters())
    return model


def host_rank() -> Any:
    """The program of the ranks."""
    spec = importlib.util.spec_from_file_location("host_rank", RANKS / "host_rank.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def checkpoint_of(library: str, folder: Path) -> dict[str, torch.Tensor]:
    """The model in the checkpoint."""
    match library:
        case "accelerate":
            return load_file(folder / "checkpoint/model.safetensors")
        case "trainer":
            return load_file(folder / f"trainer/checkpoint-{HALF}/model.safetensors")
    saved = torch.load(folder / f"lightning/step={HALF}.ckpt", weights_only=True)["state_dict"]
    return {key.removeprefix("net."): value for key, value in saved.items()}


@pytest.mark.parametrize("name", VARIANTS)
def test_evaluations_and_checkpoints_are_of_the_mean_model(
    ended: tuple[str, int, Path], name: str
) -> None:
    library, size, folder = ended
    model = mean_net(ended, name)
    saved = checkpoint_of(library, folder / name)
    for key, value in model.named_parameters():
        assert float((saved[key] - value).detach().abs().max()) < 1e-10
    model.load_state_dict(saved)  # with the mean statistics of BatchNorm
    points = host_rank().valid_data(size)
    with torch.no_grad():
        loss = float(model(points.x, points.labels)["loss"])
    for rank in results(ended, name):
        assert rank["valid"][0] == pytest.approx(loss, abs=1e-6)  # logged in float32


def test_progress_bars_and_loggers_work(ended: tuple[str, int, Path]) -> None:
    library, _, folder = ended
    if library == "trainer":
        (rank, *_) = results(ended, "diloco")
        assert len(rank["losses"]) == 4 and rank["losses"][-1] < rank["losses"][0]
        assert "20/20" in (folder / "stderr").read_text()
    if library == "lightning":
        (log,) = (folder / "diloco/logs/lightning_logs/version_0").glob("metrics.csv")
        header, *lines = log.read_text().splitlines()
        assert {"loss", "valid"} <= set(header.split(",")) and len(lines) >= 4


def test_the_trainer_ends_with_its_best_model(ended: tuple[str, int, Path]) -> None:
    library, _, folder = ended
    if library != "trainer":
        pytest.skip("only Trainer loads its best model")
    (rank, *others) = results(ended, "diloco")
    best = load_file(folder / "diloco/trainer" / rank["best"] / "model.safetensors")
    for end in (rank["end"], *(other["end"] for other in others)):
        assert all(torch.equal(end[key], best[key]) for key in best)


def test_a_lost_rank_ends_the_others_with_a_sentence(ended: tuple[str, int, Path]) -> None:
    _, size, folder = ended
    for rank in {*range(size)} - {1}:
        text = (folder / f"lost_{rank}").read_text()
        sentences = (
            r"LostConnection: rank \d lost (its|a) connection [\w -]+",
            r"RankLost: rank \d lost a connection in an all-reduce in step \d: another process has "
            "ended, and its message states the cause; continue all ranks from the states that they "
            r"have saved\.",
        )
        assert re.fullmatch("|".join(sentences), text), text


def test_a_rank_that_hangs_ends_all_with_one_sentence(ended: tuple[str, int, Path]) -> None:
    _, size, folder = ended
    found = [(folder / f"hung_{rank}").read_text() for rank in range(size)]
    sentence = (
        r"StallTimeout: rank 1 did not arrive within 10 ms \(timeout_seconds\), so fix the cause "
        r"or allow more: rank 1 has begun 5 steps and is at act \(host_rank\.py, line \d+\); "
        r"rank 0 has begun 6 steps and waits for all-reduce 1 for \d\.\d s\."
    )
    for text in found if size == 2 else ():
        assert re.fullmatch(sentence, text), text


def test_the_script_of_the_page_learns(ended: tuple[str, int, Path]) -> None:
    _, size, folder = ended
    if size != 2:
        pytest.skip("the page starts two ranks")
    printed = (folder / "printed_0").read_text()
    (loss,) = re.findall(r"validation loss (\d\.\d\d)", printed)
    assert float(loss) < 3.3, printed  # 4.5 before training


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_absent_library_is_named_with_its_command(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"sgp_runner.hosts.with_{library}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    for name in [*sys.modules]:
        if name.partition(".")[0] == LIBRARIES[library]:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, LIBRARIES[library], None)
    with pytest.raises(ConfigError) as error:
        importlib.import_module(module)
    assert str(error.value) == (
        f"{library}: {LIBRARIES[library]} is not installed: pip install 'sgp-runner[{library}]'."
    )
