"""Completion of older configurations with settings that were introduced later."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sgp_runner.config.schema import is_part, join

Settings = Mapping[str, Any]


def completed(configs: Sequence[Settings]) -> list[Settings]:
    """Add to each configuration the settings that came after it.

    They come from the newer configurations that agree with it in everything else, if these agree
    about them.
    """
    texts = [json.dumps(config, sort_keys=True, default=str) for config in configs]
    different = dict(zip(texts, configs, strict=True))
    completions = {
        text: completion(config, list(different.values())) for text, config in different.items()
    }
    return [completions[text] for text in texts]


def completion(config: Settings, known: Sequence[Settings]) -> Settings:
    newer = [other for other in known if other is not config and extends(other, config)]
    newest = [
        one for one in newer if not any(other is not one and extends(other, one) for other in newer)
    ]
    return newest[0] if len(newest) == 1 else config


def extends(newer: Settings, older: Settings, key: str = "") -> bool:
    """Return whether the two differ only in settings that ``older`` lacks.

    A mapping that is itself a value must be equal: no key of it came later.
    """
    for name, value in older.items():
        if name not in newer:
            return False
        inner = join(key, name)
        if is_part(inner) and isinstance(value, Mapping) and isinstance(newer[name], Mapping):
            if not extends(newer[name], value, inner):
                return False
        elif newer[name] != value:
            return False
    return True
