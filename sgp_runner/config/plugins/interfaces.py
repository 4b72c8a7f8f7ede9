"""The interfaces of user-defined classes, and error messages for missing members."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from sgp_runner.algorithms import Algorithm
from sgp_runner.config.logger import Logger
from sgp_runner.data.dataset import DataConfig
from sgp_runner.models.config import ModelConfig
from sgp_runner.topology.graphs import Topology
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.user_code import nearby


@dataclass(frozen=True)
class Interface:
    """Members that user-defined classes of one kind must have.

    kind: the kind of class, in words
    needs: required member -> example of its code; the first member identifies the kind
    inherits: required members that a class can inherit from ``base``
    """

    kind: str
    base: type
    needs: Mapping[str, str]
    inherits: tuple[str, ...] = ()


INTERFACES = {
    "algo": Interface(
        "an algorithm",
        Algorithm,
        {"run": "async def run(self, worker)", "title": 'title: ClassVar[str] = "My algorithm"'},
        ("check", "phases", "asynchronous", "servers"),
    ),
    "model": Interface(
        "a model",
        ModelConfig,
        {
            "build": "def build(self, dataset)",
            "name": 'name: ClassVar[str] = "my_model"',
            "tasks": 'tasks: ClassVar[tuple[str, ...]] = ("classification",)',
            "vectorizes": "vectorizes: ClassVar[bool] = True, or False with BatchNorm",
            "default_data": 'default_data: ClassVar[str] = "digits"',
            "trains": "trains: ClassVar[bool] = True",
        },
    ),
    "data": Interface(
        "a data set",
        DataConfig,
        {
            "load": "def load(self, dtype)",
            "name": 'name: ClassVar[str] = "my_data"',
            "task": 'task: ClassVar[str] = "classification"',
            "stand_in": "stand_in: ClassVar[bool] = False",
            "train_size": "train_size: ClassVar[int] = 960",
        },
    ),
    "topology": Interface(
        "a topology",
        Topology,
        {
            "out_peers": "def out_peers(self, rank, size, step)",
            "symmetric": "symmetric: ClassVar[bool] = True",
        },
        ("in_peers", "weights", "phases", "at", "check"),
    ),
    "logger": Interface(
        "a logger", Logger, {"open": "def open(self, run_dir, name, config, tags, group)"}
    ),
}


def classes_in(module: ModuleType) -> Mapping[tuple[str, str], type[Any]]:
    """Return (group, choice) -> class for each kind with exactly one class in the file."""
    by_group = {group: candidates(module, interface) for group, interface in INTERFACES.items()}
    return {
        (group, module.__name__): classes[0]
        for group, classes in by_group.items()
        if len(classes) == 1
    }


def candidates(module: ModuleType, interface: Interface) -> list[type[Any]]:
    """Return the classes of one kind that a file defines, without base classes of other ones."""
    local = [
        cls
        for cls in vars(module).values()
        if inspect.isclass(cls) and cls.__module__ == module.__name__
    ]
    mark = next(iter(interface.needs))
    classes = [cls for cls in local if interface.base in cls.__mro__] or [
        cls for cls in local if callable(getattr(cls, mark, None))
    ]
    return [cls for cls in classes if not any(cls in other.__mro__[1:] for other in classes)]


def no_class(module: ModuleType, source: str, group: str, key: str) -> ConfigError:
    """Return the error for a file without exactly one class of the kind of ``group``."""
    interface = INTERFACES.get(group)
    if interface is None:
        kinds = ", ".join(INTERFACES)
        return ConfigError(key, f"{source} cannot add a choice of {group}, only of {kinds}.")
    classes = candidates(module, interface)
    if classes:
        names = " and ".join(cls.__name__ for cls in classes)
        return ConfigError(
            key, f"{source} defines {names}: a file must have one class that is {interface.kind}."
        )
    mark = next(iter(interface.needs.values()))
    return ConfigError(
        key, f"{source} has no class that is {interface.kind}: such a class has {mark}."
    )


def check_class(cls: type[Any], group: str) -> None:
    """Raise ConfigError unless a class has all required members and is a frozen dataclass."""
    interface = INTERFACES.get(group)
    if interface is None:
        return
    where = f"{cls.__name__}{place_of(cls)}"
    for name, example in interface.needs.items():
        if lacks(cls, name, interface.base):
            raise ConfigError(group, f"{where} has no {name}: write {example}.")
    for name in interface.inherits:
        if not hasattr(cls, name):
            raise ConfigError(
                group,
                f"{where} has no {name}: derive it from "
                f"sgp_runner.plugin.{interface.base.__name__}, which has one.",
            )
    if group == "algo" and not inspect.iscoroutinefunction(cls.run):
        raise ConfigError(group, f"{where}: run must be async: write async def run(self, worker).")
    params = getattr(cls, "__dataclass_params__", None)
    if params is None or "__dataclass_fields__" not in vars(cls) or not params.frozen:
        raise ConfigError(group, f"{where}: write @dataclass(frozen=True) above the class.")


def place_of(cls: type[Any]) -> str:
    """Return file and line of a class, `` (mine.py:11)``; empty if it has no class statement."""
    try:
        return f" ({nearby(inspect.getfile(cls))}:{inspect.getsourcelines(cls)[1]})"
    except (OSError, TypeError):
        return ""


def lacks(cls: type[Any], name: str, base: type) -> bool:
    """Return whether ``cls`` lacks ``name`` or only inherits it from ``base``."""
    if any(field.name == name for field in getattr(cls, "__dataclass_fields__", {}).values()):
        return False
    member = inspect.getattr_static(cls, name, None)
    return member is None or member is inspect.getattr_static(base, name, None)
