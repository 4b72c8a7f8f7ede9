"""Folders of Hugging Face: tiny models, a tokenizer of words, and data sets.

The packages keep their caches in a folder of this process.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

CACHE = tempfile.TemporaryDirectory(prefix="hf-home-")
os.environ["HF_HOME"] = CACHE.name  # read when the packages are imported

WORDS = ("a", "b", "c", "d", "e", "f", "g", "h")
END, UNKNOWN = 0, 1  # tokens; word i is token 2 + i
VOCABULARY = {"<end>": END, "<unknown>": UNKNOWN, **{word: 2 + i for i, word in enumerate(WORDS)}}


def save_tokenizer(folder: Path) -> str:
    """Save a tokenizer of words with 10 tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    from sgp_runner.utils.hub import import_hub

    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    kind = import_hub("transformers", "model").PreTrainedTokenizerFast
    special = {"eos_token": "<end>", "unk_token": "<unknown>"}
    kind(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return str(folder)


def save_gpt2(folder: Path, weights: bool = False, dropout: float = 0.0, **more: int) -> str:
    """Save the configuration of a GPT-2 with 12 tokens and 32 positions, and its weights."""
    from sgp_runner.utils.hub import import_hub

    transformers = import_hub("transformers", "model")
    sizes = {"vocab_size": 12, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2, **more}
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    config = transformers.GPT2Config(**sizes, **drops, bos_token_id=END, eos_token_id=END)
    (transformers.GPT2LMHeadModel(config) if weights else config).save_pretrained(folder)
    return str(folder)


def texts(count: int) -> list[str]:
    """Return texts of 3 to 9 words that follow each other in the alphabet, from every word on."""
    return [
        " ".join(WORDS[(number * 5 + i) % 8] for i in range(3 + number % 7))
        for number in range(count)
    ]


def save_json(folder: Path, rows: Sequence[str], name: str = "train") -> str:
    """Save a split as a file with one JSON object per line."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"text": text, "number": i}) + "\n" for i, text in enumerate(rows)]
    (folder / f"{name}.jsonl").write_text("".join(lines))
    return str(folder)


def hosts_asked_for(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each host that this process is about to connect to."""
    asked, find = list[str](), socket.getaddrinfo

    def noted(host: str, *arguments: Any, **named: Any) -> Any:
        asked.append(host)
        return find(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", noted)
    return asked
