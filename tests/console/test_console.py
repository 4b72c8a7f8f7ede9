from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from sgp_runner.console.summary import show, summary_table

SUMMARY: dict[str, object] = {
    "name": "sgp-resnet8-digits",
    "algorithm": "SGP",
    "model": "resnet8",
    "data": "digits",
    "nodes": 8,
    "network": "sim",
    "label": "rehearsal on digits; time simulated",
    "metric": "accuracy",
    "worker_mean": 0.971,
    "worker_min": 0.961,
    "worker_max": 0.98,
    "average": 0.979,
    "server": False,
    "clock": "simulated",
    "time_s": 3.4567,
    "real_s": 41.2,
    "steps": 450,
    "epochs": 10,
    "bytes_per_node": 34_500_000,
    "consensus_distance": 0.01234,
    "run_dir": "results/runs/sgp-resnet8-digits",
}


def plain(table: Table) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_table_of_a_run() -> None:
    assert plain(summary_table(SUMMARY)) == [
        "SGP · resnet8 · digits · 8 nodes · sim",
        "╭────────────────────────────────┬─────────────────────────────────────╮",
        "│ accuracy per worker            │ 97.1 % mean, 96.1 % min, 98.0 % max │",
        "│ accuracy of the averaged model │ 97.9 %                              │",
        "│ simulated time                 │ 3.46 s                              │",
        "│ real time, all included        │ 41.2 s                              │",
        "│ sent per node                  │ 34.5 MB                             │",
        "│ consensus distance             │ 0.0123                              │",
        "│ trained for                    │ 10 epochs, 450 steps                │",
        "╰────────────────────────────────┴─────────────────────────────────────╯",
        "rehearsal on digits; time simulated",
        "results in results/runs/sgp-resnet8-digits",
    ]


def test_a_translation_shows_exact_match_and_bleu_and_a_server_is_called_so() -> None:
    lines = plain(summary_table({**SUMMARY, "bleu": 93.21, "server": True, "clock": "wall"}))
    assert lines[2:6] == [
        "│ exact match per worker          │ 97.1 % mean, 96.1 % min, 98.0 % max │",
        "│ exact match of the server model │ 97.9 %                              │",
        "│ BLEU of the server model        │ 93.2                                │",
        "│ wall-clock time                 │ 3.46 s                              │",
    ]


def test_a_language_model_shows_bits_per_byte() -> None:
    lines = plain(summary_table({**SUMMARY, "metric": "loss", "bits_per_byte": 1.90701}))
    assert lines[4].startswith("│ bits per byte of the averaged model │ 1.907 ")


def test_a_loss_is_no_percentage_and_what_is_unknown_is_left_out() -> None:
    unknown = dict.fromkeys(("worker_mean", "consensus_distance"))
    loss = {**SUMMARY, "metric": "loss", "average": 0.123456, **unknown}
    text = "\n".join(plain(summary_table(loss)))
    assert "loss of the averaged model │ 0.1235 " in text
    assert "per worker" not in text and "consensus" not in text and "None" not in text


def test_a_path_longer_than_the_terminal_is_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    show(summary_table({**SUMMARY, "run_dir": "/" + "r" * 200}))
    assert capsys.readouterr().out.splitlines()[-1].rstrip() == "results in /" + "r" * 200


def test_a_real_run_shows_its_throughput() -> None:
    rates = {"samples_per_s": 12.34, "tokens_per_s": None, "flops_per_s": None, "mfu": None}
    lines = plain(summary_table({**SUMMARY, **rates, "waiting_share": 0.5}))
    assert lines[7].startswith("│ throughput per node            │ 12.3 samples/s, waiting 50 % ")
