"""Verdicts on published gains, and the arms with published settings that they need."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.studied import CONTENT

from audit_page import row_in
from sgp_runner.cli.study import main
from sgp_runner.config.choices import CONFIGS
from sgp_runner.studies.arms import RunMaker, check_arms
from sgp_runner.studies.audit import Gain, gain_of
from sgp_runner.studies.conduct import plan_of
from sgp_runner.studies.measures import measure_of
from sgp_runner.studies.run_study import run_study
from sgp_runner.studies.statistics import Interval
from sgp_runner.studies.study_file import read_study, study_of
from sgp_runner.utils.errors import ConfigError

ROWS = sorted((CONFIGS / "study" / "audit").glob("*.yaml"))
ARMS = {
    "SGP": "algo=sgp",
    "AR-SGD": "algo=ar_sgd",
    "SGP as published": {"of": "SGP", "at": "transferred", "settings": "optim.lr=0.02"},
    "AR-SGD as published": {"of": "AR-SGD", "at": "transferred", "settings": "optim.lr=0.02"},
}


def content(**changes: Any) -> dict[str, Any]:
    more = {"arms": ARMS, "matters": "0.5 nats", "transfer": "the rate of the paper"}
    shared = {key: value for key, value in CONTENT.items() if key not in ("clusters", "seeds")}
    return {**shared, "measures": ["loss"], "seeds": "2 to 3", **more, **changes}


def effect(mean: float, half: float) -> Interval:
    """The 95 % interval of 5 seeds."""
    return Interval(mean, mean - half, mean + half, 5)


@pytest.mark.parametrize(
    ("transferred", "tuned", "verdict"),
    [
        # gains of accuracy with a margin of 0.25 points: mean, half of the interval
        ((1.5, 0.4), (1.4, 0.4), "survives"),
        ((1.5, 0.4), (0.75, 0.3), "survives"),
        ((1.5, 0.4), (0.74, 0.3), "is attenuated"),
        ((1.5, 0.4), (0.05, 0.1), "collapses"),
        ((1.5, 0.4), (0.12, 0.1), "collapses"),
        ((1.5, 0.4), (-0.12, 0.1), "collapses"),
        ((1.5, 0.4), (-0.6, 0.3), "reverses"),
        ((0.3, 0.4), (-0.6, 0.3), "reverses"),
        ((0.3, 0.4), (0.9, 0.3), "is not replicated"),
        ((-1.5, 0.4), (0.0, 0.1), "is not replicated"),
        ((1.5, 0.4), (0.3, 0.35), "is undecided by design"),
        ((1.5, 0.4), (0.21, 0.22), "is undecided by design"),
        ((1.5, 0.4), (0.15, 0.16), "is undecided"),
    ],
)
def test_verdicts(
    transferred: tuple[float, float], tuned: tuple[float, float], verdict: str
) -> None:
    at, after = (effect(mean / 100, half / 100) for mean, half in (transferred, tuned))
    gain = Gain(measure_of("accuracy"), at, after, margin=0.0025)
    assert str(gain).startswith(f"The gain {verdict}: ")


def test_after_a_second_look_a_gain_needs_smaller_p_values() -> None:
    """An effect whose 95 % interval ends near 0 has p = 0.048."""
    gain = Gain(measure_of("accuracy"), effect(0.015, 0.004), effect(0.01, 0.0099), 0.0025)
    assert (gain.verdict, replace(gain, level=0.025).verdict) == ("survives", "undecided")


def test_a_gain_has_its_effects_in_the_claimed_direction_and_its_marks() -> None:
    gain = Gain(
        *(measure_of("accuracy"), effect(0.015, 0.004), effect(-0.006, 0.003), 0.0025),
        unbracketed=("SGP",),
    )
    assert str(gain) == (
        "The gain reverses: +1.5 points [+1.1, +1.9] at the published settings, -0.6 points "
        "[-0.9, -0.3] tuned; unbracketed: SGP."
    )


def test_published_settings_are_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = run_study(study_of(content(), "gain"))
    assert page.answer.count("at the published settings") == 1
    table = page.table
    runs = table.set_index("arm")["search_runs"]
    assert runs["SGP as published"] == runs["AR-SGD as published"] == 0 < runs["SGP"]
    searched, published = (
        float(str(table[table["arm"] == name]["mean"].iloc[0]))
        for name in ("SGP", "SGP as published")
    )
    sign = re.search(r"The gain .*: ([+-])", page.answer)
    assert sign is not None and searched != published
    row = row_in(page.page.with_name("study.zip"))
    assert row.gain is not None and str(row.gain) in row.answer == page.answer


def test_margins_and_limits_decide_the_number_of_seeds() -> None:
    study = study_of(content(), "gain")
    assert study.seeds == () and study.limits == (2, 3)
    check_arms(RunMaker(study))
    assert plan_of(study, 1e-9).seeds == 3  # the fewest seeds with a power of 80 %
    plan = plan_of(study, 5.0)
    assert plan.seeds == 3 and plan.power < 0.1
    assert plan_of(study_of(content(seeds="6 to 16"), "gain"), 1e-9).seeds == 6


def test_a_study_without_published_settings_has_no_gain() -> None:
    study = study_of({**content(), "arms": {"SGP": "algo=sgp", "AR-SGD": "algo=ar_sgd"}}, "plain")
    assert study.transferred == {}
    done: Any = type("Done", (), {"study": study})()
    assert gain_of(done, done) is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"arms": {**ARMS, "x": {"of": "SGP", "at": "transferred"}}},
            "arms.x.settings: at: transferred needs the published settings, for example "
            "optim.lr=0.05.",
        ),
        (
            {"arms": {**ARMS, "x": {"of": "SGP", "at": "paper", "settings": "optim.lr=1"}}},
            "arms.x.at: 'paper' is unknown: write transferred.",
        ),
        (
            {"arms": {**ARMS, "x": {"of": "SPG", "at": "transferred", "settings": "optim.lr=1"}}},
            "arms.x.of: 'SPG' is not an arm: choose from SGP, AR-SGD. Did you mean 'SGP'?",
        ),
        (
            {"arms": {**ARMS, "x": {"off": "SGP"}}},
            "arms.x.off: an arm with published settings has of, at, settings.",
        ),
        (
            {"transfer": ""},
            "transfer: write the rule by which published settings were moved to this size.",
        ),
        (
            {"matters": "0.25 %"},
            "matters: '0.25 %' is not a positive difference of loss: write 0.02 nats.",
        ),
        (
            {"matters": None, "seeds": "2 to 3"},
            "seeds: '2 to 3' needs matters:, which determines the number of seeds; write "
            "seeds: 5 for a number.",
        ),
        (
            {"seeds": "16 to 6"},
            "seeds: '16 to 6' must go from at least 2 to a larger number, such as 6 to 16.",
        ),
    ],
)
def test_refused_designs(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        study_of(content(**changes), "gain")
    assert str(error.value) == sentence


def test_rows_of_the_audit_can_be_run() -> None:
    assert len(ROWS) >= 8
    for path in ROWS:
        study = read_study(path)
        assert check_arms(RunMaker(study)) and study.matters is not None
        assert study.content["published"] and study.limits == (6, 16)


def test_a_difference_of_accuracies_needs_a_unit(tmp_path: Path) -> None:
    file = tmp_path / "gain.yaml"
    file.write_text(json.dumps(content(measures=["accuracy"], matters=0.25)))
    with pytest.raises(ConfigError) as error:
        read_study(file)
    assert str(error.value) == "matters: 0.25 may be a share or points: write 0.25 points."


def test_rows_without_an_option_are_refused_without_torch() -> None:
    text = (
        "import sys\nfrom sgp_runner.cli.study import audit\n"
        "from sgp_runner.utils.errors import ConfigError\n"
        "try: audit(['slowmo_sgp'], [])\n"
        "except ConfigError as error: print(error)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", text], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "study: write the rows of the audit as --rows=slowmo_sgp.\n",
        "",
    )


def test_an_unknown_row() -> None:
    with pytest.raises(ConfigError) as error:
        main(["audit", "--rows", "slowmoo", "--dry-run"])
    assert error.value.key == "--rows" and "'slowmoo' is unknown" in str(error.value)
