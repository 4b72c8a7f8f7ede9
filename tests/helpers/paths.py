"""Folders of the project, and of the programs that tests start as ranks."""

from __future__ import annotations

from pathlib import Path

HELPERS = Path(__file__).resolve().parent
RANKS = HELPERS / "ranks"
ROOT = HELPERS.parents[1]
