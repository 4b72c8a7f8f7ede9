"""The house: packages import downwards only, and no modules import each other in a circle."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from helpers.paths import ROOT

PACKAGE = ROOT / "sgp_runner"
FLOORS = [
    {"api"},
    {"cli"},
    {"replay"},
    {"report", "calibration"},
    {"session"},
    {"simulator", "distributed"},
    {"recording"},
    {"elastic"},
    {"config"},
    {"algorithms"},
    {"core"},
    {"models"},
    {"data", "topology", "cluster"},
    {"utils"},
]


def modules() -> dict[str, Path]:
    paths = PACKAGE.rglob("*.py")
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in paths
    }


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of the package that a file names in an import, wherever it stands and also for types
    alone.
    """
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module in known:
            found |= {
                name if (name := f"{node.module}.{each.name}") in known else node.module
                for each in node.names
            }
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names if each.name in known}
    return found


GRAPH = {
    name: imports(path, modules()) - {name, "sgp_runner", "sgp_runner._version"}
    for name, path in modules().items()
}


def package(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_packages_import_downwards_only() -> None:
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    assert set(floor) == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    arrows = [
        (a, b)
        for a, names in GRAPH.items()
        for b in names
        if package(a) in floor and package(a) != package(b)
    ]
    assert len(arrows) > 300
    assert [(a, b) for a, b in arrows if floor[package(b)] <= floor[package(a)]] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    TopologicalSorter(GRAPH).prepare()


def test_a_circle_would_be_found() -> None:
    with pytest.raises(CycleError):
        TopologicalSorter({**GRAPH, "sgp_runner.utils.errors": {"sgp_runner.cli.main"}}).prepare()


def test_messages_go_through_the_logger_outside_the_commands() -> None:
    allowed = {PACKAGE / "utils" / "messages.py"}
    printing = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent.name != "cli" and path not in allowed
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert printing == []
