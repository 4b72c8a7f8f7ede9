"""Choices that a Python program adds for its runs: classes, and objects in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sgp_runner.config import choices
from sgp_runner.config.plugins.interfaces import INTERFACES, check_class, place_of
from sgp_runner.config.plugins.loading import PYTHON
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.fingerprint import code_hash

IN_MEMORY = "in_memory"  # the choice of a model or of data whose class is of this package


@dataclass(frozen=True, eq=False)
class InMemory:
    """A choice whose class a Python program provides; its code need not be in a file.

    hash: hash of the code; None for a class of this package, because its settings identify it
    """

    name: str
    cls: type[Any]
    hash: str | None

    def class_of(self, group: str, choice: str) -> type[Any]:
        return self.cls

    @property
    def where(self) -> str:
        return f"{self.cls.__name__}{place_of(self.cls)}"

    @property
    def record(self) -> dict[str, object]:
        """The entry in ``environment.json``."""
        return {"source": self.where, "hash": self.hash}


def bring(group: str, cls: type[Any]) -> str:
    """Add the user's class ``cls`` to the choices of ``group`` and return the name of the choice.

    Raises ConfigError if the class lacks a required member or its name exists already.
    """
    group, name = "algo" if group == "base" else group, cls.__name__
    if group not in INTERFACES:
        kinds = ", ".join(INTERFACES)
        raise ConfigError(
            group, f"{name} cannot be a choice of {group}; a class can be a choice of {kinds}."
        )
    check_class(cls, group)
    extension = choices.EXTENSIONS.get((group, name))
    if isinstance(extension, InMemory) and extension.cls is cls:
        return name
    if name in choices.groups()[group]:
        raise ConfigError(group, f"{group}={name} already exists: rename the class.")
    choices.extend(InMemory(name, cls, PYTHON + code_hash(cls)), [(group, name)])
    return name
