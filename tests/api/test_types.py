"""Type checkers see the types of the Python interface."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT

CLIENT = """
import torch
import sgp_runner as sgp

result: sgp.Result = sgp.run("algo=osgp", nodes=8, model=torch.nn.Linear(2, 2))
reveal_type(result.summary)
reveal_type(sgp.sweep("model=mlp", algo=["sgp", "osgp"]).failed)
result.plot("steps")
sgp.run(3)
"""


@pytest.mark.slow
def test_a_client_is_checked(tmp_path: Path) -> None:
    assert (ROOT / "sgp_runner/py.typed").is_file()
    (tmp_path / "client.py").write_text(CLIENT)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "client.py"],
        check=False,
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=1000,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("client.py")]
    assert [line.partition(": ")[2] for line in said[:2]] == [
        'note: Revealed type is "dict[str, Any]"',
        'note: Revealed type is "dict[str, Exception]"',
    ]
    assert "Literal['time', 'epochs', 'bytes', 'nodes']" in said[2]
    assert 'Argument 1 to "run" has incompatible type "int"; expected "str"' in said[3]
