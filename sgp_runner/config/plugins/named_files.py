"""Settings written by someone else, such as those in the archive of a study.

These may refer to any file of this machine, so their files are not opened. The user passes copies
of the files instead. A plug-in is imported only if its hash is the recorded one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sgp_runner.config.plugins.loading import OPTION, Plugin, load, with_files
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.user_code import nearby


@dataclass(frozen=True)
class NamedFiles:
    """The files that a user passed for the settings of an archive.

    files: paths, as on a command line
    hashes: for each plug-in, the hashes that the runs of the archive recorded
    """

    files: Sequence[str]
    hashes: Mapping[str, Collection[str]]

    def local(self, overrides: Iterable[str]) -> tuple[str, ...]:
        """Return the overrides with the user's files instead of the files of the archive.

        Raises ConfigError for a file that the user did not pass, or that has a different hash, and
        for settings of Hydra, which can add folders with choices.
        """
        overrides = tuple(overrides)
        for override in overrides:
            if re.match(r"[+~]*hydra\b", override):
                raise ConfigError(
                    override.partition("=")[0], "an archive cannot set Hydra's own settings."
                )
        return tuple(with_files(override, self.own_file) for override in overrides)

    def own_file(self, source: str, group: str, key: str) -> str:
        """Return the path of the user's file that has the name of the file ``source``."""
        name = Path(source).name
        file = next((path for path in self.files if Path(path).name == name), None)
        if file is None:
            raise ConfigError(
                key,
                f"the archive refers to the file '{source}', but such files are not opened: "
                f"check it, and pass your copy with {OPTION} ./{name}.",
            )
        path = os.path.abspath(os.path.expanduser(file))
        if re.search(r"[,()\[\]'\"]", path):
            raise ConfigError(OPTION, f"'{path}' contains one of , ( ) [ ] ' \": rename it.")
        if path.endswith(".py"):
            load(path, self.check)
        return path

    def check(self, plugin: Plugin) -> None:
        """Raise ConfigError unless the runs of the archive were made with this plug-in."""
        recorded = {*self.hashes.get(plugin.name, ())}
        if recorded != {plugin.hash}:
            there = " and ".join(sorted(digest[:12] for digest in recorded)) or "none"
            raise ConfigError(
                OPTION,
                f"{nearby(plugin.source)} is not imported: its hash is {plugin.hash[:12]}, and the "
                f"hash in the archive is {there}.",
            )
