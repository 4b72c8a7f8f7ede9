#!/usr/bin/env python
"""Convert the stored runs in ``results/`` to format 3, in which settings of a cluster have groups.

Names, digests and all other files of a run stay the same. The script is run once and then removed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from reproduce.archives import compressed, members, tar_of
from sgp_runner.config.experiment import digest_of, settings_of, upgraded


def converted(content: bytes) -> bytes:
    """Return a stored configuration in format 3; unchanged if it is in format 3 already."""
    config = yaml.safe_load(content)
    new = upgraded(config)
    assert new["format"] == 3 and digest_of(settings_of(new)) == digest_of(settings_of(config))
    return yaml.safe_dump(new, sort_keys=False, allow_unicode=True).encode()


def main() -> int:
    for archive in sorted(Path("results").rglob("*.tar.xz")):
        before = members(archive)
        after = {
            name: converted(content) if is_config(name) else content
            for name, content in before.items()
        }
        changed = sum(before[name] != after[name] for name in before)
        if changed:
            archive.write_bytes(compressed(archive.name, tar_of(after)))
            assert members(archive) == after
        print(f"{archive}: {changed} of {sum(map(is_config, before))} configurations", flush=True)
    return 0


def is_config(name: str) -> bool:
    return name.endswith("/config.yaml")


if __name__ == "__main__":
    sys.exit(main())
