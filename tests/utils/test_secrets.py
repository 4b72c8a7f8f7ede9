"""Secrets of the environment, URLs and git stay out of all that a run writes or says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT

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
# Names of 26 more, whose values are the names behind `PLANTED`.
NAMES = [
    *("PGPASSWORD", "MYSQL_PWD", "SSHPASS", "GITHUB_PAT", "AUTH", "BEARER", "SMTP_PASSPHRASE"),
    *("DOCKER_AUTH_CONFIG", "ENCRYPTION_SALT", "DB_PASS", "REDISCLI_AUTH", "NPM_AUTH_TOKEN"),
    *("OPENAI_APIKEY", "TOKEN_2", "CLIENT_SECRET", "SECRET_KEY_BASE", "GIT_CREDENTIALS", "JWT"),
    *("SESSION_COOKIE", "SUDO_PASSWD", "KEY_PASSCODE", "DBPWD", "OAUTH2", "API_KEYS", "pat"),
    "npm_config__authToken",
]
SGP_REPORT = str(Path(sys.executable).with_name("sgp-report"))
TINY = ["model=mlp", "nodes=2", "epochs=0.2", "checkpoint.every_steps=1", "checkpoint.keep=9"]


@pytest.fixture(autouse=True)
def planted(in_an_empty_folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_SERVICE", raising=False)  # of W&B in another test of this process
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for name in NAMES:
        monkeypatch.setenv(name, PLANTED + name)


def where_planted(folder: Path) -> list[str]:
    """The files below that hold a planted secret."""
    assert any(path.suffix == ".jsonl" for path in folder.rglob("*"))
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and PLANTED.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize(
    ("network", "kept"),
    [
        ("sim", "checkpoints/step-*/*.pt"),
        pytest.param("gloo", "checkpoints/step-*/*.pt", marks=pytest.mark.slow),
        ("gloo record=true checkpoint.every_steps=null", "recording-1.jsonl"),
    ],
)
def test_no_secret_is_written_or_printed(network: str, kept: str, tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (
        ["init", "-q"],
        ["commit", "-q", "--allow-empty", "-m", "first"],
        ["remote", "add", "origin", f"https://user:{PLANTED}@example.org/x.git"],
    ):
        subprocess.run([*git, *arguments], check=True)
    code = (  # checkpoints stay
        "import sys; from sgp_runner.assembly import execution; from sgp_runner.cli.main import "
        "main; execution.shutil.rmtree = lambda *a, **b: None; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *TINY, *f"network={network}".split()],
        env={**os.environ, "WANDB_MODE": "offline"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert list((tmp_path / "results").glob(f"runs/*/{kept}"))
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
        ("logger.group=postgres://user:what/whatever@host/db", "logger.group"),
        ("logger.group=user:what/whatever@host/db", "logger.group"),
        ("logger.group=user:what@whatever@host", "logger.group"),
        ("logger.group='user=x password=whatever'", "logger.group"),
        ("logger.group='Bearer whatever0123456789'", "logger.group"),
        ("logger.group='-----BEGIN RSA PRIVATE KEY-----\\nwhatever'", "logger.group"),
        ("logger.group=sk-proj-whatever0123456789abcdef", "logger.group"),
        ("logger.group=github_pat_0123456789abcdefghij_whatever", "logger.group"),
        ("logger.group=glpat-whatever-0123456789", "logger.group"),
        ("logger.group=hf_0123456789abcdefghijwhatever", "logger.group"),
        ("logger.group=xoxb-0123456789-whatever", "logger.group"),
        ("logger.group=eyJhbGciOiJIUzI1NiJ9.eyJ3aGF0ZXZlciI6MX0.whatever", "logger.group"),
        *((f"logger.group=${{oc.env:{name}}}", "logger.group") for name in NAMES),
    ],
)
def test_a_setting_that_holds_a_secret_is_refused(
    word: str, key: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for arguments in ([word], ["-m", word, "nodes=2,4"]):
        assert main(arguments) == 2
        out, error = capfd.readouterr()
        assert error.count("\n") == 1 and error.startswith(
            f"sgp-run: {key}: contains a secret, but settings are recorded: leave it to the "
            "environment or a netrc file."
        )
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
    with pytest.raises(ConfigError, match=r"^a\.b: contains a secret"):
        refuse_secrets({"a": {"b": ["c", f"{PLANTED}aws"]}}, "")


def test_a_secret_is_refused_however_it_gets_into_the_settings(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSHPASS", "short")
    preset = tmp_path / "mine" / "experiment" / "p.yaml"
    preset.parent.mkdir(parents=True)
    for text, key in {
        "logger: {group: '${oc.env:SSHPASS}'}": "logger.group",
        "nodes: ${oc.env:GITHUB_PAT}": "nodes",
        f"cluster: {{compute: {{step_seconds: {{{PLANTED}aws: 1.0}}}}}}": (
            "cluster.compute.step_seconds"
        ),
    }.items():
        preset.write_text(f"# @package _global_\n{text}\n")
        for more in ([], ["--cfg", "job", "--resolve"], ["-m", "seed=1,2"]):
            assert main(["--config-dir=mine", "experiment=p", *more]) == 2
            out, error = capfd.readouterr()
            assert error.startswith(f"sgp-run: {key}: contains a secret") and out == ""
            assert PLANTED not in error and "short" not in error
    assert main(["calibrate", "name=x", "logger.group=ghp_0123456789abcdefghijABCDEF"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "path", "patience", "pattern", "author", "authors", "PWD", "OLDPWD", "COMPASS"),
        *("XAUTHORITY", "SSH_AUTH_SOCK", "GIT_AUTHOR_NAME", "PYTHONPATH", "KEYBOARD", "SALTED"),
        *("TOKENIZERS_PARALLELISM", "MAX_TOKENS", "POSTGRES_HOST_AUTH_METHOD", "INIT_CWD"),
    ],
)
def test_an_innocent_variable_is_no_secret(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "innocent-value")
    refuse_secrets({"a": "innocent-value", "b": f"${{oc.env:{name}}}"}, "")


@pytest.mark.parametrize(
    "text",
    [
        "https://example.org:8080/a@b and git@example.org:group/repo.git",
        "mailto:somebody@example.org, python:3.11@sha256:0123, 10.0.0.1:8080/x@y",
        "hf_transformers_wikitext_103_v1 sk-learn-digits-baseline-run-2024",
        "max_tokens=3584 algo.topology@x=ring path=a patience=3 pattern=b author=c",
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    ],
)
def test_innocent_text_stays(text: str) -> None:
    assert redacted(text) == text


def test_nothing_that_is_stored_here_is_taken_for_a_secret() -> None:
    paths = [
        path
        for folder in ("configs", "results")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".yaml", ".json", ".md", ".csv")
    ]
    assert len(paths) > 100
    for path in paths:
        refuse_secrets(path.read_text(encoding="utf-8").splitlines(), str(path))


def test_masking_leaves_no_part_of_a_secret() -> None:
    texts = {
        "postgres://user:p@ss/w:rd@host:5432/db": "postgres://***@host:5432/db",
        "to user:pa/ss@host/db": "to ***@host/db",
        "redis://:word@host:6379/0": "redis://***@host:6379/0",
        "user=x password = 'word' host=y": "user=x password = '***' host=y",
        "https://x/?api_key=word&page=1": "https://x/?api_key=***&page=1",
        "-----BEGIN PRIVATE KEY-----\nword\n-----END PRIVATE KEY-----\nrest": "***\nrest",
        "-----BEGIN EC PRIVATE KEY-----\nwo": "***",
        "sk-ant-api03-0123456789abcdefghij-wo_rd": "***",
    }
    assert {text: redacted(text) for text in texts} == texts
    assert [redacted(text) for text in texts.values()] == [*texts.values()]
