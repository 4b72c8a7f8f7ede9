"""``sgp-run study``: run a study, or write the file of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sgp_runner.cli.argparser import put
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from sgp_runner.studies.study_file import StudyFile

USAGE = """usage: sgp-run study FILE [--dry-run]
       sgp-run study new FILE KEY=VALUE ...

Compares algorithms by the rules of FILE: the same search for each arm, shared
seeds, one primary comparison. Results are in results/studies/NAME/: index.html,
and the table as CSV, Markdown and LaTeX. The same command continues a study.

  sgp-run study mine.yaml              make all runs that are missing, and the page
  sgp-run study mine.yaml --dry-run    runs, hours, disk and power; nothing is trained
  sgp-run study claims/02              a study of this package, in configs/study
  sgp-run study new mine.yaml algo=./mine.py,sgp,ar_sgd task=images seeds=5 budget=8
                                       write a file; several algorithms are the arms
  sgp-run study new mine.yaml algo=sgp,ar_sgd model=mlp epochs=5 \\
      cluster.bandwidth=10Gbit/s,1Gbit/s measures=loss,time_to_loss(0.5)

keys of a study, besides the settings of sgp-run that all arms share
  question     the question, as a sentence
  task         images | grammar: model, data and schedule by name
  arms         a name and the settings of each arm; new makes them of algo=
  baseline     the arm that the others are compared with (default: the last)
  primary      the arm whose comparison is tested alone (default: the first)
  tune         optim.lr: ladder, other settings with a list of values, and
               budget: the runs of each arm's search
  seeds        number of runs of each arm that decide, or a list (default: 5)
  matters      the smallest difference that matters, such as 0.02 nats; pilot runs
               then tell how many seeds find it with a power of 80 %
  clusters     machines to time the arms on, such as sgp_ethernet bandwidth=1Gbit/s
  measures     loss, accuracy, time, bytes, time_to_loss(0.5), bytes_to_accuracy(90%)
  amended      the reason of a change after the first run"""


def main(argv: Sequence[str]) -> int:
    """Run the command with the arguments after its name and return the exit code."""
    if "--help" in argv or "-h" in argv:
        put(USAGE)
        return 0
    words = [argument for argument in argv if not argument.startswith("-")]
    options = {argument for argument in argv if argument.startswith("-")}
    if unknown := options - {"--dry-run"}:
        raise ConfigError(min(unknown), "there is no such option of sgp-run study.")
    if not words or (words[0] == "new" and len(words) < 2):
        raise ConfigError("study", "write sgp-run study FILE, or sgp-run study new FILE algo=a,b.")
    if words[0] == "new":
        return new(Path(words[1]), words[2:])
    if len(words) > 1:
        raise ConfigError(words[1], "settings stand in the file of the study.")
    from sgp_runner.studies.study_file import read_study

    return run(read_study(Path(words[0])), "--dry-run" in options)


def new(path: Path, words: Sequence[str]) -> int:
    """Write the file of a study and check it."""
    from sgp_runner.studies.arms import RunMaker, check_arms
    from sgp_runner.studies.new_file import content_of, text_of
    from sgp_runner.studies.study_file import study_of

    if path.exists():
        raise ConfigError("study", f"there is a '{path}' already; choose another name.")
    content = content_of(words)
    check_arms(RunMaker(study_of(content, path.stem)))
    try:
        path.write_text(text_of(content), encoding="utf-8")
    except OSError as error:
        raise ConfigError("study", f"cannot write {path}: {error.strerror}.") from error
    print(f"{path}: run it with sgp-run study {path}, or look first with --dry-run", flush=True)
    return 0


def run(study: StudyFile, dry_run: bool) -> int:
    """Run a study, or print what it would take."""
    from sgp_runner.studies.cost import describe_cost
    from sgp_runner.studies.performance import perform_study

    if dry_run:
        put("\n".join(describe_cost(study)))
        return 0
    made = perform_study(study)
    put(f"\n{made.text}\n\n{made.answer}\n\npage in {made.page}")
    return 0
