"""Studies from Python, on the same code path as ``sgp-run study``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from sgp_runner.api.isolation import alone, torch_as_usual
from sgp_runner.studies.run_study import run_study
from sgp_runner.studies.study_file import read_study, study_of
from sgp_runner.studies.study_page import StudyPage


def study(
    file: str | PurePath | Mapping[str, Any], name: str = "study", *, verbose: bool = True
) -> StudyPage:
    """Run a study, or return its result if all of its runs have finished.

    file: path of the study's file, or its content as a dictionary
    name: name of the folder in ``results/studies``; ignored for a file, which has its own name
    verbose: whether to show a line for each run; warnings are always shown

    Returns the answer, the table and the page. Raises ConfigError, before anything is written, for
    an invalid study; Stopped after a signal, once the runs are saved. The same call continues the
    study.
    """
    with alone(verbose), torch_as_usual(), without_main():
        asked = study_of(file, name) if isinstance(file, Mapping) else read_study(Path(file))
        return run_study(asked)


@contextmanager
def without_main() -> Iterator[None]:
    """Prevent the runs' processes from executing the calling script again."""
    main = vars(sys.modules["__main__"])
    before: dict[str, Any] = {key: main[key] for key in ("__file__", "__spec__") if key in main}
    main.pop("__file__", None)
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(before)
