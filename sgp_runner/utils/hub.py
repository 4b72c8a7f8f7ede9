"""Hugging Face: its packages, its Hub, and folders with its models, tokenizers and data sets."""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.extras import install, installed
from sgp_runner.utils.files import checksum

HUB = "https://huggingface.co"
PROBE_SECONDS = 5
OFFLINE = ("huggingface_hub.constants", "datasets.config")  # modules with a constant HF_HUB_OFFLINE
# How a folder with each kind is fetched, and the setting that then names it.
FETCH = {
    "model": ("hf download", "model=hf:"),
    "tokenizer": ("hf download", "data.tokenizer="),
    "data set": ("hf download --repo-type dataset", "data=hf:"),
}


def is_folder(path: str) -> bool:
    """Return whether ``path`` is a folder or is written like one, rather than a name on the Hub."""
    return path.startswith((".", "/", "~")) or Path(path).is_dir()


def short_name(path: str) -> str:
    """Return a name on the Hub unchanged, and a folder's path as its last component."""
    return os.path.basename(os.path.abspath(path)) if path[:1] in (".", "/", "~") else path


def checked_folder(key: str, path: str, file: str = "") -> Path:
    """Return the folder at ``path``. Raises ConfigError unless it exists and has ``file``."""
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError(
            key, f"there is no folder '{path}'; write a name on the Hub without ./ in front."
        )
    if not (folder / file).exists():
        raise ConfigError(key, f"'{path}' has no {file}, so it is not a Hugging Face model.")
    return folder


def folder_hash(folder: Path, patterns: Sequence[str] = ("*",)) -> str:
    """Return the SHA-256 of the names and contents of a folder's files, except hidden files.

    patterns: only files with a name that matches one of these are included
    """
    total = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in folder.rglob(pattern)}):
        name = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            status = path.stat()
            digest = _file_hash(path.resolve(), status.st_size, status.st_mtime_ns)
            total.update(f"{name.as_posix()} {digest}\n".encode())
    return total.hexdigest()


@functools.lru_cache(maxsize=4096)  # the runs of a sweep read the same files
def _file_hash(path: Path, size: int, changed: int) -> str:
    return checksum(path)


def import_hub(package: str, key: str) -> Any:
    """Import ``transformers`` or ``datasets``, silenced except for errors.

    Raises ConfigError, for ``key``, if the package is not installed.
    """
    from sgp_runner.utils.torchvision_import import import_torchvision

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # otherwise a fork prints a warning
    if installed("torchvision"):
        import_torchvision(key)  # with the workaround, before transformers imports it
    try:
        module = importlib.import_module(package)
        importlib.import_module(f"{package}.utils.logging").set_verbosity_error()
        importlib.import_module("huggingface_hub.utils").disable_progress_bars()
    except ImportError as error:
        raise ConfigError(key, f"hf needs {package}: {install('hf')} ({error}).") from error
    if package == "datasets":
        module.disable_progress_bars()
    else:
        module.utils.logging.disable_progress_bar()
    return module


def reaches_hub() -> bool:
    """Return whether the Hub is reachable; the packages would keep trying for half a minute."""
    try:
        urlopen(Request(os.environ.get("HF_ENDPOINT", HUB), method="HEAD"), timeout=PROBE_SECONDS)
    except HTTPError:
        return True
    except (OSError, ValueError):
        return False
    return True


@contextmanager
def loading(key: str, path: str, kind: str) -> Iterator[None]:
    """Convert errors while loading a ``kind`` of `FETCH` by name or folder to ConfigError.

    Without the Hub, a name is looked up in the cache of this machine only.
    """
    modules: list[Any] = [sys.modules[name] for name in OFFLINE if name in sys.modules]
    before = [module.HF_HUB_OFFLINE for module in modules]
    offline = not is_folder(path) and (any(before) or not reaches_hub())
    try:
        for module in modules:
            module.HF_HUB_OFFLINE = module.HF_HUB_OFFLINE or offline
        yield
    except ConfigError:
        raise
    except Exception as error:
        command, setting = FETCH[kind]
        name = path.rpartition("/")[2]
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ConfigError(
            key,
            f"the {kind} '{path}' is not on this machine, which cannot reach the Hugging Face Hub: "
            f"on a machine with network, {command} {path} --local-dir {name}; "
            f"then copy the folder here and write {setting}./{name}"
            if offline
            else f"the {kind} '{path}' cannot be loaded "
            f"({' '.join([type(error).__name__ + ':', *lines[:1]])}).",
        ) from error
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
