"""Secrets of the environment, URLs and git stay out of all that a run writes or says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sgp_runner.cli.main import main
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.secrets import redacted, refuse_secrets

PLANTED = "pLaNtEd"
ENVIRONMENT = {
    "WANDB_API_KEY": f"{PLANTED}0123456789012345678901234567890123",
    "AWS_SECRET_ACCESS_KEY": f"{PLANTED}aws",
    "HF_TOKEN": f"{PLANTED}hf",
    "DATABASE_PASSWORD": f"{PLANTED}word",
}
SGP_REPORT = str(Path(sys.executable).with_name("sgp-report"))
TINY = ["model=mlp", "nodes=2", "epochs=0.2", "checkpoint.every_steps=1", "checkpoint.keep=9"]


@pytest.fixture(autouse=True)
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_SERVICE", raising=False)  # of W&B in another test of this process
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def where_planted(folder: Path) -> list[str]:
    """The files below that hold a planted secret."""
    assert any(path.suffix == ".jsonl" for path in folder.rglob("*"))
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and PLANTED.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize("network", ["sim", "gloo"])
def test_no_secret_is_written_or_printed(network: str, tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    subprocess.run(
        [*git, "remote", "add", "origin", f"https://user:{PLANTED}@example.org/x.git"], check=True
    )
    code = (
        "import sys; from sgp_runner.session import execution; from sgp_runner.cli.main import "
        "main; "
    )
    code += "execution.shutil.rmtree = lambda *a, **b: None; sys.exit(main())"
    command = [sys.executable, "-c", code, *TINY, f"network={network}"]  # checkpoints stay
    done = subprocess.run(
        command,
        env={**os.environ, "WANDB_MODE": "offline"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert list((tmp_path / "results").glob("runs/*/checkpoints/step-*/*.pt"))
    assert list((tmp_path / "results").glob("runs/*/wandb/offline-run-*/*.wandb"))
    said = done.stdout + done.stderr
    if network == "sim":  # a report on the other would be no different
        reported = subprocess.run(
            [SGP_REPORT, "results/runs"], capture_output=True, text=True, check=True
        )
        said += reported.stdout + reported.stderr
        assert (tmp_path / "results/report/index.html").exists()
    assert where_planted(tmp_path / "results") == []
    assert PLANTED not in said


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("name=pLaNtEdaws", "name"),
        ("logger.entity=${oc.env:HF_TOKEN}", "logger.entity"),
        ("logger.project=my-pLaNtEdhf-project", "logger.project"),
        ("results=https://user:whatever@example.org/x", "results"),
        ("results=ftp://user@example.org/x", "results"),
        ("logger.group=ghp_0123456789abcdefghijABCDEFGHIJ", "logger.group"),
        ("optim.lr=pLaNtEdword", "optim.lr"),
        ("data.pLaNtEdword=3", "data.***"),
        ("--config-dir=/tmp/pLaNtEdword", "--config-dir"),
        ("https://user:whatever@example.org", "https://***@example.org"),
    ],
)
def test_a_setting_that_holds_a_secret_is_refused(
    word: str, key: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for words in ([word], ["-m", word, "nodes=2,4"]):
        assert main(words) == 2
        out, error = capfd.readouterr()
        sentence = (
            "it holds a secret, and settings are recorded: leave it to the environment or a netrc "
            "file."
        )
        assert error.startswith(f"sgp-run: {key}: {sentence}") and error.count("\n") == 1
        assert PLANTED not in out + error and "whatever" not in error and "ghp_" not in error
    assert list(tmp_path.iterdir()) == []


def test_what_is_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORT_TOKEN", "abc")
    monkeypatch.setenv("TOKEN_PATH", "/home/somebody")
    monkeypatch.setenv("KEYBOARD", "some-layout")
    innocent = (
        "abc in /home/somebody with some-layout at https://example.org/a@b, user@example.org, "
        "hf_short"
    )
    assert redacted(innocent) == innocent
    assert (
        redacted(f"key {PLANTED}aws, https://me:it@host/x and AKIA0123456789ABCDEF")
        == "key ***, https://***@host/x and ***"
    )
    refuse_secrets({"a": [1, 2.5, None, "b"]}, "")
    with pytest.raises(ConfigError, match=r"^a\.b: it holds a secret"):
        refuse_secrets({"a": {"b": ["c", f"{PLANTED}aws"]}}, "")
