"""The archive of a study: its bytes, its verification, and forgeries that it finds."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import sgp_runner as sgp
from sgp_runner.cli.main import main
from sgp_runner.distributed.private_folder import prefix
from sgp_runner.studies import board
from sgp_runner.studies.arm_settings import Arm
from sgp_runner.studies.board import write_board
from sgp_runner.studies.candidates import Candidate, Tuned
from sgp_runner.studies.measures import measure_of
from sgp_runner.studies.merging import merge
from sgp_runner.studies.study_archive import VerificationFailed, extract
from sgp_runner.studies.study_file import study_of
from sgp_runner.studies.study_page import deviations
from sgp_runner.studies.verification import compare_rows, compare_runs, opened, same_text

CONTENT: dict[str, Any] = {
    "model": "mlp",
    "model.hidden": [4],
    "nodes": 2,
    "epochs": 0.04,
    "eval_every": 0.02,
    "arms": {"SGP": "algo=sgp", "AR-SGD": "algo=ar_sgd"},
    "seeds": 2,
    "clusters": ["laptop bandwidth=1Gbit/s", "laptop bandwidth=100Mbit/s"],
    "measures": ["loss", "time_to_loss(9)"],
}
Edit = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The archive of a study that was made in the current folder."""
    folder, before = tmp_path_factory.mktemp("archive"), Path.cwd()
    os.chdir(folder)
    sgp.study(CONTENT, "small", verbose=False)
    yield folder / "results/studies/small/study.zip"
    os.chdir(before)


def forged(archive: Path, out: Path, edits: Mapping[str, Edit], checksums: bool = True) -> Path:
    """Write an archive with changed files; with ``checksums`` the index fits them."""
    with zipfile.ZipFile(archive) as source:
        files = {name: source.read(name) for name in source.namelist()}
    for name, edit in edits.items():
        files[name] = edit(files[name])
    index = json.loads(files["archive.json"])
    if checksums:
        digests = {name: hashlib.sha256(files[name]).hexdigest() for name in index["files"]}
        files["archive.json"] = json.dumps({**index, "files": digests}).encode()
    with zipfile.ZipFile(out, "w") as target:
        for name, content in files.items():
            target.writestr(name, content)
    return out


def deciding(archive: Path, kind: str = "runs/sgp-mlp") -> str:
    """Return the folder of a run of SGP in the archive."""
    with zipfile.ZipFile(archive) as source:
        names = {name.rpartition("/")[0] for name in source.namelist()}
    return min(name for name in names if name.startswith(kind))


def other_loss(line: bytes) -> bytes:
    record = json.loads(line)
    return json.dumps({**record, "loss": record["loss"] / 2}).encode() + b"\n"


def better(metrics: bytes) -> bytes:
    """Return metrics in which the losses of the averaged model are half of what they were."""
    lines = metrics.splitlines(keepends=True)
    return b"".join(other_loss(line) if b'"kind": "average"' in line else line for line in lines)


def test_an_archive_has_all_runs_and_the_same_bytes_again(archive: Path) -> None:
    with zipfile.ZipFile(archive) as source:
        names = source.namelist()
        assert {entry.date_time for entry in source.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert names[:4] == ["archive.json", "study.json", "table.csv", "budget.csv"]
    runs = [name.split("/") for name in names[4:]]
    assert len({run for _, run, _ in runs}) == 8 and {folder for folder, *_ in runs} == {
        "runs",
        "retimed",
    }
    assert {file for *_, file in runs} == {
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "summary.json",
    }
    before = archive.read_bytes()
    sgp.study(CONTENT, "small", verbose=False)
    assert archive.read_bytes() == before


def test_verify_computes_the_tables_again_and_repeats_runs(
    archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "verify", str(archive), "--runs=2", "--seed=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("small: ") and "for every seed" not in lines[0]
    assert lines[2] == "tables: every number follows from the metrics of 8 runs"
    assert lines[3].startswith("repeating 2 of 8 runs (--seed 1)")
    assert [line.partition(": ")[2] for line in lines[4:]] == ["equal to the byte"] * 2


@pytest.mark.parametrize(
    ("name", "edit", "sentence"),
    [
        (
            "table.csv",
            lambda text: text.replace(b",SGP,", b",SGD,"),
            "table.csv has different rows than the runs give.",
        ),
        (
            "budget.csv",
            lambda text: text.replace(b",0,0,2,", b",0,0,3,", 1),
            "budget.csv, line 2: runs that decide is 3, but the runs give 2.",
        ),
        (
            "study.json",
            lambda text: text.replace(b'"epochs": 0.04', b'"epochs": 0.08'),
            "study.json has a file whose digest differs from the recorded one.",
        ),
        (
            "archive.json",
            lambda text: text.replace(b'"answer": "', b'"answer": "Yes. '),
            "the answer does not follow from the runs",
        ),
        ("study.json", lambda text: b'{"versions": []}', "study.json holds no study."),
        ("SUMMARY", lambda text: text.replace(b'"steps"', b'"stops"'), "differs from the end"),
        (
            "METRICS",
            lambda text: text.replace(b'"time_s": 0', b'"time_s": "..", "0": 0'),
            r"^runs/sgp-mlp[^/]*/metrics\.jsonl is damaged: time_s in line 1 is not a number\.$",
        ),
        ("CONFIG", lambda text: b"[]", r"/config\.yaml is damaged: it is not a mapping\.$"),
        (
            "table.csv",
            lambda text: text + b'"' + b"x" * 200_000 + b'"\n',
            r"^table\.csv is damaged: it is not a table, or has a cell of over 131072 characters",
        ),
        (
            "study.json",
            lambda text: text.replace(b'"started"', b'"ended"'),
            r"^study\.json has a version without its started\.$",
        ),
        (
            "CONFIG",
            lambda text: text.replace(b"epochs: 0.04", b"epochs: 0.06"),
            "differs in settings from its study: config.yaml.",
        ),
    ],
)
def test_a_forged_file_is_named(
    archive: Path, tmp_path: Path, name: str, edit: Edit, sentence: str
) -> None:
    names = {"SUMMARY": "summary.json", "CONFIG": "config.yaml", "METRICS": "metrics.jsonl"}
    name = f"{deciding(archive)}/{names[name]}" if name in names else name
    path = forged(archive, tmp_path / "forged.zip", {name: edit})
    assert path.read_bytes() != archive.read_bytes()
    with pytest.raises(VerificationFailed, match=sentence), opened(path):
        pass


def test_a_forged_metric_is_found_by_its_checksum_or_by_the_table(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{deciding(archive)}/metrics.jsonl"
    path = forged(archive, tmp_path / "a.zip", {name: better}, checksums=False)
    assert main(["study", "verify", str(path)]) == 1
    assert capsys.readouterr().err == (
        f"sgp-run: {name} was changed: its checksum is not the one in archive.json.\n"
    )
    lost = {"archive.json": lambda text: text.replace(b'"budget.csv": ', b'"other.csv": ')}
    path = forged(archive, tmp_path / "c.zip", lost, checksums=False)
    sentence = r"^other\.csv is missing in the archive, or in its archive\.json\.$"
    with pytest.raises(VerificationFailed, match=sentence), opened(path):
        pass
    path = forged(archive, tmp_path / "b.zip", {name: better})
    sentence = r"table.csv, line \d: mean is .*, but the runs give"
    with pytest.raises(VerificationFailed, match=sentence), opened(path):
        pass


def test_a_forgery_that_fits_its_tables_is_found_by_a_repetition(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(archive) as study:
        folder = study.archive.folder / deciding(archive)
        metrics = folder / "metrics.jsonl"
        metrics.write_bytes(better(metrics.read_bytes()))
        content = {**CONTENT, "results": str(study.archive.folder.parents[1])}
        (study.archive.folder / "study.json").unlink()
        sgp.study(content, "small", verbose=False)
        path = tmp_path / "study.zip"
        path.write_bytes((study.archive.folder / "study.zip").read_bytes())
    assert main(["study", "verify", str(path), "--runs", "0"]) == 0
    assert main(["study", "verify", str(path), "--runs", "8"]) == 1
    said = capsys.readouterr().err
    # The run itself, or the one that is re-timed from it.
    assert said.startswith(f"sgp-run: {folder.name}") and ": loss at epoch 0.02 " in said
    assert said.endswith(" here (the same machine).\n")


def test_a_repetition_on_another_machine_may_differ_by_rounding(
    archive: Path, tmp_path: Path
) -> None:
    def changed(path: Path, key: str, value: object) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))

    with opened(archive) as study:
        ran = study.archive.folder / deciding(archive)
        again = shutil.copytree(ran, tmp_path / "again")
        assert compare_runs(ran, again) == "equal to the byte"
        lines = [json.loads(line) for line in (again / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            if line["kind"] == "average":
                line["loss"] *= 1 + 1e-6
        (again / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        with pytest.raises(VerificationFailed, match=r": loss at .* here \(the same machine\)\.$"):
            compare_runs(ran, again)
        sibling = next(folder for folder in ran.parent.iterdir() if folder != ran)
        changed(sibling / "environment.json", "processor", "another")
        with pytest.raises(VerificationFailed, match=r"\(the same machine\)\.$"):
            compare_runs(ran, again)
        config = (ran / "config.yaml").read_text()
        assert "pretrain:\n  steps: 0\n" in config
        (ran / "config.yaml").write_text(
            config.replace("pretrain:\n  steps: 0", "pretrain:\n  steps: 3")
        )
        found = "(other processor of the pretrained model): loss at epoch 0.02 "
        assert compare_runs(ran, again).startswith(f"within 5 % {found}")
        (ran / "config.yaml").write_text(config)
        changed(ran / "environment.json", "processor", "another")
        assert compare_runs(ran, again).startswith(
            "within 5 % (other processor): loss at epoch 0.02 "
        )


def test_a_folder_that_a_killed_command_left_is_removed(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / f"{prefix()}abcdefgh"
    (left / "studies").mkdir(parents=True)
    (left / "private.lock").touch()
    with opened(archive) as study:
        assert study.archive.folder.is_relative_to(tmp_path) and not left.exists()
        assert [path.name[: len(prefix())] for path in tmp_path.iterdir()] == [prefix()]
    assert not [*tmp_path.iterdir()]


def test_a_run_that_lost_state_is_marked_on_the_page(archive: Path, tmp_path: Path) -> None:
    def marked(text: bytes) -> bytes:
        return text.replace(b'"metric"', b'"lost_state": ["m"], "metric"')

    names = ("metrics.jsonl", "summary.json")
    edits = {f"{deciding(archive)}/{name}": marked for name in names}
    with opened(forged(archive, tmp_path / "a.zip", edits)) as study:
        said = deviations(study.maker, study.findings.done, study.record, study.findings.compared)
        assert (
            "1 run of SGP resumed without state of the algorithm that its checkpoints do not have: "
            "repeat the runs, or keep it with worker.state." in [*said]
        )


def test_a_study_with_another_task_lacks_its_runs(archive: Path, tmp_path: Path) -> None:
    def changed(text: bytes) -> bytes:
        record = json.loads(text)
        version = record["versions"][0]
        version["content"]["epochs"] = 0.08
        content = json.dumps(version["content"], sort_keys=True)
        version["digest"] = hashlib.sha256(content.encode()).hexdigest()
        return json.dumps(record).encode()

    path = forged(archive, tmp_path / "forged.zip", {"study.json": changed})
    sentence = "is missing: the runs used other settings"
    with pytest.raises(VerificationFailed, match=sentence), opened(path):
        pass


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("../evil", b"", r"'\.\./evil' is not a file of a study"),
        ("/etc/passwd", b"", "'/etc/passwd' is not a file of a study"),
        ("runs/../../x/config.yaml", b"", "is not a file of a study"),
        ("runs/a/plugin.py", b"", "is not a file of a study"),
        (
            "archive.json",
            b'{"format": 1, "sgp_run": "0.2.0", "answer": "SGP is better."}',
            "it is of version 0.2.0 of sgp-run, neither comparable with this version nor "
            "resumable, and answers: SGP is better.",
        ),
        (
            "archive.json",
            b'{"format": 2, "name": "a", "files": {}}',
            "its archive.json is incomplete",
        ),
        (
            "archive.json",
            b'{"format": 2, "name": "..", "files": {}, "answer": "", "sgp_run": ""}',
            "'..' cannot name a folder",
        ),
        (
            "archive.json",
            b'{"format": 2, "name": "a", "files": {}, "answer": "", "sgp_run": "1\\u001b[2J"}',
            "its archive.json is incomplete",
        ),
        ("archive.json", b"{", "is not a readable archive of a study"),
        ("study.json", b"{}", "or it has no archive.json"),
    ],
)
def test_an_archive_with_unusual_files_is_refused(
    tmp_path: Path, name: str, content: bytes, sentence: str
) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)
    with pytest.raises(sgp.ConfigError, match=sentence):
        extract(path, tmp_path / "out")
    assert not list(tmp_path.glob("*evil*"))


def test_a_file_that_is_no_archive_or_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.zip"
    path.write_text("no archive")
    with pytest.raises(sgp.ConfigError, match="archive of a study: File is not a zip file"):
        extract(path, tmp_path / "out")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("table.csv", bytes(10_000_000))
    monkeypatch.setattr("sgp_runner.studies.study_archive.MAX_BYTES", 2_000_000)
    with pytest.raises(sgp.ConfigError, match="it has over 50000 files or 1 MiB"):
        extract(path, tmp_path / "out")


def test_cells_are_equal_up_to_rounding() -> None:
    assert same_text("0.1 text 1e-300", "0.10000000000000001 text 2e-300")
    assert not same_text("0.1", "0.1000001") and not same_text("a", "b")
    assert not same_text("1 2", "1") and same_text("", "")
    given, found = [["#", "arm", "mean"], ["1", "a", "2"]], [["#", "arm", "mean"], ["1", "a", "3"]]
    with pytest.raises(VerificationFailed, match="t, line 2: mean is 2, but the runs give 3"):
        compare_rows("t", given, found)


@pytest.fixture(scope="module")
def other(archive: Path) -> Path:
    """The archive of a study with another arm and the same rules."""
    arms = {"OSGP": "algo=osgp", "AR-SGD": "algo=ar_sgd"}
    sgp.study({**CONTENT, "arms": arms}, "other", verbose=False)
    return archive.parents[1] / "other/study.zip"


def test_merge_puts_the_arms_of_two_archives_into_one_table(
    archive: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "merge", str(archive), str(other), "both"]) == 0
    out = Path("results/studies/both")
    assert capsys.readouterr().out.endswith(f"archive in {out}/study.zip\n")
    table = pd.read_csv(out / "table.csv")
    assert set(table["arm"]) == {"SGP", "OSGP", "AR-SGD"}
    assert set(table[table["verdict"] == "baseline"]["arm"]) == {"AR-SGD"}
    assert set(table[table["primary"]]["arm"]) == {"SGP"}
    before = pd.read_csv(archive.parent / "table.csv").set_index(["arm", "measure", "cluster"])
    after = table.set_index(["arm", "measure", "cluster"])
    assert list(after.loc[before.index, "values"]) == list(before["values"])
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "Merged from small (set down " in page and "; SGP, AR-SGD); other (set down " in page
    with opened(out / "study.zip") as study:
        assert len(study.archive.runs) == 12
    with pytest.raises(sgp.ConfigError, match="both already exists; choose another name."):
        merge([archive, other], "both")


def test_merge_refuses_other_settings_and_names_them(archive: Path, tmp_path: Path) -> None:
    def changed(text: bytes) -> bytes:
        record = json.loads(text)
        version = record["versions"][0]
        version["content"]["arms"]["SGP"] = "algo=sgp  "
        content = json.dumps(version["content"], sort_keys=True)
        version["digest"] = hashlib.sha256(content.encode()).hexdigest()
        return json.dumps(record).encode()

    path = forged(archive, tmp_path / "b.zip", {"study.json": changed})
    with pytest.raises(sgp.ConfigError, match=r"the arm SGP has different settings in .*b.zip"):
        merge([archive, path], "fresh")
    path = forged(archive, tmp_path / "c.zip", {"table.csv": lambda text: text[:-9]})
    with pytest.raises(VerificationFailed, match=r"^c\.zip: table\.csv"):
        merge([archive, path], "fresh")
    content = {**CONTENT, "epochs": 0.06, "clusters": ["laptop"], "measures": ["loss"]}
    sgp.study(content, "alone", verbose=False)
    sentence = r"\(epochs: 0\.04 and 0\.06; clusters: .*; measures: .*\); only studies"
    with pytest.raises(sgp.ConfigError, match=sentence):
        merge([archive, archive.parents[1] / "alone/study.zip"], "fresh")
    assert not Path("results/studies/fresh").exists()


def test_merge_joins_searches_of_settings_of_different_algorithms(
    archive: Path, tmp_path: Path
) -> None:
    def study(arm: str, key: str, values: list[float]) -> Path:
        arms = {arm: f"algo={arm}", "AR-SGD": "algo=ar_sgd"}
        tune = {key: values, "budget": 2}
        content = {**CONTENT, "results": str(tmp_path), "arms": arms, "tune": tune}
        sgp.study(content, name := f"{arm}{values[-1]}", verbose=False)
        return tmp_path / f"studies/{name}/study.zip"

    def searches(budget: pd.DataFrame) -> dict[str, tuple[object, ...]]:
        columns = budget[["search runs", "search", "chosen"]].itertuples(index=False, name=None)
        return dict(zip(budget["arm"], columns, strict=True))

    osgp = study("osgp", "algo.osgp.tau", [1, 2])
    slowmo = study("slowmo", "algo.slowmo.beta", [0.3, 0.6])
    merge([osgp, slowmo], "searches")
    with opened(Path("results/studies/searches/study.zip")) as both:
        lists = {"algo.osgp.tau": ("1", "2"), "algo.slowmo.beta": ("0.3", "0.6")}
        assert both.study.tune.lists == lists
        together = searches(both.findings.budget.raw)
    for path in (osgp, slowmo):
        with opened(path) as alone:
            assert together.items() >= searches(alone.findings.budget.raw).items()
    other = study("osgp", "algo.osgp.tau", [1, 3])
    sentence = r"\(tune: {'algo.osgp.tau': \[1, 2\], .*} and {'algo.osgp.tau': \[1, 3\], .*}\)"
    with pytest.raises(sgp.ConfigError, match=sentence):
        merge([slowmo, osgp, other], "third")


def test_a_board_ranks_the_arms_of_all_archives(
    archive: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, path in (("first", archive), ("second", other)):
        shutil.copyfile(path, tmp_path / f"{name}.zip")
    out = tmp_path / "site"
    write_board(tmp_path, tmp_path / "empty")
    page = (tmp_path / "empty/index.html").read_text(encoding="utf-8")
    assert page.count("No entry yet.") == 8 and page.count(" It takes no part: settings other") == 2
    common = study_of(CONTENT, "small").common
    tracks = tuple(
        board.Track(bandwidth, measure_of("time_to_loss(9)")) for bandwidth in board.BANDWIDTHS
    )
    monkeypatch.setattr(board, "TRACKS", tracks)
    monkeypatch.setattr(board, "CLUSTER", "laptop bandwidth={}")
    monkeypatch.setattr(board, "TASKS", {"grammar": SimpleNamespace(all_overrides=common)})
    assert main(["study", "board", str(tmp_path), str(out)]) == 0
    table = pd.read_csv(out / "time-100Mbit.csv")
    assert sorted(table["arm"]) == ["AR-SGD", "AR-SGD", "OSGP", "SGP"]
    assert list(table["rank"]) == [1, 2, 3, 4] and list(table["mean"]) == sorted(table["mean"])
    assert set(table["seeds"]) == {2} == set(table["reached"])
    fast = pd.read_csv(out / "time-1Gbit.csv")
    assert table["mean"].max() > fast["mean"].max()  # of AR-SGD
    page = (out / "index.html").read_text(encoding="utf-8")
    assert 'href="./entries/first/index.html"' in page or 'href="entries/first/index.html"' in page
    for name, path in (("first", archive), ("second", other)):
        assert (out / "entries" / name / "study.zip").read_bytes() == path.read_bytes()
        assert (out / "entries" / name / "index.html").exists()
    with pytest.raises(sgp.ConfigError, match="there is no folder .*none; give one"):
        write_board(out / "none", out)


def test_a_board_leaves_out_bad_archives_and_touches_no_other_file(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archives, out = tmp_path / "archives", tmp_path / "site"
    archives.mkdir()
    for name in ("good.zip", "...zip", "..zip"):
        shutil.copyfile(archive, archives / name)
    (archives / "broken.zip").write_text("no archive")
    forged(archive, archives / "forged.zip", {f"{deciding(archive)}/metrics.jsonl": better})
    command = ["study", "board", str(archives), str(out)]
    assert main(command) == 1
    said = capsys.readouterr()
    shared = [*study_of({**CONTENT, "task": "grammar"}, "a").common, *study_of(CONTENT, "a").common]
    keys = ", ".join(dict.fromkeys(word.partition("=")[0] for word in shared))
    assert said.out == (
        f"good takes no part: settings other than task: grammar ({keys}); no cluster sgp_ethernet "
        "bandwidth=1Gbit/s; no measure time_to_loss(1); no cluster sgp_ethernet "
        "bandwidth=100Mbit/s; no measure bytes_to_loss(1).\n"
        f"1 archive, page in {out}/index.html\n"
    )
    lines = said.err.splitlines()
    place = "is left out: board: its name cannot name a folder; rename it."
    assert lines[:2] == [f"sgp-run: {name} {place}" for name in ("...zip", "..zip")]
    assert lines[2].startswith("sgp-run: broken.zip is left out: study: ")
    assert lines[3].startswith("sgp-run: forged.zip is left out: table.csv, line ")
    assert [path.name for path in (out / "entries").iterdir()] == ["good"]
    page = (out / "index.html").read_text(encoding="utf-8")
    assert page.count("/study.zip") == 1 == page.count("entries/good/study.zip")
    for name in (f"{track.name}.{kind}" for track in board.TRACKS[4:] for kind in ("csv", "md")):
        (out / name).unlink()
    board.check_out(out)  # it may be written again, also by a version with more tracks
    reasons = {board.TRACKS[2].title: ["no measure bytes_to_loss(1)"]}
    assert board.absence(reasons, 4) == (
        "lacks Bytes sent by a node to a loss of 1 at 1 Gbit/s: no measure bytes_to_loss(1)."
    )
    assert board.absence({}, 4) == ""
    (out / "entries/own").mkdir()
    (out / "entries/own/precious").touch()
    assert main(command) == 2
    assert capsys.readouterr().err == (
        f"sgp-run: board: {out} has files that do not belong to this board, such as entries/own: "
        "name a new folder.\n"
    )
    site = tmp_path / "my_site"
    site.mkdir()
    (site / "index.html").write_text("my page")
    with pytest.raises(sgp.ConfigError, match=r"such as index\.html: name a new folder"):
        write_board(archives, site)
    assert (site / "index.html").read_text() == "my page" and (
        out / "entries/own/precious"
    ).exists()


def test_arms_that_miss_the_target_come_last_on_a_track() -> None:
    arm = SimpleNamespace(tuned=Tuned(Candidate(None)), arm=Arm("a", ("algo=sgp",)), settings=())
    costs = {"late": (4.0, 5.0), "never": (inf, 1.0), "soon": (2.0, 2.5)}
    entries = [board.Entry(name, cost, arm, "s") for name, cost in costs.items()]  # type: ignore[arg-type]
    table = board.track_table(board.TRACKS[0], entries)
    shown = [[cell.links[0].text for cell in row[:3]] for row in table.cells]
    assert shown == [["1", "soon", "2.25 s"], ["2", "late", "4.5 s"], ["-", "never", "-"]]
    assert table.cells[2][2].note == "1 of 2 reach it"
    assert table.title == "Simulated time to a loss of 1 at 1 Gbit/s"
    books = board.TRACKS[-1]
    assert (books.name, books.title, books.machines) == (
        "books-bytes-25Gbit",
        "Bytes sent by a node to a loss of 4.3 at 25 Gbit/s on books",
        "sgp_ethernet bandwidth=25Gbit/s",
    )
