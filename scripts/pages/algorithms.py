"""Parts of the pages about algorithms: code, published figures, and tests of identities."""

from __future__ import annotations

import ast
import csv
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

from pages.settings import table
from sgp_runner.config.choices import CONFIGS
from sgp_runner.report.read.published import Published, published

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "results" / "times.csv"
# How to display certain words in the names of tests.
NAMES = {
    "ar sgd": "AR-SGD",
    "ad psgd": "AD-PSGD",
    "d psgd": "D-PSGD",
    "osgp": "OSGP",
    "sgp": "SGP",
    "slowmo": "SlowMo",
    "gap aware": "Gap-Aware",
    "staleness aware": "Staleness-Aware",
    "pipe sgd": "Pipe-SGD",
    "local sgd": "local SGD",
    "local adam": "local Adam",
    "dana": "DANA",
    "onebit adam": "1-bit Adam",
    "zero one adam": "0/1 Adam",
    "accum adam": "AccumAdam",
    "sign sgd": "SignSGD",
    "ef sign": "EF-SignSGD",
    "acco": "ACCO",
    "adam": "Adam",
    "adamw": "AdamW",
    "k minus 1": "K - 1",
    "y p y minus d": "y' = P y - d(y)",
    "nodes buffers": "node's buffers",
    "nesterovs": "Nesterov's",
    "lookahead": "Lookahead",
    "ps sgd": "PS-SGD",
    "streaming diloco": "Streaming DiLoCo",
    "async diloco": "Async DiLoCo",
    "delayed nesterov": "Delayed Nesterov",
    "dylu": "DyLU",
    "diloco": "DiLoCo",
    "noloco": "NoLoCo",
    "sparseloco": "SparseLoCo",
    "demo": "DeMo",
    "powersgd": "PowerSGD",
    "acp sgd": "ACP-SGD",
    "des loc": "DES-LOC",
    "resnet 18": "ResNet-18",
    "a2cid2": "A2CiD2",
    "halos": "HALoS",
    "ringmaster": "Ringmaster",
    "rennala": "Rennala",
    "ringleader": "Ringleader",
    "relay sgd": "RelaySGD",
    "swarm sgd": "SwarmSGD",
    "asgd": "ASGD",
    "choco": "CHOCO-SGD",
    "qg dsgdm": "QG-DSGDm",
    "d squared": "D²",
    "gossip pga": "Gossip-PGA",
    "scipys": "SciPy's",
    "plain sgd": "plain SGD",
    "nesterov": "Nesterov",
    "push sum": "push-sum",
    "pytorchs": "PyTorch's",
}


def code(place: str) -> str:
    """Return the source of ``module:Class.method`` and a link to its file."""
    module, _, names = place.partition(":")
    source = textwrap.dedent(inspect.getsource(attrgetter(names)(importlib.import_module(module))))
    return f"`{module.replace('.', '/')}.py`:\n\n```python\n{source.rstrip()}\n```"


def published_figures(algo: str) -> str:
    """Return a table of the presets of ``algo``, with published figures and our simulated times."""
    rows = {row: figures for row, figures in published().items() if algo_of(row) == algo}
    if not rows:
        return "No preset has a published figure."
    body = [
        (
            f"`{row}`",
            metric.replace("_", " "),
            figure_text(figure),
            simulated().get((row, metric), ""),
        )
        for row, figures in rows.items()
        for metric, figure in figures.items()
    ]
    all_figures = [figure for figures in rows.values() for figure in figures.values()]
    sources = dict.fromkeys(figure.source for figure in all_figures)
    tilde = any(figure.derived for figure in all_figures)
    derived = " A tilde marks a time that is derived from hours." if tilde else ""
    return (
        f"{table(body, ('`experiment=`', 'figure', 'published', 'simulated here'))}\n\n"
        f"From {'; '.join(sources)}.{derived}"
    )


def figure_text(figure: Published) -> str:
    units = {"percent": " %", "hours": " h", "bleu": ""}
    unit = units.get(figure.unit, f" {figure.unit}")
    spread = f" ± {figure.spread:.4g}" if figure.spread is not None else ""
    return f"{'~' if figure.derived else ''}{figure.value:.4g}{spread}{unit}"


def algo_of(row: str) -> str:
    """Return the algorithm chosen by a preset's file, or by a recipe that it includes."""
    text = (CONFIGS / "experiment" / f"{row}.yaml").read_text(encoding="utf-8")
    recipes = re.findall(r"^  - /(\S+)@_global_", text, re.MULTILINE)
    texts = [
        text,
        *((CONFIGS / f"{recipe}.yaml").read_text(encoding="utf-8") for recipe in recipes),
    ]
    return next(
        match[1] for content in texts if (match := re.search(r"override /algo: (\w+)", content))
    )


@functools.cache
def simulated() -> dict[tuple[str, str], str]:
    """Return our simulated times with their errors, by preset and metric."""
    with OURS.open(encoding="utf-8", newline="") as file:
        return {
            (line["row"], line["metric"]): f"{float(line['simulated']):.4g} "
            f"({float(line['error_percent']):+.1f} %, {line['ours_is']})"
            for line in csv.DictReader(file)
        }


def identities(pattern: str) -> str:
    """Return the tests in ``tests/algorithms/`` with names that match ``pattern``, as sentences.

    Tests of rejected settings are omitted."""
    parts = []
    for path in sorted((ROOT / "tests" / "algorithms").glob("test_*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        names = [name for name in tests_in(module) if re.search(pattern, name)]
        if sentences := [f"- {sentence(name)}" for name in names if "refused" not in name]:
            parts.append("\n".join([f"`{path.relative_to(ROOT)}`:\n", *sentences]))
    assert parts, f"no test's name matches {pattern}"
    return "\n\n".join(parts)


def tests_in(module: ast.Module) -> Iterator[str]:
    """Yield the name of each test in a module, without ``test_``."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name.removeprefix("test_")


def sentence(name: str) -> str:
    """Return the name of a test as a sentence."""
    text = name.replace("_", " ")
    for plain, proper in NAMES.items():
        text = re.sub(rf"\b{plain}\b", proper, text)
    return f"{text[0].upper()}{text[1:]}"
