"""``logger=wandb``: mirrors the metrics to Weights & Biases, or offline without a login.

A failing mirror never stops training: an error of W&B becomes one line on stderr, and the run
continues with ``metrics.jsonl`` alone. Training does not wait either: a thread of its own talks to
W&B, and only the end of the run gives it some time. ``sgp-sync`` makes the mirror again from
``metrics.jsonl``. W&B receives neither the git remote nor the list of installed packages, whose
addresses may hold secrets.
"""

from __future__ import annotations

import netrc
import os
import queue
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sgp_runner.config.logger import Listener
from sgp_runner.utils.errors import ConfigError, nearest
from sgp_runner.utils.reading import read_text
from sgp_runner.utils.secrets import redacted
from sgp_runner.utils.units import number

if TYPE_CHECKING:
    from wandb import Run

MODES = ("auto", "online", "offline", "disabled")
START_SECONDS = 20.0  # how long a server may take to answer before the run is recorded offline
FINISH_SECONDS = 60.0  # how long the last upload may delay the exit
MOST_ROWS = 100_000  # queued for W&B

abandoned = Event()  # set if a thread still waits for W&B, which would delay the exit

# Two names of the public server, the second since W&B 0.31.
PUBLIC_HOSTS = {"api.wandb.ai", "api.forge.coreweave.com"}
SPREAD = {name: f"eval/{name}" for name in ("accuracy_mean", "accuracy_min", "accuracy_max")}
Row = tuple[int, dict[str, object]]  # W&B step and the numbers of a record
NOT_METRICS = ("kind", "rank", "time_s", "clock")


@dataclass(frozen=True)
class Wandb:
    """Mirrors the run to W&B.

    Files go to ``<run_dir>/wandb``; the run's id is kept in ``<run_dir>/wandb_id``.

    project: the W&B project
    entity: the W&B user or team; null: the default of the login
    group: the W&B group; null: the sweep the run belongs to
    mode: online | offline | disabled | auto: what WANDB_MODE says, else online if there is a login
    """

    project: str = "sgp-run"
    entity: str | None = None
    group: str | None = None
    mode: str = "auto"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            choices = f"use one of {', '.join(MODES)}.{nearest(str(self.mode), MODES)}"
            raise ConfigError("logger.mode", f"'{self.mode}' is not a mode; {choices}")

    def open(
        self,
        run_dir: Path,
        name: str,
        config: Mapping[str, object],
        tags: Sequence[str],
        group: str | None,
    ) -> Listener:
        return self.mirror(
            run_dir, name, config, tags, group, _count_lines(run_dir / "metrics.jsonl")
        )

    def mirror(
        self,
        run_dir: Path,
        name: str,
        config: Mapping[str, object],
        tags: Sequence[str],
        group: str | None,
        first_step: int,
    ) -> Mirror:
        """Open the mirror of a W&B run that already has ``first_step`` lines of the metrics."""

        def start(mode: str) -> Run:
            import wandb

            # The login prints before it knows the run's settings.
            wandb.setup(settings=wandb.Settings(silent=True))
            run_dir.mkdir(parents=True, exist_ok=True)
            run = wandb.init(
                project=self.project,
                entity=self.entity,
                name=name,
                id=_run_id(run_dir, new=first_step == 0),
                resume="allow",
                group=self.group or group,
                tags=[tag[:64] for tag in tags],  # the server refuses longer ones
                config=dict(config),
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
            return run

        mode = self.mode
        if mode == "auto":
            mode = os.environ.get("WANDB_MODE") or ("online" if has_login() else "offline")
        return Mirror(lambda: _try(start, mode), first_step)


def _try(start: Callable[[str], Run], mode: str) -> Run | None:
    """Start the run, offline if the server does not answer; return None if that fails too.

    Failures are reported in one line on stderr.
    """
    try:
        return start(mode)
    except Exception as error:
        if mode != "online":
            _warn(f"failed to start, so this run is in metrics.jsonl only ({_first_line(error)})")
            return None
        refused = error
    try:
        import wandb

        wandb.teardown(exit_code=1)  # releases the run's id after the failed start
        run = start("offline")
    except Exception as error:
        _warn(f"failed to start, so this run is in metrics.jsonl only ({_first_line(error)})")
        return None
    _warn(f"did not start online, so this run is recorded offline ({_first_line(refused)})")
    return run


class Mirror:
    """Sends the scalars of rank 0 and of the averaged model, until the first failure.

    The W&B step is the line number in ``metrics.jsonl``, so that a resumed run continues where it
    stopped.
    """

    def __init__(self, start: Callable[[], Run | None], first_step: int = 0) -> None:
        self.failed = False
        self._start, self._step = start, first_step
        self._rows: queue.SimpleQueue[Row | Mapping[str, object] | None] = queue.SimpleQueue()
        self._thread = Thread(target=self._follow, daemon=True)
        self._thread.start()

    def write(self, record: Mapping[str, object]) -> None:
        step, self._step = self._step, self._step + 1
        if self.failed or not (row := row_of(record)):
            return
        if self._rows.qsize() >= MOST_ROWS:
            self._fail(f"has accepted none of the last {MOST_ROWS} rows")
        else:
            self._rows.put((step, row))

    def finish(self, summary: Mapping[str, object] | None, seconds: float | None = None) -> None:
        """Give W&B ``seconds`` to accept the remaining rows."""
        self._rows.put(summary)
        self._thread.join(FINISH_SECONDS if seconds is None else seconds)
        if self._thread.is_alive():
            abandoned.set()
            self._fail("did not finish in time")

    def _follow(self) -> None:
        """Start the run, send its rows and finish it, on the mirror's thread."""
        run = self._start()
        self.failed = self.failed or run is None
        try:
            while isinstance(item := self._rows.get(), tuple):
                step, row = item
                if run is not None and not self.failed:
                    run.log(row, step=step, commit=True)
            if run is None:
                return
            if item is not None:
                run.summary.update(
                    {
                        f"final/{key}": value
                        for key, value in item.items()
                        if number(value) is not None
                    }
                )
            run.finish(exit_code=0 if item is not None else 1)
            # finish() returns before the last rows of an offline run are in its file; teardown
            # waits for them.
            import wandb

            wandb.teardown()
        except Exception as error:
            self._fail(f"failed ({_first_line(error)})")

    def _fail(self, what: str) -> None:
        if not self.failed:
            _warn(
                f"{what}, so the rest of this run is in metrics.jsonl only; sgp-sync sends it later"
            )
        self.failed = True


def row_of(record: Mapping[str, object]) -> dict[str, object]:
    """Return the numbers of a record as ``<kind>/<field>``, with ``time_s``; none unless of rank 0.

    The spread over the workers, which the ``average`` record holds, joins the ``eval`` charts.
    """
    if record.get("rank", 0) != 0:
        return {}
    numbers = {
        key: value
        for key, value in record.items()
        if key not in NOT_METRICS and number(value) is not None
    }
    row: dict[str, object] = {
        SPREAD.get(key, f"{record['kind']}/{key}"): value for key, value in numbers.items()
    }
    return {"time_s": record["time_s"], **row} if row else {}


def has_login() -> bool:
    """Return whether W&B has a key in WANDB_API_KEY or, for its host, in netrc; asks no server."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    server = os.environ.get("WANDB_BASE_URL")
    hosts = {urlsplit(server).netloc} if server else PUBLIC_HOSTS
    given = os.environ.get("NETRC")
    for path in [Path(given)] if given else [Path("~/.netrc"), Path("~/_netrc")]:
        try:
            # Uses hosts because authenticators() would return the entry named `default`.
            if hosts & netrc.netrc(path.expanduser()).hosts.keys():
                return True
        except (OSError, RuntimeError, netrc.NetrcParseError):
            continue
    return False


def _run_id(run_dir: Path, new: bool) -> str:
    """Return the stored W&B id, or a new one for a run that starts over."""
    path = run_dir / "wandb_id"
    if new or not path.exists():
        path.write_text(secrets.token_hex(6) + "\n", encoding="utf-8")
    return read_text(path).strip()


def _count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _warn(what: str) -> None:
    print(redacted(f"warning: W&B {what}"), file=sys.stderr, flush=True)
