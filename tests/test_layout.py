"""The house: imports point downwards, names exist once, files and functions are short, and floors
do not grow.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from helpers.paths import ROOT

PACKAGE = ROOT / "sgp_runner"
FLOORS = [
    {"hosts"},
    {"api"},
    {"cli"},
    {"studies"},
    {"replay"},
    {"plan"},
    {"report", "calibration"},
    {"jobs"},
    {"assembly"},
    {"console"},
    {"recording"},
    {"config"},
    {"simulator", "distributed"},
    {"algorithms"},
    {"core"},
    {"models"},
    {"data", "topology", "cluster"},
    {"utils"},
]
MAX_LINES = 400  # of a file
MAX_STATEMENTS = 50  # of a function
# Statements of the package and of each floor, without docstrings and imports. A ceiling is raised
# by a commit of its own, which touches nothing else and says what a reader gets for it.
CEILINGS = {
    "sgp_runner": 27550,
    "algorithms": 1576,
    "api": 850,
    "assembly": 2180,
    "calibration report": 2260,
    "cli": 1630,
    "cluster data topology": 3530,
    "config": 1610,
    "console": 226,
    "core": 2715,
    "distributed simulator": 3370,
    "hosts": 180,
    "jobs": 325,
    "models": 630,
    "plan": 1270,
    "recording": 1517,
    "replay": 434,
    "studies": 2250,
    "utils": 1212,
}


def modules() -> dict[str, Path]:
    paths = PACKAGE.rglob("*.py")
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in paths
    }


def imports(tree: ast.AST, known: Collection[str]) -> set[str]:
    """Modules of the package that a file names in an import, wherever it stands and also for types
    alone.
    """
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in known:
            found |= {
                name if (name := f"{node.module}.{alias.name}") in known else node.module
                for alias in node.names
            }
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
    return found


def statements(tree: ast.AST) -> int:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree))


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def graph() -> dict[str, set[str]]:
    known = modules()
    return {
        name: imports(trees()[path], known) - {name, "sgp_runner", "sgp_runner._version"}
        for name, path in known.items()
    }


def package(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_packages_import_downwards_only() -> None:
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    assert set(floor) == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    arrows = [
        (a, b)
        for a, names in graph().items()
        for b in names
        if package(a) in floor and package(a) != package(b)
    ]
    assert len(arrows) > 300
    assert [(a, b) for a, b in arrows if floor[package(b)] <= floor[package(a)]] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    TopologicalSorter(graph()).prepare()


def test_a_circle_would_be_found() -> None:
    with pytest.raises(CycleError):
        TopologicalSorter({**graph(), "sgp_runner.utils.errors": {"sgp_runner.cli.main"}}).prepare()


def test_nothing_imports_the_root_of_the_package() -> None:
    root = PACKAGE / "__init__.py"
    assert [
        path
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if path != root
        and "sgp_runner"
        in (
            [node.module]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    ] == []


def test_files_and_functions_are_short() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in trees()}
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}
    assert [
        f"{path.relative_to(PACKAGE)}: {node.name}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and statements(node) - 1 > MAX_STATEMENTS
    ] == []


def test_names_of_classes_and_files_exist_once() -> None:
    classes = Counter(
        node.name
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in classes.items() if count > 1] == []
    files = Counter(path.name for path in trees() if path.name != "__init__.py")
    assert [name for name, count in files.items() if count > 1] == []


def is_counted(node: ast.AST) -> bool:
    """Whether a node is a statement, but no import or docstring."""
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return (
        isinstance(node, ast.stmt)
        and not isinstance(node, ast.Import | ast.ImportFrom)
        and not text
    )


def counts() -> dict[str, tuple[int, int]]:
    """Statements of the package and of each floor, as counted for the ceilings, and all of them."""
    floors = {package: " ".join(sorted(names)) for names in FLOORS for package in names}
    counted: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for path, tree in trees().items():
        room = path.relative_to(PACKAGE).parts[0]
        for name in {"sgp_runner", floors.get(room, "sgp_runner")}:
            counted[name] += sum(map(is_counted, ast.walk(tree)))
            total[name] += statements(tree)
    return {name: (counted[name], total[name]) for name in sorted(total)}


def test_no_floor_is_above_its_ceiling() -> None:
    now = counts()
    print("floor, statements, with docstrings and imports, ceiling")
    for name, (counted, total) in now.items():
        print(f"{name}: {counted} {total} {CEILINGS.get(name)}")
    assert set(now) == set(CEILINGS)
    assert {name: number for name, (number, _) in now.items() if number > CEILINGS[name]} == {}


def test_messages_go_through_the_logger_outside_the_commands() -> None:
    allowed = {PACKAGE / "utils" / "messages.py"}
    printing = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent.name != "cli" and path not in allowed
        for node in ast.walk(trees()[path])
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert printing == []
