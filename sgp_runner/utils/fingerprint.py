"""Fingerprints of objects in memory: code of functions and classes, and tensors.

The fingerprint of code covers its compiled instructions and constants. It also covers, at any
depth, the functions, classes and constants in the user's modules to which the code refers. Of
installed packages it covers only names. File names and comments do not change it, but another
version of Python may change it.
"""

from __future__ import annotations

import dis
import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
# Members of a class that say nothing about what it does, or that its other members decide.
DESCRIPTIVE = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__"),
    *("__firstlineno__", "__static_attributes__", "__annotate_func__", "__dataclass_params__"),
}
LOADS = ("LOAD_GLOBAL", "LOAD_NAME")


def code_hash(*objects: object) -> str:
    """Return the SHA-256 of the code of functions and classes, and of other plain values."""
    seen: set[int] = set()
    text = json.dumps([described(item, seen) for item in objects])
    return hashlib.sha256(text.encode()).hexdigest()


def tensor_hash(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the SHA-256 of names, types, shapes and values of tensors."""
    total = hashlib.sha256()
    for name, tensor in tensors:
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        total.update(as_bytes(tensor))
    return total.hexdigest()


def as_bytes(tensor: Tensor) -> bytes:
    import torch

    data: bytes = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return data


def described(value: Any, seen: set[int]) -> object:
    """Return ``value`` as plain lists and strings; repeated code is given by its name only."""
    match value:
        case None | bool() | int() | float() | complex() | str() | bytes():
            return repr(value)
        case list() | tuple():
            return [described(element, seen) for element in value]
        case set() | frozenset():
            return sorted(map(repr, value))
        case dict():
            return [[described(element, seen) for element in item] for item in value.items()]
        case staticmethod() | classmethod() | MethodType():
            return described(value.__func__, seen)
        case property():
            return [described(element, seen) for element in (value.fget, value.fset)]
        case CodeType():
            return instructions(value, seen)
        case FunctionType() | type():
            name = f"{value.__module__}.{value.__qualname__}"
            if id(value) in seen or not is_own(value.__module__):
                return name
            seen.add(id(value))
            parts = of_class(value, seen) if isinstance(value, type) else of_function(value, seen)
            return [value.__qualname__, *parts]
        case _:
            return type(value).__qualname__


def of_function(function: FunctionType, seen: set[int]) -> Iterator[object]:
    yield instructions(function.__code__, seen)
    yield described(function.__defaults__, seen)
    yield described(function.__kwdefaults__, seen)
    yield [described(cell.cell_contents, seen) for cell in function.__closure__ or ()]
    for name in sorted(globals_of(function.__code__)):
        if name in function.__globals__:
            yield [name, described(function.__globals__[name], seen)]


def of_class(cls: type[Any], seen: set[int]) -> Iterator[object]:
    yield [described(base, seen) for base in cls.__bases__]
    for name, member in vars(cls).items():
        if name == "__dataclass_fields__":
            yield [[field.name, described(field.default, seen)] for field in member.values()]
        elif name not in DESCRIPTIVE:
            yield [name, described(member, seen)]


def instructions(code: CodeType, seen: set[int]) -> list[object]:
    consts = [described(const, seen) for const in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), list(code.co_varnames), consts]


def globals_of(code: CodeType) -> set[str]:
    """Return the global names that ``code`` or a function inside it reads."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in LOADS}
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return names.union(*map(globals_of, inner))


def is_own(module: str) -> bool:
    """Return whether a module is the user's own, not from Python, sgp_runner or another package."""
    if module == "__main__":
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return False
    path = Path(file).resolve()
    return not any(path.is_relative_to(folder) for folder in (PACKAGE, *INSTALLED))
