"""Transfer of a Python program's objects to the processes of its ranks.

Models, data sets and classes that exist only in the memory of the program are written to a file in
the private folder in which its ranks meet, and each rank reads them there. The file contains the
code of a script and of notebook cells; other modules are imported by the rank.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

from sgp_runner.config import choices
from sgp_runner.config.check import annotation
from sgp_runner.config.plugins.from_python import InMemory
from sgp_runner.data.in_memory_data import DATASETS
from sgp_runner.models.in_memory_model import BUILDERS
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.launchers import STORE

FILE = "objects"  # next to the store


def write_objects(folder: Path) -> None:
    """Write the objects of the calls in progress, if any, for `read_objects`.

    Raises ConfigError if one of them cannot be copied to another process.
    """
    extensions = {
        key: extension
        for key, extension in choices.EXTENSIONS.items()
        if isinstance(extension, InMemory)
    }
    if not extensions:
        return
    import cloudpickle

    # A rank cannot resolve the names in the annotations of a program.
    hints = {
        cls: {field.name: annotation(cls, field) for field in dataclasses.fields(cls)}
        for cls in (extension.cls for extension in extensions.values())
    }
    try:
        with (folder / FILE).open("wb") as file:
            cloudpickle.dump(sys.path, file)
            cloudpickle.dump((extensions, hints, BUILDERS, DATASETS), file)
    except Exception as error:
        raise ConfigError(
            "network",
            f"an object of this program cannot be copied to the ranks ({type(error).__name__}: "
            f"{error}): use network=sim, or write it as a plug-in, ./mine.py.",
        ) from error


def read_objects() -> None:
    """Register the objects written by the program that started this rank, if any.

    Folders of the program's modules come last, so that no module shadows a package.
    """
    store = os.environ.get(STORE)
    if store is None or not (path := Path(store).with_name(FILE)).exists():
        return
    import cloudpickle

    with path.open("rb") as file:
        sys.path += [folder for folder in cloudpickle.load(file) if folder not in sys.path]
        extensions, hints, builders, datasets = cloudpickle.load(file)
    for cls, types in hints.items():
        for field in dataclasses.fields(cls):
            field.type = types[field.name]
    for key, extension in extensions.items():
        choices.extend(extension, [key])
    BUILDERS.update(builders)
    DATASETS.update(datasets)
