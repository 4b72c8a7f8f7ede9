"""Hydra nodes: the contents of choices that have no YAML file in a package."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sgp_runner.config import choices
from sgp_runner.config.plugins.loading import LOADED, Plugin, Values
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.reading import MAX_YAML, parse_settings, read_text
from sgp_runner.utils.user_code import nearby


def nodes() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield group, name and contents of each choice that has no YAML file in a package."""
    for (group, name), extension in choices.EXTENSIONS.items():
        if isinstance(extension, Values):
            yield group, name, read_values(extension.source, group)
        elif group == "base" and not has_yaml(extension, group, name):
            yield group, name, {"defaults": [f"/algo/{name}@_here_"]}
        elif not has_yaml(extension, group, name):
            cls = extension.class_of(group, name)
            assert cls is not None
            yield group, name, node_of(cls, group, name)


def has_yaml(extension: choices.Extension, group: str, name: str) -> bool:
    """Return whether a package has a YAML file for this choice."""
    folder = extension.configs if isinstance(extension, Plugin) else None
    return folder is not None and (folder / group / f"{name}.yaml").is_file()


def file_of(group: str, choice: str, search: Iterable[str] = ()) -> Path | None:
    """Return the YAML file of a choice, unless it is in this package.

    search: folders of presets"""
    extension = choices.EXTENSIONS.get((group, choice))
    if isinstance(extension, Values):
        return Path(extension.source)
    files = (Path(folder, group, f"{choice}.yaml") for folder in (*folders(), *map(Path, search)))
    return next(filter(Path.is_file, files), None)


def read_values(source: str, key: str) -> dict[str, Any]:
    try:
        tree = parse_settings(read_text(source, MAX_YAML))
    except (OSError, ValueError) as error:
        raise ConfigError(key, f"{nearby(source)} cannot be read: {error}.") from None
    if not isinstance(tree, dict):
        raise ConfigError(key, f"{nearby(source)} has no settings.")
    check_plain(tree, "" if key == choices.PRESET else key, nearby(source))
    return tree


def check_plain(value: object, key: str, where: str) -> None:
    """Raise ConfigError for YAML values that are invalid as settings, such as sets."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(name, str | int | float):
                raise ConfigError(
                    key or where, f"'{name}' in {where} is not a valid name for a setting."
                )
            check_plain(inner, f"{key}.{name}" if key else str(name), where)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            check_plain(inner, f"{key}[{i}]", where)
    elif not isinstance(value, str | int | float | None):
        raise ConfigError(
            key,
            f"a {type(value).__name__} in {where} is not a setting: write text, a number, true, "
            "false, null, a list or a mapping.",
        )


def node_of(cls: type[Any], group: str, name: str) -> dict[str, Any]:
    """Return the node of a choice without a YAML file; the fields of ``cls`` define the parts."""
    parts, values = [], {}
    for field in dataclasses.fields(cls):
        inner = choices.group_of(f"{group}.{field.name}")
        if inner is not None:
            tree = default_part(inner, field)
            parts.append({f"/{inner}@{field.name}": tree.pop("name", None)})
            values.update({field.name: tree} if tree else {})
    return {"defaults": [*parts, "_self_"], "name": name, **values}


def default_part(group: str, field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Return the default of a part as a tree, for example of ``topology: Topology = Ring()``."""
    part: Any = default_of(field)
    choice = choices.choice_of(group, type(part))
    if choice is None:
        return {}
    changes = {
        setting.name: list(value) if isinstance(value, tuple) else value
        for setting in dataclasses.fields(part)
        if (value := getattr(part, setting.name)) != setting.default
    }
    return {**changes, "name": choice}


def default_of(field: dataclasses.Field[Any]) -> object:
    """Return the default of a field as a YAML value."""
    value = (
        field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    )
    return list(value) if isinstance(value, tuple) else value


def folders() -> list[Path]:
    """Return the folders with the YAML files of loaded packages."""
    return [
        plugin.configs
        for plugin in LOADED.values()
        if plugin.configs is not None and plugin.configs.is_dir()
    ]
