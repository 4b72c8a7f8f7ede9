"""The engine as a library, below the settings."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

from helpers.paths import ROOT
from test_layout import FLOORS, graph, modules, package, trees

ENGINE = set().union(*FLOORS[FLOORS.index({"config"}) + 1 :])
FRAMEWORKS = {"hydra", "omegaconf", "wandb", "rich"}


def test_the_engine_is_below_settings_and_records() -> None:
    names = "algorithms core topology cluster simulator distributed models data utils"
    assert set(names.split()) == ENGINE
    above = {package(b) for a, names in graph().items() for b in names if package(a) in ENGINE}
    assert above == ENGINE


def test_the_engine_imports_no_framework() -> None:
    imported = {
        (path.name, name.partition(".")[0])
        for module, path in modules().items()
        if package(module) in ENGINE
        for node in ast.walk(trees()[path])
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    assert ("problem.py", "torch") in imported
    # fairseq changes Hydra's store, which is restored.
    assert {pair for pair in imported if pair[1] in FRAMEWORKS} == {("with_fairseq.py", "hydra")}


def test_sgp_runs_on_eight_simulated_workers_without_settings() -> None:
    page = (ROOT / "docs" / "worker.md").read_text()
    (example,) = re.findall(r"## Without settings\n.*?```python\n(.*?)```", page, re.DOTALL)
    blocked = f"import sys; sys.modules.update(dict.fromkeys({sorted(FRAMEWORKS)}))\n"
    above = (
        "print(*sorted({name.split('.')[1] for name in sys.modules if name[:11] == 'sgp_runner.'}))"
    )
    command = [sys.executable, "-c", f"{blocked}{example}\n{above}"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == [
        "2.502 s, accuracy 0.93",
        "_version algorithms cluster core data models simulator topology utils",
    ]
