"""The code of plug-ins: its files, their hash, and their import.

The imported code is exactly the hashed code: modules are compiled from the hashed bytes, never
loaded from cached bytecode. No folder of the user is added to ``sys.path``.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from sgp_runner.utils.reading import read_bytes
from sgp_runner.utils.user_code import FILES


@dataclass(frozen=True)
class Code:
    """The files of a plug-in.

    folder: folder to which recorded paths are relative
    modules: the file of each module, by full name
    others: further hashed files, such as compiled modules
    """

    folder: Path
    modules: Mapping[str, Path]
    others: Sequence[Path] = ()

    @cached_property
    def contents(self) -> Mapping[Path, bytes]:
        return {path: read_bytes(path) for path in (*self.modules.values(), *self.others)}

    @cached_property
    def files(self) -> Mapping[str, str]:
        """The SHA-256 of each file, by the file's path in ``folder``."""
        return {
            path.relative_to(self.folder).as_posix(): hashlib.sha256(content).hexdigest()
            for path, content in sorted(self.contents.items())
        }

    @cached_property
    def hash(self) -> str:
        """A hash of the paths and contents of all files."""
        return hashlib.sha256(json.dumps(self.files, sort_keys=True).encode()).hexdigest()


def code_of_file(file: Path) -> Code:
    """Return ``file`` with all modules that it imports from its folder, directly or indirectly.

    Raises OSError or ValueError for an unreadable file, SyntaxError for a file that is not Python.
    """
    folder, modules, waiting = file.parent, {file.stem: file}, [file.stem]
    while waiting:
        name = waiting.pop()
        path = modules[name]
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        for other in names_imported(ast.parse(read_bytes(path), str(path)), package):
            for module, where in found_in(folder, other):
                if module not in modules and module != "__main__":
                    modules[module] = where
                    waiting.append(module)
    return Code(folder, modules)


def code_of_package(name: str, folder: Path) -> Code:
    """Return all modules of the package in ``folder``."""
    modules = {}
    for path in sorted(folder.rglob("*.py")):
        names = [name, *path.relative_to(folder).with_suffix("").parts]
        modules[".".join(names[:-1] if names[-1] == "__init__" else names)] = path
    return Code(folder, modules, sorted(folder.rglob("*.so")))


def names_imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the modules in all import statements of ``tree``, nested statements included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = package.split(".") if package and node.level else []
            names = names[: len(names) - node.level + 1]
            base = ".".join([*names, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)


def found_in(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield the module ``name`` and its parent packages if they are files in ``folder``."""
    names = name.split(".")
    if names[0] in sys.stdlib_module_names:
        return
    for count in range(1, len(names) + 1):
        package = folder.joinpath(*names[:count])
        for path in (package / "__init__.py", package.with_name(f"{package.name}.py")):
            if path.is_file():
                yield ".".join(names[:count]), path
                break


class Source(SourceFileLoader):
    """Loader that runs the hashed bytes."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code

    def get_data(self, path: str) -> bytes:
        return FINDER.contents[path]


class Finder(MetaPathFinder):
    """Finder for the modules of plug-ins."""

    def __init__(self) -> None:
        self.modules: dict[str, Path] = {}
        self.contents: dict[str, bytes] = {}
        self.of_plugin: dict[str, Code] = {}

    def add(self, plugin: str, code: Code) -> None:
        """Make the modules in ``code`` importable.

        Raises ImportError if a module of this name comes from another file.
        """
        for name in sorted({name.partition(".")[0] for name in code.modules}):
            existing, file = file_of(name), code.modules.get(name)
            if existing is not None and (file is None or existing.resolve() != file.resolve()):
                raise ImportError(
                    f"the name of its module '{name}' is taken by {existing}; rename its file"
                )
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        self.of_plugin[plugin] = code
        self.modules.update(code.modules)
        self.contents.update({str(path): data for path, data in code.contents.items()})
        FILES.update(map(str, code.contents))

    def remove(self, plugin: str) -> None:
        """Undo `add`, and remove the modules."""
        if plugin in self.of_plugin:
            code = self.of_plugin.pop(plugin)
            FILES.difference_update(map(str, code.contents))
            for name in code.modules:
                self.modules.pop(name, None)
                sys.modules.pop(name, None)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self.modules.get(name)
        if file is None:
            inner = next((module for module in self.modules if module.startswith(f"{name}.")), None)
            if inner is None:
                return None
            folder = ModuleSpec(name, None, is_package=True)  # a folder without __init__.py
            assert folder.submodule_search_locations is not None
            return folder
        spec = spec_from_file_location(name, file, loader=Source(name, str(file)))
        if spec is not None and file.stem == "__init__":
            # A package is hashed completely; next to a file, only imported modules are hashed.
            whole = name.partition(".")[0] in self.of_plugin
            spec.submodule_search_locations = [str(file.parent)] if whole else []
        return spec


FINDER = Finder()


def file_of(module: str) -> Path | None:
    """Return the file of a module, or its name if it has no file; None if there is no module."""
    try:
        spec = find_spec(module)
    except ValueError:  # a module without a spec
        return Path(module)
    return None if spec is None or spec.loader is None else Path(spec.origin or module)
