"""Keep secrets out of the files of a run: reject settings with a secret, and mask other text.

A secret is the value of an environment variable with a name such as ``WANDB_API_KEY`` or
``PGPASSWORD``, the user part of a URL, the text after ``password=``, or a word in the format of a
well-known service's tokens. Random words do not count as secrets, because digests and seeds look
random too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from sgp_runner.utils.errors import ConfigError

# PWD and OLDPWD are folders. The last part of a name may say that the value is no secret itself.
NAME = re.compile(
    r"(?!(OLD)?PWD$)(\w*(KEYS?|TOKEN|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|PASSCODE|CREDENTIALS?"
    r"|CREDS|(?<!BY)(?<!COM)PASS|PWD)|(\w*_)?(PAT|O?AUTH2?|BEARER|JWT|SALT|COOKIE))"
    r"(_(?!PATH|FILE|DIR|SOCK|METHOD|TYPE)\w+)?",
    re.IGNORECASE,
)
LENGTH = 8  # shorter values would match innocent words
FROM_ENVIRONMENT = re.compile(r"\$\{\s*oc\.env\s*:\s*['\"]?(\w+)")
# What is masked, after a first group that stays.
PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        # A password may hold a / or an @; a port ends before the first /.
        r"(://)[^/\s@:]+(?=@)",
        r"(://)[^/\s@:]*:(?!\d{1,5}/)\S+(?=@)",
        r"((?<![\w.+/@-]))(?!mailto:)[\w.+-]+:(?!//|\d{1,5}/)\S+(?=@(?!sha256:)[\w.[-])",
        r"((?i:password|passwd|passphrase|pwd|secret|token|api_?key|access_?key)"
        r"(?:['\"]?\s*=\s*|:(?=\S)|['\"]\s*:\s*)['\"]?)[^\s'\"&;,]+",
        r"(\bBearer\s+)[\w.~+/-]{16,}",
        r"()-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
        r"(\b)(?:gh[oprsu]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}"
        r"|sk-(?:\w+-)*?\w{20,}[\w-]*|[rs]k_(?:live|test)_\w{16,}|xox[a-z]-[\w-]{10,}"
        r"|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{35}|npm_[A-Za-z0-9]{36}|pypi-[\w-]{32,}"
        r"|wandb_v\d_\w{16,}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)",
    )
)
MASK = "***"


def redacted(text: str) -> str:
    """Return ``text`` with its secrets masked."""
    secrets = {
        value for name, value in os.environ.items() if NAME.fullmatch(name) and len(value) >= LENGTH
    }
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    for pattern in PATTERNS:
        text = pattern.sub(rf"\g<1>{MASK}", text)
    return text


def holds_secret(text: str) -> bool:
    """Return whether ``text`` contains a secret, or reads a variable that is named like one."""
    return redacted(text) != text or any(map(NAME.fullmatch, FROM_ENVIRONMENT.findall(text)))


def refuse_secrets(value: object, key: str) -> None:
    """Raise ConfigError if a setting contains a secret, because settings are recorded."""
    texts = [*texts_in(value, key)]
    # One search in all of them together takes a fraction of the time of a search in each.
    if not holds_secret("\n".join(text for _, text in texts)):
        return
    for where, text in texts:
        if holds_secret(text):
            raise ConfigError(
                redacted(where),
                "contains a secret, but settings are recorded: "
                "leave it to the environment or a netrc file.",
            )


def texts_in(value: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, text) for each name and each string in ``value``."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield key, str(name)
            yield from texts_in(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts_in(inner, key)
    elif isinstance(value, str):
        yield key, value
