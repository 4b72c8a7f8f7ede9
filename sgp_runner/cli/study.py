"""``sgp-run study``: run a study, write its file, or verify its archive."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sgp_runner.cli.argparser import put
from sgp_runner.cli.exits import print_error
from sgp_runner.studies.study_file import SHIPPED, read_study, study_of
from sgp_runner.utils.errors import ConfigError, nearest, printable
from sgp_runner.utils.units import counted, duration

if TYPE_CHECKING:
    from sgp_runner.studies.study_page import StudyPage

HELP = """usage: sgp-run study FILE [--sbatch hydra.launcher.KEY=VALUE ...]
       sgp-run study FILE --dry-run [--hours N]
       sgp-run study new FILE KEY=VALUE ...
       sgp-run study verify ARCHIVE [--runs N] [--seed N] [--plugin FILE ...]
       sgp-run study merge ARCHIVE ARCHIVE ... NAME [--plugin FILE ...]
       sgp-run study board FOLDER OUT [--plugin FILE ...]
       sgp-run study audit [--rows ROW,ROW] [--dry-run]

Compares algorithms by the rules of FILE: the same search for each arm, shared
seeds, one primary comparison. Results are in results/studies/NAME/: index.html,
the table as CSV, Markdown and LaTeX, and study.zip with all runs. The same
command continues a study.

  sgp-run study mine.yaml        make all runs that are missing, and the page
  sgp-run study mine.yaml --dry-run
                                 runs, hours, disk and power, without training
  sgp-run study mine.yaml --dry-run --hours 2
                                 the seeds and budget that fit, and their power
  sgp-run study claims/02        a study of this package, in configs/study
  sgp-run study mine.yaml --sbatch hydra.launcher.partition=gpu
                                 the runs are arrays of Slurm jobs
  sgp-run study new mine.yaml algo=./mine.py,sgp task=images seeds=5 budget=8
                                 write a file; several algorithms are the arms
  sgp-run study new mine.yaml algo=sgp,ar_sgd model=mlp epochs=5 \\
      cluster.bandwidth=10Gbit/s,1Gbit/s measures=loss,time_to_loss(0.5)
  sgp-run study verify study.zip --runs 3
                                 compute the tables again, repeat three runs
  sgp-run study verify study.zip --plugin ./mine.py
                                 for algo=./mine.py: yours is imported if it has
                                 the hash that the archive recorded
  sgp-run study merge a.zip b.zip both
                                 all arms of two studies with the same rules
  sgp-run study board archives site
                                 a site that ranks the arms of all archives
  sgp-run study audit --dry-run  rows that test whether published gains survive
                                 a search of both arms, with hours
  sgp-run study audit --rows slowmo_sgp
                                 make the runs of a row; resumable

keys of a study, besides the settings of sgp-run that all arms share
  question     the question, as a sentence
  task         images | grammar (generated data) | fashion | books | translation
               (real data): model, data and schedule by name
  arms         a name and the settings of each arm, one or more; new makes them
               of algo=
  baseline     the arm that the others are compared with (default: the last)
  primary      the arm whose comparison is tested alone (default: the first)
  tune         optim.lr: ladder, other settings with a list of values, and
               budget: the runs of each arm's search; or rule: tpe (Optuna) with
               lists, and ranges such as tag(log,interval(0.01,1))
  seeds        number of runs of each arm that decide, or a list (default: 5)
  matters      the smallest difference that matters, such as 0.02 nats; pilots
               then tell how many seeds find it with a power of 80 %
  clusters     machines to time on, such as sgp_ethernet bandwidth=1Gbit/s
  measures     loss, accuracy, bleu (translations), time, bytes,
               time_to_loss(0.5), bytes_to_accuracy(90%)
  amended      the reason of a change after the first run
  published    what a paper reports
  transfer     the rule by which arms with of: ARM, at: transferred and
               settings: have a paper's settings; the page then has a verdict"""


def main(argv: Sequence[str]) -> int:
    """Run the command with the arguments after its name and return the exit code."""
    action = ACTIONS.get(argv[0]) if argv else None
    if action is not None:
        flagged = [f"{DRY_RUN}=yes" if word == DRY_RUN else word for word in argv[1:]]
        return action(*split(flagged, OPTIONS.get(argv[0], ())))
    flags = {"--dry-run", "--sbatch"} & {*argv}
    arguments, pairs = split([argument for argument in argv if argument not in flags], ("--hours",))
    if not arguments or (len(arguments) > 1 and "--sbatch" not in flags):
        key = arguments[1] if arguments else "study"
        raise ConfigError(
            key, "a study takes its settings from its file: write sgp-run study FILE."
        )
    study = read_study(Path(arguments[0]))
    hours = dict(pairs).get("--hours")
    if "--dry-run" in flags:
        from sgp_runner.studies.cost import describe_cost

        for line in describe_cost(study, None if hours is None else hours_in(hours)):
            put(textwrap.fill(line, 80, subsequent_indent="    ", break_on_hyphens=False))
        return 0
    if hours is not None:
        raise ConfigError("--hours", "this option plans a study: add --dry-run.")
    from sgp_runner.studies.run_study import run_study

    if "--sbatch" in flags:
        from sgp_runner.cli.study_jobs import through_slurm

        show(run_study(study, through_slurm(study.folder, arguments[1:])))
    else:
        show(run_study(study))
    return 0


def split(argv: Sequence[str], options: Sequence[str] = ()) -> tuple[Sequence[str], Options]:
    """Return the positional arguments, and the options with their values.

    Raises ConfigError for an option that is not in ``options``.
    """
    from sgp_runner.plan.words import split_options

    for argument in argv:
        option = argument.partition("=")[0]
        if option.startswith("-") and option not in options:
            raise ConfigError(
                option,
                "this form of sgp-run study has no such option; sgp-run study --help lists all.",
            )
    return split_options(argv, options)


def new(arguments: Sequence[str], options: Options) -> int:
    """Write the file of a study and check it."""
    from sgp_runner.studies.arms import RunMaker, check_arms
    from sgp_runner.studies.new_file import content_of, text_of

    path, settings = Path(*arguments[:1]), arguments[1:]
    if not settings:
        raise ConfigError("study", "write sgp-run study new FILE algo=a,b.")
    if os.path.exists(path):  # unlike Path.exists, accepts any name
        raise ConfigError("study", f"'{path}' already exists; choose another name.")
    content = content_of(settings)
    check_arms(RunMaker(study_of(content, path.stem)))
    try:
        path.write_text(text_of(content), encoding="utf-8")
    except OSError as error:
        raise ConfigError("study", f"cannot write {path}: {error.strerror}.") from error
    print(f"{path}: run it with sgp-run study {path}, or look first with --dry-run", flush=True)
    return 0


def verify(paths: Sequence[str], options: Options) -> int:
    """Compute the tables of an archive again, and repeat some of its runs."""
    if len(paths) != 1:
        raise ConfigError("study", "write sgp-run study verify study.zip.")
    import secrets

    from sgp_runner.studies.verification import TOLERANCE, opened, repeat

    count, seed = (
        whole_number(option, dict(options).get(option, default))
        for option, default in (("--runs", "3"), ("--seed", str(secrets.randbelow(10**6))))
    )
    with opened(Path(paths[0]), plugins_in(options)) as study:
        runs = len(study.archive.runs)
        put(f"{study.archive.name}: {study.findings.answer}")
        put(
            f"file: as it was set down on {printable(study.record.set_down)}; made by sgp-run "
            f"{study.archive.version}"
        )
        put(f"tables: every number follows from the metrics of {runs} runs")
        put(
            f"repeating {min(count, runs)} of {runs} runs (--seed {seed}); except on the "
            f"machine of the archive, {100 * TOLERANCE:g} % of deviation are tolerated"
        )
        for name, outcome in repeat(study, count, seed):
            put(f"  {name}: {outcome}")
    return 0


def merge(arguments: Sequence[str], options: Options) -> int:
    """Merge the arms of several archives into one study."""
    from sgp_runner.studies.merging import merge

    paths = [Path(word) for word in arguments[:-1]]
    show(merge(paths, arguments[-1] if arguments else "", plugins_in(options)))
    return 0


def board(folders: Sequence[str], options: Options) -> int:
    """Write a site with the archives of a folder; the exit code is 1 if some are left out."""
    from sgp_runner.studies.board import write_board

    if len(folders) != 2:
        raise ConfigError("board", "write sgp-run study board FOLDER OUT.")
    site = write_board(Path(folders[0]), Path(folders[1]), plugins_in(options))
    for sentence in site.absent:
        put(sentence)
    for sentence in site.refused:
        print_error("sgp-run", sentence)
    put(f"{counted(site.archives, 'archive')}, page in {site.page}")
    return 1 if site.refused else 0


def audit(arguments: Sequence[str], options: Options) -> int:
    """Run the missing rows of the audit, or print their expected hours."""
    if arguments:
        raise ConfigError("study", f"write the rows of the audit as --rows={arguments[0]}.")
    rows = {path.stem: path for path in sorted(SHIPPED.glob("audit/*.yaml"))}
    chosen = [value for option, value in options if option == ROWS]
    names = [name for value in chosen for name in value.split(",")] or [*rows]
    for name in names:
        if name not in rows:
            raise ConfigError(
                ROWS,
                f"'{name}' is unknown: choose from {', '.join(rows)}.{nearest(name, rows)}",
            )
    studies = {name: read_study(rows[name]) for name in names}
    if DRY_RUN not in dict(options):
        from sgp_runner.studies.run_study import run_study

        for study in studies.values():
            show(run_study(study))
        return 0
    from sgp_runner.studies.cost import seconds_of_study

    total = 0.0
    for name, study in studies.items():
        runs, seconds = seconds_of_study(study)
        total += seconds
        put(f"{name:<22} at most {runs:4} runs, about {duration(seconds)}")
    put(f"{counted(len(studies), 'row')}: at most about {duration(total)}")
    return 0


def plugins_in(options: Options) -> list[str]:
    return [value for option, value in options if option == PLUGIN]


def whole_number(option: str, text: str) -> int:
    """Return the value of an option. Raises ConfigError unless it is a whole number."""
    if not text.isdecimal() or len(text) > 9:
        raise ConfigError(option, f"'{text}' is not a whole number, such as 3.")
    return int(text)


def hours_in(text: str) -> float:
    """Return the value of ``--hours``. Raises ConfigError unless it is a number above 0."""
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours < math.inf:
        raise ConfigError("--hours", f"'{text}' is not a number of hours, such as 2 or 0.5.")
    return hours


def show(result: StudyPage) -> None:
    """Print the table, the answer and the file locations of a study."""
    put(f"\n{result.text}\n\n{result.headline}\n{result.answer}\n")
    put(f"page in {result.page}, archive in {result.page.with_name('study.zip')}")


Options = Sequence[tuple[str, str]]
PLUGIN, ROWS, DRY_RUN = "--plugin", "--rows", "--dry-run"
ACTIONS: Mapping[str, Callable[[Sequence[str], Options], int]] = {
    "new": new,
    "verify": verify,
    "merge": merge,
    "board": board,
    "audit": audit,
}
OPTIONS = {
    "verify": ("--runs", "--seed", PLUGIN),
    "merge": (PLUGIN,),
    "board": (PLUGIN,),
    "audit": (ROWS, DRY_RUN),
}
