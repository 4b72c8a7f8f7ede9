"""Results of runs as data frames, tables and figures."""

from __future__ import annotations

import glob
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from sgp_runner.recording.recorder import read_metrics
from sgp_runner.report.plots.figure import Plot
from sgp_runner.report.rank.ranking import Ranking, Row, rankings
from sgp_runner.report.read.run_folders import run_folders
from sgp_runner.report.read.run_groups import RunGroup, settings_in
from sgp_runner.report.read.runs import Runs, read_runs
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The horizontal axis of a plot of quality.
Against = Literal["time", "epochs", "bytes", "nodes"]


class Results:
    """Runs on disk. Data frames are read on first use.

    folders: folders of the runs
    failed: settings of each failed run of a sweep -> its error
    """

    def __init__(
        self, folders: Sequence[Path], failed: Mapping[str, Exception] | None = None
    ) -> None:
        self.folders = list(folders)
        self.failed = dict(failed or {})

    @cached_property
    def _read(self) -> Runs:
        if not self.folders:
            raise ConfigError("results", "no run has results; failed has their errors.")
        return read_runs(self.folders)

    @property
    def runs(self) -> pd.DataFrame:
        """One row per run: settings and results, as in `sgp_runner.report.read.runs`."""
        return self._read.table

    @property
    def curves(self) -> pd.DataFrame:
        """One row per run and evaluated epoch.

        Columns: ``folder epoch time_s bytes quality low high averaged``. Times are in seconds of
        the run's clock; ``quality`` is the mean over the workers.
        """
        return self._read.curves

    @cached_property
    def records(self) -> pd.DataFrame:
        """All records in the ``metrics.jsonl`` files of all runs, with the run and its folder."""
        return pd.DataFrame(
            [
                {"run": run, "folder": folder, **record}
                for run, folder in zip(self.runs["run"], self.runs["folder"], strict=True)
                for record in read_metrics(Path(folder))
            ]
        )

    @property
    def skipped(self) -> Sequence[str]:
        """A sentence for each folder that could not be read."""
        return self._read.skipped

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per setting, ranked as in a report, with means over the seeds of the setting.

        ``rank`` and ``speed_up`` compare ``time_to_target``, the time to reach the ``target`` of
        the task. In timing studies they compare the time per iteration. Times are in seconds of the
        run's clock. ``ranked_by`` is ``time``, or the metric if fewer than five evaluations before
        the target make the times too coarse to rank by.
        """
        ranked = rankings(self._settings)
        return pd.DataFrame([line_of(row, ranking) for ranking in ranked for row in ranking.rows])

    @cached_property
    def _settings(self) -> list[RunGroup]:
        return settings_in(self._read)

    def plot(self, against: Against = "time") -> Figure:
        """Draw the quality against time, epochs or bytes, or the time per iteration against nodes.

        Raises ConfigError if the runs need several plots, for example runs of two models.
        """
        require("plot", "report", "matplotlib")
        from sgp_runner.report.plots import quality, scaling
        from sgp_runner.report.render.pictures import drawn

        ranked = rankings(self._settings)
        evaluated = [run for run in self._settings if len(run.curve)]
        makers: dict[str, Callable[[], Iterator[Plot]]] = {
            "time": lambda: (plot for run in ranked for plot in quality.against_time(run)),
            "epochs": lambda: quality.against_epochs(evaluated),
            "bytes": lambda: quality.against_bytes(evaluated),
            "nodes": lambda: scaling.per_iteration(self._settings, []),
        }
        if against not in makers:
            raise ConfigError("against", f"'{against}' is not one of {', '.join(makers)}.")
        plots = list(makers[against]())
        if not plots:
            raise ConfigError(
                "plot", f"no run was evaluated, so there is nothing to plot against {against}."
            )
        if len(plots) > 1:
            titles = "; ".join(plot.title for plot in plots)
            raise ConfigError(
                "plot", f"these runs need {len(plots)} plots ({titles}): load the runs of only one."
            )
        return drawn(plots[0])

    def __len__(self) -> int:
        return len(self.folders)

    def __repr__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"<{len(self)} run{'' if len(self) == 1 else 's'}{failed}>"

    def _repr_html_(self) -> str:
        lines = [f"{title}: {error}" for title, error in self.failed.items()]
        errors = "".join(f"<p>{escape(line)}</p>" for line in lines)
        html: str = ""
        if self.folders:
            html = self.table.dropna(axis=1, how="all").to_html(index=False)
        return html + errors


class Result(Results):
    """A run, with its summary.

    folder: folder of the run
    summary: contents of ``summary.json``; times in seconds, accuracies in 0..1
    """

    def __init__(self, folder: Path, summary: Mapping[str, Any]) -> None:
        Results.__init__(self, [folder])
        self.folder = folder
        self.summary = dict(summary)

    def __repr__(self) -> str:
        return f"<run {self.folder.name}>"

    def _repr_html_(self) -> str:
        from rich.console import Console

        from sgp_runner.console.summary import summary_table

        console = Console(file=io.StringIO(), record=True, width=100, force_jupyter=False)
        console.print(summary_table(self.summary), crop=False)
        style = "font-family: monospace; line-height: 1.2"
        return console.export_html(
            inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>'
        )


def load(*places: str | Path) -> Results:
    """Read the runs in or below ``places``: folders, or patterns such as ``results/runs/*osgp*``.

    Damaged runs are left out; `Results.skipped` has a sentence about each. Raises ConfigError if
    there is no run.
    """
    paths: list[Path] = []
    for place in places or ("results/runs",):
        matches = sorted(map(Path, glob.glob(str(place))))
        folders = matches if "*" in str(place) else [Path(place)]
        if not folders:
            raise ConfigError(str(place), "no folder matches.")
        paths += folders
    folders, _ = run_folders(paths)
    results = Results(folders)
    results.runs  # noqa: B018  raises if there is none
    return results


def line_of(row: Row, ranking: Ranking) -> dict[str, object]:
    """Return the row of a setting in `Results.table`."""
    setting = row.setting
    columns = ("quality", "averaged", "time_s", "ms_per_iteration", "bytes_per_node", "hours")
    return {
        "rank": row.rank,
        "ranked_by": ranking.ranked_by,
        "method": setting.method,
        "model": setting.model,
        "data": setting.data,
        "cluster": ranking.cluster,
        "nodes": int(setting.nodes),
        "seeds": len(setting.seeds),
        "clock": ranking.clock,
        "metric": setting.metric,
        "target": ranking.target.value if ranking.target else None,
        "time_to_target": row.time if ranking.target else None,
        "speed_up": row.speed_up,
        **{column: setting.mean(column) for column in columns},
    }
