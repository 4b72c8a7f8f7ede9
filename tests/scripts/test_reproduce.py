"""The page of the papers' times, from runs with known times."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import reproduce


def test_the_page_has_the_error_of_each_published_time(tmp_path: Path) -> None:
    times = reproduce.Times(tmp_path)
    assert len(times.jobs) == 17 + 4 * 7 + 5 * 2  # 4 of 8 sizes are published rows
    for job in times.jobs.values():
        job.folder.mkdir(parents=True)
        facts = {"ms_per_iteration": 420.0, "hours": 2.7, "fitted": "nodes=4" in job.overrides}
        (job.folder / "summary.json").write_text(json.dumps(facts), encoding="utf-8")
    reproduce.write(times, tmp_path)
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    for part in (
        "| slowmo_imagenet_ar_sgd | 420 | 420 | +0.0 % |  |  | predicted |\n",
        "| sgp_osgp_270 | ~230 | 420 | +82.5 % | 2.7 | 2.70 | predicted |\n",
        "| sgp_sgp_90 | sgp_infiniband | 420 | 420 | 420 | 420 |\n",
        "| pipesgd_d_sync | 420 | 1.0 | 420 | 1.0 |\n",
        "Of the 17 predicted rows\nthe largest error is 82.5 %",
        "`sgp-run experiment=sgp_ar_sgd_90 model=timing_only log_every=480`",
    ):
        assert part in page
    with (tmp_path / "times.csv").open(encoding="utf-8") as file:
        lines = {(line["row"], line["metric"]): line for line in csv.DictReader(file)}
    assert lines["slowmo_imagenet_ar_sgd", "ms_per_iteration"]["error_percent"] == "0.0"
    assert lines["sgp_osgp_270", "hours"]["ours_is"] == "predicted"
