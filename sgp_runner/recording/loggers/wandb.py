"""``logger=wandb``: a copy of the metrics in Weights & Biases, or in a folder if there is no login.

``sgp-sync`` makes the copy again from ``metrics.jsonl``. W&B receives neither the git remote nor
the list of installed packages, whose addresses may hold secrets.
"""

from __future__ import annotations

import contextlib
import netrc
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sgp_runner.recording.loggers.mirror import (
    FINISH_SECONDS,
    Mirror,
    Row,
    count_lines,
    final,
    grouped_settings,
    stored_id,
)
from sgp_runner.utils.errors import ConfigError, first_line, nearest
from sgp_runner.utils.messages import logger
from sgp_runner.utils.secrets import redacted
from sgp_runner.utils.user_code import nearby

if TYPE_CHECKING:
    from wandb import Run

TITLE = "W&B"
# Of WANDB_MODE: W&B has two names for two modes, and one that ranks share.
THEIR_MODES = ("online", "offline", "disabled", "shared", "run", "dryrun")
MODES = ("auto", "online", "offline", "disabled")
START_SECONDS = 20.0  # how long a server may take to answer before the run is recorded offline

PUBLIC = "https://api.wandb.ai"
# Two names of the public server, the second since W&B 0.31.
PUBLIC_HOSTS = {"api.wandb.ai", "api.forge.coreweave.com"}


@dataclass(frozen=True)
class Wandb:
    """Copies the run to W&B.

    Files go to ``<run_dir>/wandb``; the run's id is in ``<run_dir>/wandb_id``.

    project: the W&B project
    entity: the W&B user or team; null: the default entity of the login
    group: the W&B group; null: the sweep that contains the run
    mode: online | offline | disabled | auto: WANDB_MODE if it is set, else online if there is a
        login and the server answers, else offline
    """

    project: str = "sgp-run"
    entity: str | None = None
    group: str | None = None
    mode: str = "auto"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            choices = f"use one of {', '.join(MODES)}.{nearest(str(self.mode), MODES)}"
            raise ConfigError("logger.mode", f"'{self.mode}' is not a mode; {choices}")

    def check_installed(self) -> None:
        """Raise ConfigError if an environment variable of W&B is invalid."""
        mode, server = (os.environ.get(f"WANDB_{name}", "") for name in ("MODE", "BASE_URL"))
        if mode and mode not in THEIR_MODES:
            choices = f"{', '.join(THEIR_MODES)}.{nearest(mode, THEIR_MODES)}"
            raise ConfigError("WANDB_MODE", f"'{mode}' is not one of {choices}")
        if server and not re.match("https?://[^/]", server):
            raise ConfigError(
                "WANDB_BASE_URL", f"'{redacted(server)}' is not an address: write https://HOST."
            )

    def open(
        self,
        run_dir: Path,
        name: str,
        config: Mapping[str, object],
        tags: Sequence[str],
        group: str | None,
    ) -> Mirror:
        if self.actual_mode == "online":
            project = f"{self.entity}/{self.project}" if self.entity else self.project
            server = os.environ.get("WANDB_BASE_URL") or PUBLIC
            where = redacted(f"{project} at {server}")
            logger.info(f"{TITLE}: a copy goes to {where} (logger=none keeps it here).")
        return self.mirror(run_dir, name, config, tags, group, count_lines(run_dir))

    def mirror(
        self,
        run_dir: Path,
        name: str,
        config: Mapping[str, object],
        tags: Sequence[str],
        group: str | None,
        first_step: int,
    ) -> Mirror:
        def start(mode: str) -> WandbRun:
            import wandb

            # The login prints before it has the run's settings.
            wandb.setup(settings=wandb.Settings(silent=True))
            run_dir.mkdir(parents=True, exist_ok=True)
            run = wandb.init(
                project=self.project,
                entity=self.entity,
                name=name,
                id=stored_id(run_dir / "wandb_id", new=first_step == 0),
                resume="allow",
                group=self.group or group,
                tags=[tag[:64] for tag in tags],  # the server refuses longer ones
                config=grouped_settings(config),
                dir=str(run_dir),
                mode=mode,  # type: ignore[arg-type]  # wandb checks the word of WANDB_MODE
                reinit="create_new",
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    init_timeout=START_SECONDS,
                    # A login prompt would otherwise wait for a user.
                    login_timeout=int(START_SECONDS),
                    finish_timeout=FINISH_SECONDS,
                    disable_git=True,
                    x_save_requirements=False,
                ),
            )
            run.define_metric("time_s", hidden=True)
            for chart in ("train/*", "server/*", "eval/*", "average/*"):
                run.define_metric(chart, step_metric="time_s")
            return WandbRun(run, run_dir, first_step, self.asked)

        def start_or_stay_offline() -> WandbRun:
            try:
                return start(self.actual_mode)
            except Exception as error:
                if self.mode != "auto" or self.actual_mode != "online":
                    raise
                refused = error
            import wandb

            wandb.teardown(exit_code=1)  # releases the run's id after the failed start
            copy = start("offline")
            logger.warning(
                f"{TITLE} did not start online, so this run is recorded offline "
                f"({first_line(refused)})"
            )
            return copy

        return Mirror(TITLE, run_dir, start_or_stay_offline, first_step)

    @property
    def actual_mode(self) -> str:
        """The mode in effect: ``auto`` is replaced by the mode that it selects."""
        if self.mode != "auto":
            return self.mode
        return os.environ.get("WANDB_MODE") or ("online" if has_login() else "offline")

    @property
    def asked(self) -> bool:
        """Whether the user asked for W&B: there is a login, or a mode is set."""
        return self.mode != "auto" or bool(os.environ.get("WANDB_MODE")) or has_login()


@dataclass(frozen=True)
class WandbRun:
    """A W&B run.

    The W&B step is the line number in ``metrics.jsonl``, so that a resumed run continues at the
    right step.

    asked: whether a message mentions an offline copy
    """

    run: Run
    run_dir: Path
    first: int
    asked: bool

    def log(self, rows: Sequence[Row]) -> None:
        for step, row in rows:
            self.run.log(dict(row), step=step, commit=True)

    def finish(self, summary: Mapping[str, object] | None) -> str:
        import wandb

        if summary is not None:
            self.run.summary.update(final(summary))
        offline, url = self.run.offline, self.run.url
        try:
            self.run.finish(exit_code=0 if summary is not None else 1)
        finally:
            # finish() returns before the last rows of an offline run are in its file; teardown
            # waits for them. After an error it would fail as well, and once more at exit.
            with contextlib.suppress(ConnectionError):
                wandb.teardown()
        if url or not offline:
            return url or ""
        return f"offline; to send: sgp-sync {nearby(self.run_dir)}" if self.asked else ""


def has_login() -> bool:
    """Return whether WANDB_API_KEY is set, or netrc has an entry for the host of W&B."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    server = os.environ.get("WANDB_BASE_URL")
    hosts = {urlsplit(server).netloc} if server else PUBLIC_HOSTS
    path_of_netrc = os.environ.get("NETRC")
    for path in [Path(path_of_netrc)] if path_of_netrc else [Path("~/.netrc"), Path("~/_netrc")]:
        try:
            # Uses hosts because authenticators() would return the entry named `default`.
            if hosts & netrc.netrc(path.expanduser()).hosts.keys():
                return True
        except (OSError, RuntimeError, netrc.NetrcParseError):
            continue
    return False
