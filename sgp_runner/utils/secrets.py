"""Secrets stay out of the files of a run: settings with one are refused, other text is masked.

A secret is the value of an environment variable named like one (``WANDB_API_KEY``,
``AWS_SECRET_ACCESS_KEY``), the user part of a URL, or a word in the format of a well-known
service's tokens.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from sgp_runner.utils.errors import ConfigError

NAME = re.compile(
    r"(^|_)(\w*KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASS|CREDENTIALS?)(_(?!PATH|FILE|DIR)\w+)?$",
    re.IGNORECASE,
)
LENGTH = 8  # shorter values would match innocent words
URL_USER = re.compile(r"(?<=://)[^/\s@]+(?=@)")
TOKEN = re.compile(
    r"\b(gh[oprsu]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_\w{20,}|sk-[\w-]{20,}"
    r"|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|wandb_v\d_\w{16,})"
)
MASK = "***"


def secrets() -> Iterator[str]:
    """The secret values of the environment, longest first."""
    named = {
        value for name, value in os.environ.items() if NAME.search(name) and len(value) >= LENGTH
    }
    yield from sorted(named, key=len, reverse=True)


def redacted(text: str) -> str:
    """``text`` without secrets."""
    for secret in secrets():
        text = text.replace(secret, MASK)
    return TOKEN.sub(MASK, URL_USER.sub(MASK, text))


def refuse_secrets(value: object, key: str) -> None:
    """Raise ConfigError if a setting holds a secret: settings are recorded."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            refuse_secrets(each, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for each in value:
            refuse_secrets(each, key)
    elif isinstance(value, str) and redacted(value) != value:
        raise ConfigError(
            redacted(key),
            "it holds a secret, and settings are recorded: "
            "leave it to the environment or a netrc file.",
        )
