"""The LaTeX files of a study, and the sources of algorithms and data sets."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT

import sgp_runner as sgp
from sgp_runner.config.choices import CLASSES, imported
from sgp_runner.data.idx_images import SOURCES, IdxImages
from sgp_runner.studies.study_latex import ENTRY, code, escaped, key_of, longtable, sources_of

PROGRAMS = ("pdflatex", "bibtex", "kpsewhich")
BIB = (ROOT / "sgp_runner/studies/references.bib").read_text(encoding="utf-8")
CONTENT: dict[str, Any] = {
    "question": "Is 50 % of τ_max < 2^3 & cheap?",
    "model": "mlp",
    "model.hidden": [4],
    "data": "digits",
    "nodes": 2,
    "epochs": 0.04,
    "arms": {"SlowMo_SGP": "algo=slowmo algo.base=sgp", "AR-SGD": "algo=ar_sgd"},
    "tune": {"optim.lr": "ladder(0.05, 0.1)", "budget": 4},
    "seeds": 3,
    "clusters": ["laptop", "laptop bandwidth=1Mbit/s"],
    "measures": ["loss", "time_to_loss(2.3)"],
    "matters": "3 nats",
}
PAPER = r"""\documentclass{article}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage{booktabs,longtable,graphicx}
\begin{document}
\input{methods}
\input{table}
\includegraphics[width=\linewidth]{figure.pdf}
\appendix
\input{settings}
\bibliographystyle{plain}
\bibliography{references}
\end{document}
"""


def entries() -> dict[str, str]:
    return {found[1]: found[0] for found in ENTRY.finditer(BIB)}


def choices_of(group: str) -> dict[str, Any]:
    classes = CLASSES[group]
    assert not isinstance(classes, str)
    return {name: imported(path) for name, path in classes.items()}


def test_every_algorithm_has_an_entry_and_its_page_links_the_paper() -> None:
    known = entries()
    assert len(known) == BIB.count("\n@") and len(set(known)) == len(known)
    for name, algorithm in choices_of("algo").items():
        if algorithm.is_probe:
            continue
        entry = known[algorithm.source]
        page = ROOT / f"docs/algorithms/{name}.md"
        links = set(re.findall(r"arxiv\.org/abs/(\d+\.\d+)", page.read_text(encoding="utf-8")))
        found = re.search(r"eprint = \{([\d.]+)\}", entry)
        assert found is not None and (not links or found[1] in links), name
    parts = [*choices_of("algo").values(), *choices_of("data").values()]
    used = {getattr(part, "source", "") for part in parts}
    used |= {IdxImages(name).source for name in SOURCES}
    methods = {"bergstra2011", "holm1979", "jamieson2016", "royston2013", "schuirmann1987"}
    methods |= {"wilcoxon1945", "hodges1963", "lachin1999"}
    assert known.keys() - used == methods


def test_special_characters_are_escaped() -> None:
    assert escaped("50 % & a_b#1 {2^3} ~x \\ τ") == (
        r"50 \% \& a\_b\#1 \{2\textasciicircum{}3\} \textasciitilde{}x \textbackslash{} $\tau$"
    )
    assert code("a.b_c") == r"\texttt{a.\allowbreak{}b\_\allowbreak{}c}"


def test_a_long_table_repeats_its_head_and_says_that_it_goes_on() -> None:
    text = longtable("Searches, 50 %", "lr", ["arm", "runs"], [["sgp", "4"], ["a\\_b", "8"]])
    head = "\\toprule\narm & runs \\\\\n\\midrule\n"
    assert text.startswith("{\\footnotesize\n\\begin{longtable}{lr}\n\\caption{Searches, 50 \\%.}")
    assert text.count(head) == 2 and "\\multicolumn{2}{r}{Continued on next page}" in text
    assert text.endswith("sgp & 4 \\\\\na\\_b & 8 \\\\\n\\end{longtable}\n}")
    assert longtable("No rows", "lr", ["arm", "runs"], []) == ""


def test_the_sources_of_an_algorithm_include_those_of_its_base() -> None:
    from sgp_runner.config.overrides import experiment_of

    run = experiment_of(["algo=slowmo", "algo.base=sgp", "model=mlp", "data=digits"]).run
    assert list(sources_of(run.algo)) == ["wang2020", "assran2019"]
    assert list(sources_of(run.data)) == ["alpaydin1998"]
    assert key_of("@misc{own2026,\n  title = {Mine}\n}") == "own2026" and key_of("a") == "a"


@pytest.mark.slow
def test_a_paper_with_the_files_of_a_study_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if any(shutil.which(program) is None for program in PROGRAMS):
        pytest.skip("needs pdflatex and bibtex: install texlive-latex-recommended.")
    monkeypatch.chdir(tmp_path)
    out = sgp.study(CONTENT, "paper_1", verbose=False).page.parent
    (out / "paper.tex").write_text(PAPER, encoding="utf-8")
    for program in ("pdflatex", "bibtex", "pdflatex", "pdflatex"):
        options = ["-interaction=nonstopmode", "-halt-on-error"] if program == "pdflatex" else []
        done = subprocess.run(
            [program, *options, "paper"], cwd=out, capture_output=True, check=False, timeout=1200
        )
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    log = (out / "paper.log").read_text(encoding="utf-8", errors="replace")
    assert not re.findall(r"LaTeX Warning: (?:Citation|Reference).*undefined", log)
    assert not re.findall(r"Overfull \\hbox \((\d{3,})", log)
    cited = set(re.findall(r"bibitem\{(\w+)\}", (out / "paper.bbl").read_text(encoding="utf-8")))
    assert cited == {
        "alpaydin1998",
        "assran2019",
        "goyal2017",
        "holm1979",
        "jamieson2016",
        "royston2013",
        "schuirmann1987",
        "wang2020",
    }
    before = {name: (out / name).read_bytes() for name in ("figure.pdf", "figure.svg")}
    sgp.study(CONTENT, "paper_1", verbose=False)
    assert before == {name: (out / name).read_bytes() for name in before}
