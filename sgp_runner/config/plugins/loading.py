"""Loading of plug-ins: each name on a command line adds choices to the groups."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from sgp_runner.config import choices
from sgp_runner.config.plugins.importer import FINDER, Code, code_of_file, code_of_package
from sgp_runner.config.plugins.interfaces import check_class, classes_in, no_class
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.provenance import version_of_files
from sgp_runner.utils.user_code import format_error, nearby, user_code_line

CONTRACT = 1  # of `sgp_runner.plugin`
GROUP = "sgp_runner.plugins"  # of entry points
OPTION = "--plugin"
KEY = "plugins"  # in a stored configuration; absent if there are none
PYTHON = "python:"  # begins the hash of a class that was given in Python
IN_MEMORY_HINT = (
    "which existed only in the memory of a Python program: call sgp_runner.run with it again."
)
NO_NAMES = ("null", "true", "false", "nan", "inf")  # Hydra reads these as values
VALUES = ("cluster", "faults", "experiment")  # groups with choices that are values only


@dataclass(frozen=True, eq=False)
class Plugin:
    """A plug-in; its code is read and imported at the first use.

    source: name or absolute path of the plug-in, as on a command line
    find: returns (group, choice) -> class, or its path ``module:Class``, for the imported module
    configs: folder of the YAML files, with a subfolder per group
    """

    name: str
    source: str
    read: Callable[[], Code]
    find: Callable[[ModuleType], Mapping[tuple[str, str], type[Any] | str]]
    configs: Path | None = None

    @cached_property
    def code(self) -> Code:
        with explained(self.source):
            return self.read()

    @property
    def where(self) -> str:
        """The file or folder of the plug-in."""
        return self.source if self.configs is None else str(self.configs.parent)

    @property
    def hash(self) -> str:
        return self.code.hash

    @cached_property
    def module(self) -> ModuleType:
        with explained(self.source):
            FINDER.add(self.name, self.code)
            module = importlib.import_module(self.name)
        contract = getattr(module, "CONTRACT", CONTRACT)
        if contract != CONTRACT:
            raise ConfigError(
                OPTION,
                f"{self.source} was written for contract {contract} of plug-ins, but this version "
                f"of sgp-run has contract {CONTRACT}.",
            )
        return module

    @cached_property
    def classes(self) -> Mapping[tuple[str, str], type[Any] | str]:
        return self.find(self.module)

    def class_of(self, group: str, choice: str) -> type[Any] | None:
        cls = self.classes.get((group, choice))
        if isinstance(cls, str):
            if cls.partition(":")[0] not in self.code.modules:
                raise ConfigError(
                    OPTION,
                    f"{nearby(self.source)}: '{cls}' of its CHOICES is not "
                    f"'module:Class' with a module of {self.name}.",
                )
            with explained(self.source):
                cls = choices.imported(cls)
        if cls is not None:
            check_class(cls, group)
        return cls

    @property
    def record(self) -> dict[str, object]:
        """The entry in ``environment.json``."""
        return {
            "source": self.source,
            "hash": self.hash,
            "contract": CONTRACT,
            "files": dict(self.code.files),
            **version_of_files(self.code.folder, self.code.files),
        }


@dataclass(frozen=True)
class Values:
    """A YAML file as a choice, ``cluster=./mine.yaml``. It has no code."""

    name: str
    source: str
    hash: None = None

    def class_of(self, group: str, choice: str) -> None:
        return None


LOADED: dict[str, Plugin] = {}


@contextmanager
def explained(source: str) -> Iterator[None]:
    """Convert an error while importing a plug-in to a ConfigError with the line and the cause."""
    try:
        yield
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as error:
        reason = format_error(error)
        if isinstance(error, SyntaxError):
            reason = f"SyntaxError: {error.msg}{user_code_line(error)}"
        raise ConfigError(OPTION, f"{nearby(source)} cannot be imported: {reason}.") from error


def named(overrides: Sequence[str], sources: Sequence[str] = ()) -> list[str]:
    """Load the plug-ins ``sources`` and the files in ``overrides``; replace these files by names.

    Call this only with overrides of a command line, because it imports their files. Raises
    ConfigError for a plug-in that does not work.
    """
    discover()
    for source in sources:
        load(source)
    return [with_files(override, choice_in) for override in overrides]


def without_options(argv: Sequence[str]) -> list[str]:
    """Load the plug-ins in the options ``--plugin=...`` of ``argv``; return the other arguments."""
    options = [argument for argument in argv if argument.startswith(f"{OPTION}=")]
    named([], [option.partition("=")[2] for option in options])
    return [argument for argument in argv if argument not in options]


def with_files(override: str, choose: Callable[[str, str, str], str]) -> str:
    """Replace each file in an override by what ``choose`` returns for the file, group and key."""
    key, equals, value = override.partition("=")
    group = choices.group_of(re.sub(r"^[+~]*(\w+@)?", "", key))
    if group is None:
        return override
    of_file = re.compile(r"[^,()\[\]'\"]*\.(?:py|ya?ml)(?=$|[,)\]'\"])")
    return f"{key}{equals}{of_file.sub(lambda match: choose(match[0], group, key), value)}"


def choice_in(source: str, group: str, key: str) -> str:
    """Return the name of the choice that the file ``source`` adds to ``group``."""
    group, source = "algo" if group == "base" else group, os.path.expanduser(source)
    if source.endswith(".py"):
        try:
            plugin = load(source)
        except ConfigError as error:
            if error.key == OPTION:
                raise ConfigError(key, error.sentence) from error
            raise
        if (group, plugin.name) not in choices.EXTENSIONS:
            raise no_class(plugin.module, nearby(plugin.source), group, key)
        return plugin.name
    if group not in VALUES:
        raise ConfigError(
            key, f"'{source}' contains only values: write {key}=CHOICE, followed by the values."
        )
    check_file(source, key)
    values = Values(Path(source).stem, os.path.abspath(source))
    if choices.EXTENSIONS.get((group, values.name)) != values:
        check_free(group, values.name, source, key)
        choices.extend(values, [(group, values.name)])
    return values.name


def load(source: str, check: Callable[[Plugin], None] = lambda plugin: None) -> Plugin:
    """Load a plug-in (a file, a folder or an installed package) unless it is loaded already.

    check: called before the import; it may raise ConfigError
    """
    source = os.path.expanduser(source)
    plugin = file_plugin(source) if source.endswith(".py") else package_plugin(source)
    loaded = LOADED.get(plugin.name)
    if loaded is not None and loaded.where == plugin.where:
        plugin = loaded
    check(plugin)
    if plugin is loaded:
        return loaded
    try:
        classes = plugin.classes
        register(plugin, classes if plugin.configs is None else yaml_choices(plugin), OPTION)
    except ConfigError:
        FINDER.remove(plugin.name)
        raise
    return plugin


def register(plugin: Plugin, entries: Iterable[tuple[str, str]], key: str) -> None:
    """Add the choices ``entries`` of ``plugin``. Raises ConfigError if a name is in use."""
    if plugin.name in LOADED:
        there = LOADED[plugin.name].source
        raise ConfigError(
            key, f"{plugin.source} and {there} have the same name: rename one of them."
        )
    entries = list(entries)
    for group, name in entries:
        check_free(group, name, plugin.source, key)
    LOADED[plugin.name] = plugin
    choices.extend(plugin, entries)


def check_name(name: str, key: str) -> None:
    """Raise ConfigError if Hydra would read the ``name`` of a choice as a value, such as null."""
    if name.lower() in NO_NAMES:
        raise ConfigError(
            key, f"'{name}' is a value and not a valid name: rename it, for example to my_{name}."
        )


def check_free(group: str, name: str, source: str, key: str) -> None:
    check_name(name, key)
    if name in choices.groups()[group]:
        raise ConfigError(
            key,
            f"{group}={name} already exists: rename the '{name}' of {nearby(source)}, "
            f"for example my_{name}.",
        )


def forget() -> None:
    """Unload all plug-ins, as in a new process."""
    for name in LOADED:
        FINDER.remove(name)
    LOADED.clear()
    choices.retract()


def check_file(source: str, key: str) -> None:
    if not Path(source).is_file():
        raise ConfigError(key, f"there is no file '{source}'.")
    if not re.fullmatch(r"[A-Za-z]\w*", Path(source).stem):
        raise ConfigError(
            key,
            f"'{Path(source).stem}' is not a valid name: rename the file; use a letter, then "
            "letters, digits and _.",
        )


def file_plugin(source: str) -> Plugin:
    check_file(source, OPTION)
    path = Path(os.path.abspath(source))
    return Plugin(path.stem, str(path), lambda: code_of_file(path), classes_in)


def package_plugin(source: str) -> Plugin:
    """Return the plug-in in a folder or an installed package; its code is not imported yet."""
    folder = installed(source)
    if folder is None:
        folder = Path(os.path.abspath(source))
        source = str(folder)
    name = folder.name
    if not (folder / "__init__.py").is_file():
        raise ConfigError(
            OPTION,
            f"'{name}' is not a package: neither installed nor a folder with an __init__.py.",
        )
    return Plugin(
        name,
        source,
        lambda: code_of_package(name, folder),
        choices_of_package,
        folder / "configs",
    )


def installed(name: str) -> Path | None:
    """Return the folder of an importable package without importing it; None if there is none."""
    try:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
    except ValueError:
        return None
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        return None
    return Path(os.path.abspath(spec.origin)).parent


def discover() -> None:
    """Add the choices of installed plug-ins; a plug-in is imported only if a run uses it."""
    for point in importlib.metadata.entry_points(group=GROUP):
        if point.module not in LOADED:
            plugin = package_plugin(point.module)
            register(plugin, yaml_choices(plugin), GROUP)


def yaml_choices(plugin: Plugin) -> Iterator[tuple[str, str]]:
    """Yield the group and name of each YAML file of a package."""
    assert plugin.configs is not None
    for path in sorted(plugin.configs.glob("*/*.yaml")):
        group = path.parent.name
        if group not in choices.own_groups():
            raise ConfigError(
                OPTION,
                f"{path}: there is no group '{group}'; there are "
                f"{', '.join(choices.own_groups())}.",
            )
        yield group, path.stem


def choices_of_package(module: ModuleType) -> Mapping[tuple[str, str], str]:
    """Return the ``CHOICES`` of a package."""
    groups = getattr(module, "CHOICES", {})
    if not isinstance(groups, dict) or not all(
        isinstance(names, dict) for names in groups.values()
    ):
        raise ConfigError(
            OPTION,
            f"CHOICES of {module.__name__} must have the form "
            '{"algo": {"mine": "mypkg.mine:Mine"}}.',
        )
    return {
        (group, choice): str(name)
        for group, names in groups.items()
        for choice, name in names.items()
    }


def check_stored(stored: object) -> None:
    """Raise ConfigError unless the plug-ins of a stored run are loaded and have not changed."""
    if not isinstance(stored, Mapping):
        raise ConfigError(KEY, "the value is not a mapping of names to hashes.")
    if stored:
        discover()
    for name, hash_there in stored.items():
        plugin = LOADED.get(str(name))
        if str(hash_there).startswith(PYTHON):
            if any(extension.hash == hash_there for extension in choices.EXTENSIONS.values()):
                continue  # in a rank of the program
            raise ConfigError(KEY, f"this run used {name}, {IN_MEMORY_HINT}")
        if plugin is None:
            raise ConfigError(
                KEY,
                f"this run needs the plug-in '{name}', and stored paths are never imported: "
                f"pass it again, for example {OPTION} ./{name}.py.",
            )
        if plugin.hash != hash_there:
            raise ConfigError(
                f"{KEY}.{name}",
                f"{nearby(plugin.source)} has changed since this run; its hash was "
                f"{str(hash_there)[:12]} and is {plugin.hash[:12]}; "
                "restore it, or start another run.",
            )
