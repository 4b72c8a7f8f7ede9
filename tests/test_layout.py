"""The house: imports point downwards, names exist once, files and functions are short, rooms do not
grow.
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
    {"api"},
    {"cli"},
    {"studies"},
    {"replay"},
    {"plan"},
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
MAX_LINES = 400  # of a file
MAX_STATEMENTS = 50  # of a function
# Statements of a room of the package or of scripts/, docstrings included. A ceiling falls with its
# room. A commit that raises one says what was removed elsewhere, or why nothing could be.
CEILINGS = {
    "scripts": 628,
    "scripts/benchmarks": 750,
    "scripts/claims": 779,
    "scripts/pages": 583,
    "scripts/reproduce": 407,
    "scripts/validation": 558,
    "sgp_runner": 38,
    "sgp_runner/algorithms": 2249,
    "sgp_runner/api": 597,
    "sgp_runner/calibration": 553,
    "sgp_runner/cli": 2137,
    "sgp_runner/cluster": 906,
    "sgp_runner/config": 2109,
    "sgp_runner/core": 3225,
    "sgp_runner/data": 2467,
    "sgp_runner/distributed": 3449,
    "sgp_runner/elastic": 423,
    "sgp_runner/models": 809,
    "sgp_runner/plan": 1346,
    "sgp_runner/recording": 2389,
    "sgp_runner/replay": 562,
    "sgp_runner/report": 2200,
    "sgp_runner/session": 745,
    "sgp_runner/simulator": 2203,
    "sgp_runner/studies": 2346,
    "sgp_runner/topology": 602,
    "sgp_runner/utils": 1494,
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
                name if (name := f"{node.module}.{each.name}") in known else node.module
                for each in node.names
            }
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names if each.name in known}
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
            else [each.name for each in node.names]
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


def test_no_room_is_above_its_ceiling() -> None:
    rooms: Counter[str] = Counter()
    for folder in (PACKAGE, ROOT / "scripts"):
        for path in folder.rglob("*.py"):
            room = path.relative_to(ROOT).parts[:-1][:2]
            rooms["/".join(room)] += statements(ast.parse(path.read_text()))
    assert set(rooms) == set(CEILINGS)
    assert {room: count for room, count in rooms.items() if count > CEILINGS[room]} == {}


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
