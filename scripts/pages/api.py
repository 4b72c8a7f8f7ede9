"""Reference of the public names of a module, with their signatures and docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

# Methods of the run, which no plug-in calls.
INTERNAL: Mapping[str, set[str]] = {
    "Comm": {"next_collective", "close", "state_dict", "load_state_dict"},
    "Worker": {
        *("own_model", "gathered", "code", "state_dict", "load_state_dict", "side_effects"),
        *("explained", "check_later", "check_now"),
    },
}
# An annotation as inspect shows it: the text of the source in quotes.
QUOTED = re.compile(r"""(: |-> )(["'])(.*?)\2(?=[,)]| = |$)""")


def module(name: str) -> str:
    """Return a section for each public class and function of the module ``name``."""
    contents = importlib.import_module(name)
    return "\n\n".join(
        part
        for public in contents.__all__
        for part in described(f"{name}.{public}", getattr(contents, public))
    )


def described(name: str, value: Any) -> Iterator[str]:
    yield f"### `{name.rpartition('.')[2]}`"
    if not (inspect.isclass(value) or callable(value)):
        yield f"`{name} = {value!r}`"
        return
    yield f"```python\n{signature(value)}\n```"
    yield prose(value)
    for inner, member in vars(value).items() if inspect.isclass(value) else ():
        if documented(inner, member) and inner not in INTERNAL.get(value.__name__, ()):
            yield f"**`{inner}{parameters(member) if callable(member) else ''}`**"
            yield prose(member)


def documented(name: str, member: object) -> bool:
    """Return whether ``member`` is a public method or property with a docstring."""
    listed = inspect.isfunction(member) or isinstance(member, property)
    return listed and not name.startswith("_") and bool(inspect.getdoc(member))


def signature(value: Any) -> str:
    what = "class" if inspect.isclass(value) else "def"
    inside = "" if getattr(value, "_is_protocol", False) else parameters(value)
    return f"{what} {value.__name__}{inside}".replace(" -> None", "")


def parameters(value: Any) -> str:
    """Return the parameters of a function or class, with annotations as in the source."""
    return QUOTED.sub(r"\1\3", str(inspect.signature(value)))


def prose(value: object) -> str:
    """Return a docstring in Markdown, with descriptions of fields as a list."""
    text = inspect.getdoc(value) or ""
    text = re.sub(r"^(\w+(?:, \w+)*): ", r"- *\1*: ", text, flags=re.MULTILINE)
    text = re.sub(r"([^\n])\n- \*", r"\1\n\n- *", text)
    return text.replace("``", "`")
