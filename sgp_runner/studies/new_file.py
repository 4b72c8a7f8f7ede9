"""The file of a new study, created from command-line arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import yaml

from sgp_runner.studies.study_file import LADDER, OWN, RATE
from sgp_runner.utils.errors import ConfigError

ALGO = "algo"
CLUSTER = "cluster"
BASELINE = "ar_sgd"
TUNED = "tune."
COMMENTS = {
    "arms": "a name, and the settings in which it differs",
    "baseline": "the others are compared with it",
    "primary": "its comparison is tested alone, the others by Holm's method",
    "tune": "the same rule and the same budget of runs for each arm",
    "seeds": "runs of each arm that decide; paired by seed",
    "matters": "the smallest difference of the first measure that matters",
    "clusters": "the first is that of the primary comparison",
    "measures": "the first decides",
}


def content_of(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the contents of the file.

    Multiple algorithms become the arms, multiple clusters the clusters, and multiple values of any
    other setting a search. ``budget=0``: nothing is searched.
    """
    settings = dict(map(key_and_value, overrides))
    algorithms = values_of(settings.pop(ALGO, ""))
    if not algorithms:
        raise ConfigError(ALGO, "give at least one algorithm, such as algo=sgp,ar_sgd.")
    names = [re.sub(r"^.*/|\.py$", "", name) for name in algorithms]
    baseline = BASELINE if BASELINE in names[1:] else names[-1]
    question = f"Is {names[0]} better than {baseline}?"
    if len(names) == 1:
        question = f"How good is {names[0]}?"
    content: dict[str, Any] = {"question": settings.pop("question", question)}
    tune: dict[str, Any] = {} if settings.get(f"{TUNED}rule") == "tpe" else {RATE: LADDER}
    budget = settings.pop("budget", "8")
    machines = machines_in(settings)
    for key, value in settings.items():
        values = values_of(value)
        if key in machines:
            continue
        if key == "measures":
            content[key] = values
        elif key.removeprefix(TUNED) != key or (key not in OWN and len(values) > 1):
            listed = [scalar(part) for part in values]
            tune[key.removeprefix(TUNED)] = listed if len(values) > 1 else value
        else:
            content[key] = scalar(value)
    content["arms"] = {
        name: f"{ALGO}={choice}" for name, choice in zip(names, algorithms, strict=True)
    }
    if len(names) > 1:
        content.setdefault("baseline", baseline)
        content.setdefault("primary", names[0])
    if budget != "0":
        content["tune"] = {**tune, "budget": scalar(budget)}
    if machines:
        content["clusters"] = [
            " ".join(combination) for combination in product(*cluster_values(machines))
        ]
    content.setdefault("measures", ["loss", "time"] if machines else ["loss"])
    if "matters" not in content:
        content.setdefault("seeds", 5)
    return content


def key_and_value(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise ConfigError(word, "this is not a setting; write key=value, such as seeds=5.")
    return key, value


def values_of(text: str) -> list[str]:
    """Split a value at commas that are not within brackets."""
    return [part for part in re.split(r",(?![^(\[{]*[)\]}])", text) if part]


def machines_in(settings: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the cluster's settings, its name first, if any of them has several values."""
    machines = {
        key: values_of(settings[key])
        for key in sorted(settings)
        if key.partition(".")[0] == CLUSTER
    }
    return machines if any(len(values) > 1 for values in machines.values()) else {}


def cluster_values(machines: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the values of each setting of the machines, as in the list of clusters."""
    return [
        [*values]
        if key == CLUSTER
        else [f"{key.removeprefix(f'{CLUSTER}.')}={value}" for value in values]
        for key, values in machines.items()
    ]


def scalar(text: str) -> Any:
    """Return a number or a Boolean if ``text`` is one, else the text itself."""
    value = yaml.safe_load(text)
    return value if isinstance(value, int | float | bool) else text


def text_of(content: Mapping[str, Any]) -> str:
    """Return the YAML of a study, with a comment on each key of studies."""
    ordered = sorted(content, key=lambda key: OWN.index(key) if key in OWN else 1)
    lines = []
    for key in ordered:
        text = yaml.safe_dump({key: content[key]}, sort_keys=False, allow_unicode=True, width=200)
        first, _, rest = text.rstrip("\n").partition("\n")
        comment = f"  # {COMMENTS[key]}" if key in COMMENTS else ""
        lines.append(f"{first}{comment}" + (f"\n{rest}" if rest else ""))
    return "\n".join(lines) + "\n"
