"""The commands of README.md and ``docs/`` work as they stand there.

A comment before each block of commands, ``<!-- commands: run -->``, says how they are tested, with
one word for all or one for each:

* run: in a fresh folder for each page, in the order of the page; each block begins in that folder
* long: the same, in the slow tests; the others compose it as below
* dry: needs a cluster, GPUs, a download, real data or hours; its settings are composed into an
  experiment, whose classes are built, and its files, targets and extras have to be there
* other: of another program, whose syntax the shell checks
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest
from helpers.paths import ROOT

from sgp_runner.cli import download, new, replay, report, study, sweep
from sgp_runner.cli.export_texts import HOSTS
from sgp_runner.cli.options import load
from sgp_runner.cli.sweep import combinations, is_sweep, plan
from sgp_runner.config.choices import groups
from sgp_runner.config.command_line import Setting, parse
from sgp_runner.config.experiment import make_experiment
from sgp_runner.config.overrides import compose, configs
from sgp_runner.plan.observation import read_observation
from sgp_runner.plan.request import read_request

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CLASSES = ("run", "long", "dry", "other")
# A line that is a command: a program, after variables.
PROGRAMS = (
    r"sgp-(?:run|report|replay|sync)\b(?!:)",
    r"(?:\.venv/bin/)?(?:pip|python|sgp-\w+|pytest|mkdocs)\b(?!:)",
    r"(?:scripts|slurm|containers)/\S+",
    r"(?:make|git|cd|eval|export|uv|curl|source|jupyter)\s",
    r"(?:sbatch|srun|scontrol|torchrun|mpirun|kubectl|docker|apptainer|sky|wandb|tensorboard)\s",
    r"(?:mlflow|eksctl|enroot)\s",
)
COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:{'|'.join(PROGRAMS)})")
MARK = re.compile(r"<!-- commands: ([\w ]+) -->\s*\Z")
CODE = re.compile(r"^```(\w*).*\n([\s\S]*?)^```$|((?:^ {4}.*\n|^\n(?= {4}))+)", re.MULTILINE)
FILE = re.compile(r"`([\w./]+\.\w+)`:\n\n```\w+\n([\s\S]*?)^```$", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """A command in a block of a page, and how it is tested."""

    page: Path
    block: int
    line: str
    how: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.line}"


def commands(page: Path) -> Iterator[Command]:
    """The commands of a page, in their order; those without a class have an empty one."""
    for block, (names, lines) in enumerate(blocks(page.read_text(encoding="utf-8"))):
        classes = names * len(lines) if len(names) == 1 else names
        for i, line in enumerate(lines):
            yield Command(page, block, line, classes[i] if len(classes) == len(lines) else "")


def blocks(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """The classes and the commands of each block of commands."""
    for found in CODE.finditer(text):
        if (found[1] or "bash") not in ("bash", "sh", "console", "shell"):
            continue
        body = found[2] if found[3] is None else found[3]
        lines = [without_comment(line) for line in body.replace("\\\n", " ").splitlines()]
        if lines := [line for line in lines if COMMAND.match(line)]:
            mark = MARK.search(text, max(0, found.start() - 200), found.start())
            yield (mark[1].split() if mark else []), lines


def without_comment(line: str) -> str:
    return re.sub(r"\s+# .*", "", line).strip()


def files_of(page: Path, folder: Path) -> None:
    """Write the files that a page shows after their names, ``average.py``:, into ``folder``."""
    for name, text in FILE.findall(page.read_text(encoding="utf-8")):
        if not (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")


def perform(page: Path, folder: Path, wanted: Sequence[str]) -> None:
    """Run the commands of the classes ``wanted`` as they stand on the page."""
    files_of(page, folder)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "WANDB_MODE": "offline",
    }
    chosen = (command for command in commands(page) if command.how in wanted)
    for _, block in groupby(chosen, lambda command: command.block):
        lines = "\n".join(command.line for command in block)
        done = subprocess.run(
            ["bash", "-exc", lines],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{page}\n{done.stdout}\n{done.stderr}"


def pages_with(*wanted: str) -> list[Path]:
    return [page for page in PAGES if any(command.how in wanted for command in commands(page))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", pages_with("run"), ids=name_of)
def test_commands_work_as_written(page: Path, tmp_path: Path) -> None:
    perform(page, tmp_path, ["run"])


@pytest.mark.slow
@pytest.mark.timeout(36000)
@pytest.mark.parametrize("page", pages_with("long"), ids=name_of)
def test_long_commands_work_as_written(page: Path, tmp_path: Path) -> None:
    perform(page, tmp_path, ["run", "long"])


@pytest.mark.parametrize(
    "page",
    [
        # Each of its sweeps composes eight runs.
        pytest.param(page, marks=pytest.mark.slow if page.name == "compare.md" else ())
        for page in pages_with("long", "dry", "other")
    ],
    ids=name_of,
)
def test_settings_of_the_others_make_a_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files_of(page, tmp_path)
    monkeypatch.setattr(sweep, "combinations", covering)
    for _, block in groupby(commands(page), lambda command: command.block):
        monkeypatch.chdir(tmp_path)
        for command in block:
            if command.line in CHECKED:
                continue
            if not OF_A_FILE.search(command.line):
                CHECKED.add(command.line)
            if command.how == "other":
                subprocess.run(["bash", "-n", "-c", command.line], check=True)
                continue
            try:
                dry(shlex.split(command.line))
            except (SystemExit, Exception) as error:
                raise AssertionError(f"{command}: {error}") from error


CHECKED: set[str] = set()  # commands of other pages, which are the same here
# Commands that read or write files of their page.
OF_A_FILE = re.compile(r"\./|\.\w+(?: |$)|^sgp-run (?:new|calibrate|study|download|export)\b")


def covering(settings: Sequence[Setting]) -> list[list[str]]:
    """Return combinations of a sweep in which each of its values occurs."""
    chosen: list[list[str]] = []
    found: set[str] = set()
    for lines in combinations(settings):
        if not found.issuperset(lines):
            chosen.append(lines)
            found.update(lines)
    return chosen


def dry(tokens: list[str]) -> None:
    """Check a command without running it."""
    if tokens[0] == "cd":
        os.chdir(tokens[1])
        tokens = tokens[3:]
    for word in tokens:
        if re.match(r"(scripts|slurm)/", word):
            assert (ROOT / word).exists(), f"there is no {word}"
    place = next(i for i, word in enumerate(tokens) if (found := DRY.get(Path(word).name)))
    assert found is not None
    found([word for word in tokens[place + 1 :] if word != "..."])


def dry_run(arguments: list[str]) -> None:
    """Compose the settings of ``sgp-run``, and build the parts of each of its runs."""
    if arguments[:1] == ["new"]:
        new.main(arguments[1:])
        return
    if arguments[:1] == ["study"] and arguments[1] in {*study.ACTIONS} - {"new"}:
        study.split(arguments[2:], study.OPTIONS.get(arguments[1], ()))
        return
    if arguments[:1] == ["study"]:
        study.main(arguments[1:] if arguments[1] == "new" else [*arguments[1:], "--dry-run"])
        return
    if arguments[:1] == ["download"]:
        assert arguments[1] in download.NAMES, arguments
        return
    if arguments[:1] == ["export"]:
        assert arguments[2] == "--to" and arguments[3] in HOSTS and len(arguments) == 5
        return
    if arguments[:1] == ["plan"]:
        read_request(arguments[1:])
        return
    if arguments[:1] == ["doctor"]:
        assert "--measure" in arguments or read_observation(arguments[1:])
        return
    if arguments[:1] == ["check"]:
        arguments = arguments[1:]
    if arguments[:1] == ["calibrate"]:
        (name,) = (word.removeprefix("name=") for word in arguments if word.startswith("name="))
        profile = Path("results/cluster", f"{name}.yaml")  # one that it might write
        profile.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "configs/cluster/laptop.yaml", profile)
        arguments = [word for word in arguments[1:] if word != f"name={name}"]
    command = load(arguments)
    with configs():
        settings = parse([*command.overrides, *command.folder])
        settings = [setting for setting in settings if setting.name != "jobs"]
        if "--multirun" in command.options or is_sweep(settings):
            plan(settings)
        else:
            make_experiment(compose(settings))


def dry_make(arguments: Sequence[str]) -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(arguments) <= {*targets, ".venv/.fairseq"}, arguments


def dry_pip(arguments: Sequence[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"sgp-runner\[([\w,]+)\]", " ".join(arguments)):
        assert set(extras.split(",")) <= project["optional-dependencies"].keys(), extras


DRY: dict[str, Callable[[list[str]], object]] = {
    "sgp-run": dry_run,
    "sgp-runner": dry_run,
    "sgp_runner": dry_run,
    "run.sbatch": dry_run,
    "sweep.sh": lambda arguments: dry_run([f"nodes={arguments[0]}", "-m", *arguments[1:]]),
    "sgp-report": lambda arguments: report.parser().parse_args(arguments),
    "sgp-replay": lambda arguments: replay.parser().parse_args(arguments),
    "sgp-sync": lambda arguments: None,
    "make": dry_make,
    "pip": dry_pip,
    "python": lambda arguments: None,
    **{
        path.name: lambda arguments: None for path in (ROOT / "scripts").iterdir() if path.is_file()
    },
}


def test_every_command_has_a_class() -> None:
    assert [
        str(command) for page in PAGES for command in commands(page) if command.how not in CLASSES
    ] == []


def test_commands_are_found_with_their_classes() -> None:
    text = "Text\n\n    sgp-run algo=sgp  # why\n    sgp-run: an error\n\n```bash\nmake demo\n```\n"
    assert list(blocks(text)) == [([], ["sgp-run algo=sgp"]), ([], ["make demo"])]
    marked = (
        "<!-- commands: run dry -->\n\n    sgp-run nodes=4\n    sbatch slurm/run.sbatch\n\nThen"
    )
    assert list(blocks(marked)) == [
        (["run", "dry"], ["sgp-run nodes=4", "sbatch slurm/run.sbatch"]),
    ]
    python = "```python\nimport os\n```\n"
    assert list(blocks(python)) == []


def test_every_algorithm_has_a_page() -> None:
    pages = {path.stem for path in (ROOT / "docs/algorithms").glob("*.md")} - {"index"}
    assert pages == set(groups()["algo"])
    index, readme = (
        " ".join(re.findall(r"^\| (\[`.+?) \|", (ROOT / place).read_text(), re.MULTILINE))
        for place in ("docs/algorithms/index.md", "README.md")
    )
    assert set(re.findall(r"\[`(\w+)`\]", index)) == pages
    twelve = set(re.findall(r"\[`(\w+)`\]", readme)) & pages
    others = f"[{len(pages) - 12} others](docs/algorithms/index.md)"
    assert len(twelve) == 12 and others in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", ["sgp", "osgp", "pipe_sgd", "gap_aware", "streaming_diloco"])
def test_lines_beside_a_listing_are_those_of_the_code(name: str) -> None:
    page = (ROOT / f"docs/algorithms/{name}.md").read_text()
    lines = re.findall(r"^\|[^|]*\| `([^|]+)` \|$", page, flags=re.MULTILINE)
    module = (ROOT / f"sgp_runner/algorithms/{name}.py").read_text()
    assert len(lines) > 4
    assert [line for line in lines if line not in module] == []


def test_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)", text)
    assert len(links) >= 10
    for target, anchor in links:
        path = ROOT / (target or "README.md")
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [
                re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
            ]
            assert anchor[1:] in slugs, f"{target}{anchor}"
