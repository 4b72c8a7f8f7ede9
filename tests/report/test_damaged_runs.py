"""Run folders that are damaged or forged are left out of a report with a sentence each."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest
import yaml
from helpers.report_runs import write_run

from sgp_runner.cli.report import main
from sgp_runner.report.plots.sections import sections
from sgp_runner.report.rank.headline import headline
from sgp_runner.report.rank.ranked_table import ranked_tables
from sgp_runner.report.rank.ranking import rankings
from sgp_runner.report.rank.run_summary import run_summary
from sgp_runner.report.rank.tables import Cell, CellLink, ReportTable, of_runs
from sgp_runner.report.read.run_folders import run_folders
from sgp_runner.report.read.run_groups import settings_in
from sgp_runner.report.read.runs import read_runs
from sgp_runner.report.render.text_tables import csv, markdown
from sgp_runner.report.render.write import render, write_report

CURVE = [[0.5, 0.6], [0.8, 0.9]]
Damage = Callable[[Path], object]


def edit(name: str, **values: object) -> Damage:
    """Set values in a JSON file."""

    def change(folder: Path) -> None:
        facts = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**facts, **values}))

    return change


def text(name: str, content: str | bytes) -> Damage:
    content = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(content)


def line(content: str) -> Damage:
    """Put a line before the records."""

    def change(folder: Path) -> None:
        path = folder / "metrics.jsonl"
        path.write_text(content + "\n" + path.read_text())

    return change


def instead(name: str, make: Callable[[Path], object]) -> Damage:
    """Put something else in the place of a file."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


def setting(content: str) -> Damage:
    """Append lines to the configuration."""

    def change(folder: Path) -> None:
        path = folder / "config.yaml"
        path.write_text(f"{path.read_text()}{content}\n")

    return change


ZERO = "/dev/zero"
BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]\n" for number in range(1, 12)
)
MERGES = "a0: &a0 {k: v}\n" + "".join(
    f"a{number}: &a{number} {{<<: [{', '.join([f'*a{number - 1}'] * 9)}]}}\n"
    for number in range(1, 12)
)
DEEP = "[" * 100_000
EVAL = '{"kind": "eval", "time_s": %s, "epoch": %s, "rank": %s, "accuracy": %s}'
DAMAGE: dict[str, tuple[Damage, str]] = {
    "an unknown clock": (edit("summary.json", clock="sundial"), "has invalid values: clock"),
    "nodes in words": (edit("summary.json", nodes="two"), "nodes 'two'"),
    "too many nodes": (edit("summary.json", nodes=10**9), "nodes 1000000000"),
    "digits without end": (
        lambda folder: text(
            "summary.json",
            (folder / "summary.json").read_text().replace('"nodes": 2', f'"nodes": 1{"0" * 400}'),
        )(folder),
        "its summary.json is not a JSON object",
    ),
    "no number": (edit("summary.json", time_s=float("nan")), "summary.json is not a JSON object"),
    "a time in words": (edit("summary.json", time_s="soon"), "time_s 'soon'"),
    "a list for a name": (edit("summary.json", model=["mlp"]), "model ['mlp']"),
    "a list for a row": (edit("summary.json", row=["x"]), "row ['x']"),
    "an escape in a name": (edit("summary.json", algorithm="\x1b[2J"), r"algorithm '\x1b[2J'"),
    "an unknown metric": (edit("summary.json", metric="luck"), "metric 'luck'"),
    "a deep summary": (text("summary.json", DEEP), "summary.json is not a JSON object"),
    "a pipe for a summary": (instead("summary.json", os.mkfifo), "not a JSON object"),
    "zeros for a summary": (
        instead("summary.json", lambda path: path.symlink_to(ZERO)),
        "not a JSON object",
    ),
    "a summary that leads nowhere": (
        instead("summary.json", lambda path: path.symlink_to("nowhere")),
        "not a JSON object",
    ),
    "deep records": (line(DEEP), "line 1: not a JSON object (nested more than 40 deep)"),
    "a number for a record": (line("1"), "line 1: not a JSON object"),
    "a record of no kind": (line('{"time_s": 1}'), "it has no kind"),
    "infinity": (line(EVAL % ("1e999", 1, 0, 0.5)), "1e999 is not finite"),
    "an epoch in words": (line(EVAL % (1, '"one"', 0, 0.5)), "an invalid epoch: 'one'"),
    "a rank that is a list": (line(EVAL % (1, 1, "[0]", 0.5)), "an invalid rank: [0]"),
    "an accuracy in words": (line(EVAL % (1, 1, 0, '"good"')), "an invalid accuracy: 'good'"),
    "a distance in words": (
        line('{"kind": "average", "time_s": 1, "epoch": 1, "consensus_distance": "far"}'),
        "an invalid consensus_distance: 'far'",
    ),
    "a line without end": (text("metrics.jsonl", b"\0" * 2_000_000), "longer than 1048576 bytes"),
    "records without end": (lambda folder: os.truncate(folder / "metrics.jsonl", 2**40), "MiB"),
    "a pipe for records": (instead("metrics.jsonl", os.mkfifo), "Not a regular file"),
    "zeros for records": (
        instead("metrics.jsonl", lambda path: path.symlink_to(ZERO)),
        "Not a regular file",
    ),
    "a folder for records": (instead("metrics.jsonl", Path.mkdir), "Is a directory"),
    "a pipe for records of rank 1": (
        lambda folder: os.mkfifo(folder / "metrics.rank1.jsonl"),
        "Not a regular file",
    ),
    "records of no rank": (text("metrics.rankx.jsonl", ""), "records cannot be read"),
    "settings in themselves": (setting("x: &a {y: *a}"), "its config.yaml cannot be read"),
    "deep settings": (setting(f"x: {DEEP}"), "its config.yaml cannot be read"),
    "a YAML bomb": (setting(BOMB), "its config.yaml cannot be read"),
    "a bomb of merges": (setting(MERGES), "its config.yaml cannot be read"),
    "code in settings": (setting("x: !!python/object/apply:os.system [ls]"), "cannot be read"),
    "a long setting": (setting(f"x: 1{'0' * 400}"), "its config.yaml cannot be read"),
    "settings without names": (setting("1: 2"), "names of settings that are not text"),
    "mixed names": (setting("x: {1: 2, a: 3}"), "not text, x,"),
    "a date": (setting("x: 2026-01-31"), "a value that no setting can have, x,"),
    "a cluster in a word": (setting("cluster: x"), "'x' for the settings of cluster."),
    "a cluster in a list": (setting("cluster: [1]"), "[1] for the settings of cluster."),
    "no cluster": (setting("cluster: null"), "None for the settings of cluster."),
    "an optimizer in a number": (setting("optim: 3"), "3 for the settings of optim."),
    "a batch in words": (setting("batch_size: many"), "batch_size in its config.yaml is not a num"),
    "a pipe for settings": (instead("config.yaml", os.mkfifo), "its config.yaml cannot be read"),
    "zeros for settings": (
        instead("config.yaml", lambda path: path.symlink_to(ZERO)),
        "its config.yaml cannot be read",
    ),
}


def test_damaged_runs_are_left_out_with_a_sentence(tmp_path: Path) -> None:
    good = write_run(tmp_path, "good", CURVE)
    sentences = {}
    for number, (name, (damage, _)) in enumerate(DAMAGE.items()):
        folder = tmp_path / f"run{number}"
        shutil.copytree(good, folder)
        damage(folder)
        sentences[f"{folder} is left out: "] = name
    runs = read_runs([tmp_path])
    assert list(runs.table["run"]) == ["good"] and len(runs.skipped) == len(DAMAGE)
    for sentence in runs.skipped:
        start, _, reason = sentence.partition("is left out: ")
        expected = DAMAGE[sentences[f"{start}is left out: "]][1]
        assert expected in reason and reason.endswith(".") and "\n" not in reason


def test_odd_but_harmless_runs_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dollars, which matplotlib takes for mathematics, and a commit that is no text."""
    odd_texts = ["a$x^{1$.txt", "b$\\frac$", "$$", "<b>|\n[x](javascript:alert(1))", "\x1b[2J"]
    for number, word in enumerate(odd_texts):
        folder = write_run(
            tmp_path / "runs", f"run{number}", CURVE, settings={"algo": {"path": word}}
        )
        edit("environment.json", git={"commit": [1], "dirty": "no"})(folder)
    write_run(tmp_path / "runs", "=1+2", CURVE, seed=2)
    write_run(tmp_path / "runs", "javascript:alert(document.domain)", CURVE, seed=3)
    write_run(tmp_path / "runs", "\x1b]0;x\x07", CURVE, seed=4)
    assert main([str(tmp_path / "runs"), "--out", str(tmp_path / "runs" / "out")]) == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err and "\x07" not in said.out + said.err


def test_tables_are_tables_and_links_lead_to_files(tmp_path: Path) -> None:
    names = ["=1+2", "-x", "@a", "+b", "\tc", "a|b", "a\nb", "[x](y)", "a`b", "c d", "javascript:x"]
    for seed, name in enumerate(names):
        write_run(tmp_path, name, CURVE, seed=seed)
    write_report([tmp_path], tmp_path)
    page = (tmp_path / "index.html").read_text()
    links = set(re.findall(r'href="([^"#][^"]*)"', page.split("<script")[0]))
    assert "./javascript:x/metrics.jsonl" in links and "./c%20d" in links
    assert not any(re.match(r"\w+:", link) for link in links - {"data:,"})
    table = of_runs(settings_in(read_runs([tmp_path])), [], lambda folder, file: f"./{file}")
    lines = markdown(table).splitlines()[4:]
    assert len(lines) == 2 + len(names)
    assert all(len(re.findall(r"(?<!\\)\|", markup)) == len(table.head) + 1 for markup in lines)
    cells = [cell for row in csv(table).splitlines() for cell in re.split(',"?', row)]
    assert "'=1+2" in cells and not any(cell.startswith(("=", "@", "+", "-")) for cell in cells)


def test_no_line_of_a_table_begins_an_html_tag() -> None:
    name = "<img src=x onerror=alert(1)>"
    cells = [[Cell([CellLink(name)])]]
    table = ReportTable("t", name, f"{name} is tested.", pd.DataFrame(), [name], cells, (name,))
    assert markdown(table).count("<img") == 4 == markdown(table).count(r"\<img")


def test_names_of_settings_are_no_formulas_and_hide_no_columns(tmp_path: Path) -> None:
    formula = "=cmd|' /C calc'!A0"
    for number, value in enumerate("ab"):
        settings = {formula: value, "a\n|b": value, "<i>": value, "quality": value, "self": value}
        write_run(tmp_path / "runs", value, CURVE, seed=number, settings=settings)
    write_report([tmp_path / "runs"], tmp_path)
    for name in ("runs", "settings"):
        table = pd.read_csv(tmp_path / f"{name}.csv")
        assert list(table[f"'{formula}"]) == list(table["self"]) == ["a", "b"]
        assert formula not in table and [*table["quality"]] == [pytest.approx(0.85)] * 2
        lines = (tmp_path / f"{name}.md").read_text().splitlines()[4:]
        assert (
            len(lines) == 4
            and len({len(re.findall(r"(?<!\\)\|", markup)) for markup in lines}) == 1
        )
        assert not re.search(r"\| [=@+]", "\n".join(lines))
    assert "<i>" not in (tmp_path / "index.html").read_text()


def test_links_that_lead_up_are_not_followed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", "a", CURVE)
    for name, target in (("self", "."), ("again", "."), ("up", ".."), ("root", "/")):
        (tmp_path / "runs" / name).symlink_to(target)
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "there").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "back").symlink_to(tmp_path / "beside")
    (tmp_path / "runs" / "loop").symlink_to("loop")
    assert run_folders([tmp_path]) == ([tmp_path / "beside" / "there" / "a"], [])
    assert run_folders([tmp_path / "runs"]) == ([folder], [])


SWEEPS: dict[str, tuple[bytes, str]] = {
    "binary": (b"job,run_dir\nx,\xff\xfe\n", "it cannot be searched ('utf-8' codec"),
    "without runs": (b"job,run_dir\nx,/etc\ny,a\0b\nz," + b"n" * 10_000 + b"\n", ""),
    "too long a cell": (b"job,run_dir\nx," + b"n" * 200_000 + b"\n", "field larger than"),
    "without end": (b"\0" * 17 * 2**20, "Larger than 16 MiB"),
}


@pytest.mark.parametrize("sweep", SWEEPS)
def test_forged_tables_of_sweeps_are_left_out(sweep: str, tmp_path: Path) -> None:
    content, reason = SWEEPS[sweep]
    folder = write_run(tmp_path, "a", CURVE)
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "comparison.csv").write_bytes(content)
    runs, skipped = run_folders([tmp_path])
    assert runs == [folder]
    assert len(skipped) == bool(reason)
    assert all(
        message.startswith(f"{tmp_path / 'sweep'} is left out: ") and reason in message
        for message in skipped
    )


VALUES: list[Any] = [None, True, -1, 0, 1e-320, 1e30, 10**19, "", "x" * 5000, "$a$", "=1", [], {}]
# Settings, columns of tables, arguments of pandas, and texts that something may take for code.
KEYS = ["cluster", "algo", "timed_as", "name", "folder", "settings", "quality", "self", "cls"]
KEYS += ["=cmd|' /C calc'!A0", "@a", "a|b", "a\nb", "<script>", "\x1b[31m", "a.b", "", "x" * 5000]
VALUES += [[[]], {"a": {"b": 1}}, "\x1b[31m", "a\nb", "1", float("inf"), "simulated", "wall"]


def mutate(folder: Path, random: Random) -> None:
    """Change one value, line or byte of a run, or the kind of one of its files."""
    path = random.choice(sorted(folder.iterdir()))
    content = path.read_bytes()
    how = random.randrange(7)
    if how == 0:
        path.write_bytes(content[: random.randrange(len(content))])
    elif how == 1:
        place = random.randrange(len(content))
        path.write_bytes(content[:place] + random.randbytes(4) + content[place + 1 :])
    elif how == 2:
        path.unlink()
        make: Callable[[Path], object] = random.choice(
            [os.mkfifo, Path.mkdir, lambda link: link.symlink_to(random.choice([".", "/", ZERO]))]
        )
        make(path)
    elif path.suffix == ".jsonl":
        lines = content.splitlines()
        place = random.randrange(len(lines))
        lines[place] = json.dumps(changed(json.loads(lines[place]), random)).encode()
        path.write_bytes(b"\n".join(lines) + b"\n")
    elif path.suffix == ".json":
        path.write_text(json.dumps(changed(json.loads(content), random)))
    else:
        path.write_text(yaml.safe_dump(changed(yaml.safe_load(content), random)))


def changed(facts: dict[str, Any], random: Random) -> dict[str, Any]:
    """Remove, replace or add a value at any depth; a mapping is replaced as any other value."""
    key = random.choice(sorted(facts))
    if facts[key] and isinstance(facts[key], dict) and random.random() < 0.6:
        return {**facts, key: changed(facts[key], random)}
    how = random.random()
    if how < 0.2:
        return {name: fact for name, fact in facts.items() if name != key}
    return {**facts, random.choice(KEYS) if how < 0.5 else key: random.choice(VALUES)}


def make_mutants(root: Path, seeds: range) -> None:
    """Put a mutation of one of three good runs for each seed into ten folders."""
    cluster = {"name": "lab", "links": {"bandwidth": 1e9}, "compute_time": {"name": "constant"}}
    parts: dict[str, object] = {"cluster": cluster, "timed_as": {"model": "llama_1b"}}
    parts |= {"optim": {"name": "sgd", "lr": 0.1, "schedule": {"name": "constant"}}}
    good = [
        write_run(root / "kept", "simulated", CURVE, settings=parts),
        write_run(root / "kept", "real", CURVE, clock="wall"),
        write_run(
            root / "kept", "study", nodes=4, settings=parts, row="sgp_sgp_90", ms_per_iteration=4.0
        ),
    ]
    for seed in seeds:
        random = Random(seed)
        folder = root / str(seed % 10) / f"mutated{seed}"
        shutil.copytree(random.choice(good), folder)
        mutate(folder, random)


@pytest.fixture(scope="module")
def mutated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mutated")
    make_mutants(root, range(200))
    return root


def test_mutated_runs_are_shown_or_left_out(mutated: Path) -> None:
    runs = read_runs([mutated])
    shown = set(runs.table["run"])
    left = {Path(sentence.partition(" is left out: ")[0]).name for sentence in runs.skipped}
    assert shown.isdisjoint(left) and {"simulated", "real", "study"} <= shown
    assert len(shown) > 80 and len(left) > 80
    settings = settings_in(runs)
    table = of_runs(settings, [], lambda folder, file: f"./{file}")
    assert len(markdown(table).splitlines()) == 6 + len(shown)
    ranked = rankings(settings)
    shown = sections(settings, ranked, [])
    box = run_summary(settings)
    page = render(
        "title", headline(ranked), "", box, [], ranked_tables(ranked), shown, [table], runs.skipped
    )
    assert page.count("is left out: ") == len(runs.skipped)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(10))
def test_mutated_runs_do_not_stop_a_report(group: int, mutated: Path, tmp_path: Path) -> None:
    assert main([str(mutated / str(group)), "--out", str(tmp_path)]) == 0
