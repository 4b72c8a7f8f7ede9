"""Pretraining: runs of all algorithms start from the same model, trained by plain steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.commands import run_command
from helpers.experiments import distance, instrumented, make_experiment
from helpers.paths import RANKS

from sgp_runner.assembly.build import build_problem
from sgp_runner.assembly.real.launch import launch
from sgp_runner.assembly.start import execute
from sgp_runner.config.experiment import Experiment
from sgp_runner.core.pretraining import Pretraining
from sgp_runner.recording.pretrained import pretrain
from sgp_runner.replay.exact import replay
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.seeding import seed_of

STEPS, LR = 20, 0.25
WORDS = ("dtype=float64", "nodes=4", "batch_size=8", "epochs=0.2", "model=mlp", "seed=7")
PRETRAINED = (*WORDS, f"pretrain.steps={STEPS}", f"pretrain.lr={LR}")


def kept(results: Path) -> Path:
    (path,) = (results / "pretrained").iterdir()
    return path


def start_of(experiment: Experiment) -> torch.Tensor:
    problem = build_problem(experiment.run)
    pretrain(problem, experiment)
    return problem.start()


def test_it_is_sgd_of_one_model_on_the_batches_of_all_nodes(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path, *PRETRAINED, "optim.momentum=0.9", "optim.nesterov=true")
    problem = build_problem(experiment.run)
    module, data = problem.flat.module.train(), problem.dataset
    sampler = data.partition.sampler(data.train, 1, 32, seed_of(7, 201))
    optim = torch.optim.SGD(
        module.parameters(),
        lr=LR,
        momentum=0.9,
        nesterov=True,
        weight_decay=experiment.run.optim.weight_decay,
    )
    for step in range(STEPS):
        optim.param_groups[0]["lr"] = LR * min(1, (step + 1) / 2)
        inputs, targets = data.train.batch(sampler.indices(0, step))
        optim.zero_grad()
        data.task.loss(module(*inputs), targets).backward()
        optim.step()
    expected = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    assert float((start_of(experiment) - expected).abs().max()) < 1e-13


def test_simulated_and_real_runs_of_all_algorithms_share_it(tmp_path: Path) -> None:
    execute(instrumented(make_experiment(tmp_path, *PRETRAINED, "algo=ar_sgd")))
    path = kept(tmp_path)
    before = path.read_bytes(), path.stat().st_mtime_ns
    simulated = make_experiment(tmp_path, *PRETRAINED, "algo=sgp", "optim.lr=0.2")
    execute(instrumented(simulated))
    real = make_experiment(tmp_path, *PRETRAINED, "algo=sgp", "optim.lr=0.2", "network=gloo")
    program = (str(RANKS / "real_rank.py"), "-1", str(real.directory / "config.yaml"))
    launch(real, program=program)
    assert (kept(tmp_path).read_bytes(), path.stat().st_mtime_ns) == before
    assert distance(simulated, real) < 1e-12


def test_another_run_makes_the_same_file_to_the_byte(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        start_of(make_experiment(tmp_path / folder, *PRETRAINED))
    assert kept(tmp_path / "a").name == kept(tmp_path / "b").name
    assert kept(tmp_path / "a").read_bytes() == kept(tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    "other",
    ["seed=8", "model.hidden=[20]", "batch_size=16", "optim.momentum=0", "pretrain.steps=21"],
)
def test_other_settings_have_another_model(tmp_path: Path, other: str) -> None:
    for overrides in (PRETRAINED, (*PRETRAINED, other)):
        start_of(make_experiment(tmp_path, *overrides))
    assert len([*(tmp_path / "pretrained").iterdir()]) == 2


def test_running_statistics_of_batch_norm_are_kept(tmp_path: Path) -> None:
    overrides = ("model=resnet8", "nodes=2", "batch_size=4", "pretrain.steps=2")
    experiment = make_experiment(tmp_path, *overrides)
    problem = build_problem(experiment.run)
    new = problem.flat.fresh_buffers()
    pretrain(problem, experiment)
    trained = problem.flat.fresh_buffers()
    assert len(new) == len(trained) > 0
    assert not any(torch.equal(a, b) for a, b in zip(new, trained, strict=True))


def test_without_it_a_run_keeps_its_name_and_starts_from_random_parameters(tmp_path: Path) -> None:
    plain = make_experiment(tmp_path, *WORDS)
    assert plain.digest[:8] == "be618fba"
    assert torch.equal(start_of(plain), build_problem(plain.run).start())
    assert not (tmp_path / "pretrained").exists()


def test_a_damaged_file_and_a_diverging_training_are_named(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path, *PRETRAINED)
    start_of(experiment)
    kept(tmp_path).write_bytes(b"none")
    with pytest.raises(ConfigError, match=r"pretrain: .*\.pt is damaged .*: delete this file\."):
        start_of(experiment)
    diverging = make_experiment(tmp_path, *WORDS, "pretrain.steps=20", "pretrain.lr=1e300")
    with pytest.raises(ConfigError, match=r"pretrain\.lr: the pretraining diverged: use a smaller"):
        start_of(diverging)
    with pytest.raises(ConfigError, match=r"pretrain\.steps: -1 must be zero or positive"):
        Pretraining(steps=-1)


def test_real_ranks_train_it_once_and_a_replay_elsewhere_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ("model=mlp", "nodes=3", "epochs=0.1", "network=gloo", "algo=osgp", "record=true")
    options = ("logger=jsonl", "pretrain.steps=10", "results=.")
    done = run_command(*overrides, *options, folder=tmp_path)
    assert done.stdout.count("Pretraining: 10 steps of 24 samples.\n") == 1
    assert kept(tmp_path).suffix == ".pt"
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    (run,) = Path("../runs").iterdir()
    assert replay(run).same == [True] * 3
    assert not [*elsewhere.iterdir()]
