"""Run folders as data frames, with unfinished runs; damaged runs are omitted, with a reason.

``table`` has a row for each run, in the order of the folders: ``run folder state kind algorithm
model data nodes network seed epochs batch_size clock server label metric quality low high averaged
time_s steps ms_per_iteration ms_per_iteration_fastest bytes_per_node hours samples_per_s
tokens_per_s flops_per_s mfu waiting_share row fitted commit dirty settings``. ``quality`` is the
mean over the workers' models; ``low`` and ``high`` are the range over these models. With a server
all three describe the server's model; with ``eval_workers=false``, the averaged model. ``fitted``
is true if the cluster profile of the run was fitted to the published time of its row. ``settings``
maps dotted keys of the configuration to values.

``curves`` has a row for each run and evaluated epoch: ``folder epoch time_s fastest_s bytes quality
low high averaged consensus``. ``consensus`` is the consensus distance of the workers; NaN if
unknown. ``fastest_s`` is ``time_s`` at the highest rate of the links; NaN if they have one rate.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sgp_runner.config.experiment import (
    FORMAT,
    VERSIONS,
    flat,
    from_stored,
    other_version,
    settings_of,
    version_of,
)
from sgp_runner.config.schema import is_part, join
from sgp_runner.recording.divergence import FILE
from sgp_runner.recording.recorder import read_metrics, read_summary
from sgp_runner.report.read.run_folders import left_out, run_folders
from sgp_runner.report.read.validate import (
    CONSENSUS,
    COSTS,
    FACTS,
    MAX_NAME_LENGTH,
    Damaged,
    check_facts,
    check_settings,
    checked,
    is_name,
)
from sgp_runner.utils.errors import ConfigError, printable
from sgp_runner.utils.reading import read_json, read_yaml
from sgp_runner.utils.units import number

REAL, TRAINED, REHEARSAL = "real", "trained", "rehearsal"
TIMING, PUBLISHED = "timing only", "published"
FINISHED, UNFINISHED, RETIMED, DIVERGED = "finished", "unfinished", "re-timed", "diverged"
LOST_STATE = "resumed without its state"  # finished, with results of its own
RESULTS_VERSION = "results_version"  # among the settings of a run
CURVE = (
    *("folder", "epoch", "time_s", "fastest_s", "bytes", "quality", "low", "high", "averaged"),
    "consensus",
)
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Runs:
    """The runs of a report.

    skipped: a sentence for each unreadable folder, and one about runs of another results version
    """

    table: pd.DataFrame
    curves: pd.DataFrame
    skipped: tuple[str, ...]


def read_runs(folders: Sequence[Path]) -> Runs:
    """Read every run in or below the folders. Raises ConfigError if there is none."""
    lines, curves = [], []
    paths, skipped = run_folders(folders)
    for path in paths:
        try:
            line, curve = read_run(path)
        except Damaged as error:
            skipped.append(left_out(path, str(error)))
            continue
        lines.append(line)
        curves.append(curve)
    if not lines:
        raise ConfigError(
            str(folders[0]),
            skipped[0]
            if skipped
            else "this folder holds no runs; name folders such as results/runs.",
        )
    for line, settings in zip(lines, completed([line["settings"] for line in lines]), strict=True):
        line["settings"] = dict(flat(settings))
    for version, count in Counter(line["settings"][RESULTS_VERSION] for line in lines).items():
        if version != VERSIONS[FORMAT]:
            skipped.append(
                f"Runs of version {version}: {count}. They are neither comparable with those of "
                f"version {VERSIONS[FORMAT]} nor resumable."
            )
    table = pd.DataFrame(lines)
    for name in ("metric", "row", "commit", "dirty"):  # else None becomes not-a-number
        table[name] = table[name].astype(object).where(table[name].notna(), None)
    return Runs(table, pd.concat(curves, ignore_index=True), tuple(skipped))


def read_run(folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return the row of a run in the table, and its curve. Raises Damaged."""
    config = read_config(folder)
    settings = {**settings_of(config), RESULTS_VERSION: version_of(config)}
    summary = read_summary(folder)
    if summary is None and os.path.lexists(folder / "summary.json"):
        raise Damaged("its summary.json is not a JSON object.")
    facts = facts_of(config, folder) if summary is None else summary
    facts = {**facts, "row": facts.get("row") or config.get("row")}
    check_facts(facts)
    try:
        records = read_metrics(folder)
        by_worker = not facts["server"] and config.get("eval_workers", True)
        curve = curve_of(checked(records), "eval" if by_worker else "average")
        evaluated: Any = facts.get("evaluated_fastest") or ()
        fastest = {round(float(epoch), 6): seconds for epoch, seconds in evaluated}
        fastest_s = curve["epoch"].map(fastest).astype(float)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"its records cannot be read ({error}).") from None
    metric = curve.attrs["metric"]
    curve = curve.assign(folder=str(folder), fastest_s=fastest_s)
    last = curve.iloc[-1] if len(curve) else pd.Series(dict.fromkeys(CURVE, np.nan))
    averaged = last["averaged"]
    if np.isnan(averaged) and metric == facts.get("metric"):
        averaged = number(facts.get("average"))
    if summary is None:
        state = DIVERGED if os.path.lexists(folder / FILE) else UNFINISHED
        seconds = (number(record["time_s"]) or 0.0 for record in records)
        costs = {**dict.fromkeys(COSTS), "time_s": max(seconds, default=None)}
    else:
        state = RETIMED if "retimed_from" in summary else FINISHED
        if summary.get("lost_state"):
            state = LOST_STATE if state == FINISHED else f"{state}, {LOST_STATE}"
        costs = costs_of(facts)
    line = {
        "run": printable(folder.name),
        "folder": str(folder),
        "state": state,
        "kind": kind_of(facts),
        **{key: facts[key] for key in FACTS},
        "batch_size": settings["batch_size"],
        "metric": metric,
        **{key: last[key] for key in ("quality", "low", "high")},
        "averaged": averaged,
        **costs,
        "row": facts["row"],
        "fitted": bool(facts.get("fitted")),
        **version(folder),
        "settings": {key: value for key, value in settings.items() if key not in ("seed", "row")},
    }
    return line, curve


def read_config(folder: Path) -> dict[str, Any]:
    try:
        config = read_yaml(folder / "config.yaml")
    except FileNotFoundError:
        raise Damaged("it has no config.yaml.") from None
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict):
        raise Damaged("its config.yaml cannot be read.")
    if version_of(config) is None:
        raise Damaged(f"its config.yaml is {other_version(config)}: run it again.")
    check_settings(config)
    return config


def facts_of(config: Mapping[str, Any], folder: Path) -> Mapping[str, object]:
    """Return the facts of an unfinished run that a summary would contain."""
    try:
        return from_stored(config, folder / "config.yaml").facts
    except ConfigError as error:
        raise Damaged(
            f"the run did not finish, and its config.yaml does not fit this version ({error})."
        ) from None


def kind_of(facts: Mapping[str, object]) -> str:
    """Return the kind of result: `REAL` or, for a simulated run, the first words of its label."""
    if facts["clock"] == "wall":
        return REAL
    return next(
        (kind for kind in (TIMING, TRAINED) if str(facts["label"]).startswith(kind)), REHEARSAL
    )


def costs_of(summary: Mapping[str, object]) -> dict[str, float | None]:
    """Return the costs of a run from its summary.

    A missing time per iteration is calculated as the time divided by the steps of a node.
    """
    out = {key: number(summary.get(key)) for key in COSTS}
    if out["ms_per_iteration"] is None and out["time_s"] is not None and out["steps"]:
        out["ms_per_iteration"] = 1000 * out["time_s"] / out["steps"]
    return out


def curve_of(records: Sequence[Mapping[str, object]], kind: str) -> pd.DataFrame:
    """Return one row for each epoch at which all workers were evaluated.

    kind: kind of the records with the quality: eval (workers' own models), or average (their
        average, or a server's model)

    ``attrs["metric"]`` is the name of the measured quality.
    """
    frame = pd.DataFrame([record for record in records if record["kind"] in ("eval", "average")])
    frames = {kind: part for kind, part in frame.groupby("kind")} if len(frame) else {}
    average, evaluations = frames.get("average"), frames.get(kind)
    if evaluations is None:
        empty = pd.DataFrame(columns=list(CURVE), dtype=float)
        empty.attrs["metric"] = None
        return empty
    metric = next(
        name
        for name in ("bleu", "accuracy", "loss")
        if (name in evaluations and evaluations[name].notna().any()) or name == "loss"
    )
    evaluations = evaluations.assign(
        epoch=evaluations["epoch"].astype(float).round(6),
        rank=0 if kind == "average" else evaluations["rank"],
    ).drop_duplicates(["epoch", "rank"], keep="last")
    epochs = evaluations.groupby("epoch")
    values = evaluations[metric].astype(float).groupby(evaluations["epoch"])
    out = pd.DataFrame(
        {
            "time_s": epochs["time_s"].max(),
            "quality": values.mean(),
            "low": values.min(),
            "high": values.max(),
        }
    )
    out = out[epochs["rank"].count() == evaluations["rank"].nunique()]
    averages = pd.DataFrame(columns=["epoch"]) if average is None else average
    averages = (
        averages.assign(epoch=averages["epoch"].astype(float).round(6))
        .drop_duplicates("epoch", keep="last")
        .set_index("epoch")
    )
    for name, key in (("averaged", metric), ("consensus", CONSENSUS)):
        out[name] = averages[key].astype(float).reindex(out.index) if key in averages else np.nan
    out["bytes"] = bytes_at(out["time_s"].to_numpy(), records)
    out = out.reset_index()
    out.attrs["metric"] = metric
    return out


def bytes_at(
    times: np.ndarray[Any, Any], records: Sequence[Mapping[str, object]]
) -> np.ndarray[Any, Any]:
    """Return the bytes that a node has sent at each of ``times`` [T].

    The bytes of each worker are interpolated between records and averaged over the workers. Records
    of averaged models have exact bytes, except in older runs and runs with a server.
    """
    sent = pd.DataFrame(
        [(r["rank"], r["time_s"], r["bytes_sent"]) for r in records if r["kind"] == "train"],
        columns=["rank", "t", "bytes"],
    )
    ranks = [
        np.interp(times, part["t"].astype(float), part["bytes"].astype(float))
        for _, part in sent.groupby("rank")
    ]
    between = np.mean(ranks, axis=0) if ranks else np.full(len(times), np.nan)
    exact = {
        r["time_s"]: r["bytes_sent"]
        for r in records
        if r["kind"] == "average" and "bytes_sent" in r
    }
    return np.array([exact.get(t, sent) for t, sent in zip(times, between, strict=True)], float)


def version(folder: Path) -> dict[str, object]:
    """Return the commit of a run, and whether files were modified; None if unknown."""
    try:
        git = read_json(folder / "environment.json")["git"] or {}
        commit, dirty = git.get("commit"), git.get("dirty")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        commit, dirty = None, None
    return {
        "commit": commit if is_name(commit, MAX_NAME_LENGTH) else None,
        "dirty": dirty if isinstance(dirty, bool) else None,
    }


def completed(configs: Sequence[Settings]) -> list[Settings]:
    """Add to each configuration the settings that were introduced after it was written.

    The values come from the newest configuration with all settings and values of the old one.
    Nothing is added if several newer configurations match but differ in the missing values.
    """
    texts = [json.dumps(config, sort_keys=True, default=str) for config in configs]
    different = dict(zip(texts, configs, strict=True))
    keys = {text: frozenset(all_keys(config)) for text, config in different.items()}
    by_keys: dict[frozenset[str], list[Settings]] = {}
    for text, config in different.items():
        by_keys.setdefault(keys[text], []).append(config)
    larger = {
        key_set: [
            config for other, members in by_keys.items() if other > key_set for config in members
        ]
        for key_set in by_keys
    }
    completions = {
        text: completion(config, larger[keys[text]]) for text, config in different.items()
    }
    return [completions[text] for text in texts]


def all_keys(node: Settings, parent: str = "") -> Iterator[str]:
    """Yield the dotted keys of all settings and of the parts around them."""
    for name, value in node.items():
        yield (key := join(parent, str(name)))
        if isinstance(value, Mapping):
            yield from all_keys(value, key)


def completion(config: Settings, candidates: Sequence[Settings]) -> Settings:
    newer = [other for other in candidates if extends(other, config)]
    newest = [
        one for one in newer if not any(other is not one and extends(other, one) for other in newer)
    ]
    return newest[0] if len(newest) == 1 else config


def extends(newer: Settings, older: Settings, key: str = "") -> bool:
    """Return whether ``newer`` has all settings of ``older`` with the same values.

    A part of a configuration may have more settings in ``newer``. A mapping that is the value of a
    setting must be equal.
    """
    return all(
        name in newer
        and (
            extends(newer[name], value, join(key, name))
            if is_part(join(key, name))
            and isinstance(value, Mapping)
            and isinstance(newer[name], Mapping)
            else newer[name] == value
        )
        for name, value in older.items()
    )
