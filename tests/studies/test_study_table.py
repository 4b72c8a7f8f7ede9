"""The table of a study on a terminal."""

from __future__ import annotations

import pandas as pd

from sgp_runner.report.rank.tables import ReportTable, text
from sgp_runner.studies.study_table import table_text


def test_a_wide_table_has_80_columns_and_breaks_titles_but_no_numbers() -> None:
    lines = [
        ("1", "sgp", "0.4321", "1 min 30 s", "4 h 10 min", "812 MB"),
        ("2", "streaming_diloco_h30_f4", "0.4411", "2 min 3 s", "-", "1.62 GB"),
    ]
    times = (f"simulated time to 0.45, {cluster}" for cluster in ("sgp_ethernet", "wan_1g"))
    head = ["#", "arm", "validation loss, nats", *times, "MB per node"]
    rows = [[text(word, note="a note") for word in line] for line in lines]
    table = ReportTable("table", "Comparison", "3 seeds.", pd.DataFrame(), head, rows, ("arm",))
    assert table_text(table).splitlines() == [
        "Comparison",
        "3 seeds.",
        "                                      simulated time",
        "                         validation         to 0.45,    simulated time        MB",
        "#  arm                   loss, nats     sgp_ethernet   to 0.45, wan_1g  per node",
        "─" * 80,
        "1  sgp                       0.4321       1 min 30 s        4 h 10 min    812 MB",
        "2  streaming_diloc           0.4411        2 min 3 s                 -   1.62 GB",
        "   o_h30_f4",
    ]
