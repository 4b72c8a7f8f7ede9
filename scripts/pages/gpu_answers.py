"""Table of the answers of ``scripts/gpu_check.sh`` on the most recent machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpu_parts import PARTS
from pages.settings import table

LINES = Path(__file__).resolve().parents[2] / "results" / "gpu_check.jsonl"


def table_of_answers(_: str, lines: Path = LINES) -> str:
    """Return a row per part; without results of a machine, the answers are empty."""
    texts = lines.read_text(encoding="utf-8").splitlines() if lines.exists() else []
    answers: dict[str, dict[str, Any]] = {line["part"]: line for line in map(json.loads, texts)}
    gpus = answers.get("machine", {}).get("seen", {}).get("gpus", [])
    where = ", ".join(sorted({gpu["name"] for gpu in gpus}))
    head = f"On {where}:" if where else "No GPU has answered yet."
    rows = [
        (f"`{name}`", part.question, answers.get(name, {}).get("answer", ""))
        for name, part in PARTS.items()
    ]
    return f"{head}\n\n{table(rows, ('part', 'question', 'answer'))}"
