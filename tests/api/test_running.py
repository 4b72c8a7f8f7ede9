"""Runs and sweeps from Python: the same bytes as a command, with what lives in memory."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import yaml
from helpers.refusals import refusal
from torch import nn
from torch.utils.data import DataLoader

import sgp_runner as sgp
from sgp_runner.algorithms.sgp import SGP
from sgp_runner.cli.main import main
from sgp_runner.cli.replay import main as replay
from sgp_runner.cli.report import main as report
from sgp_runner.cli.sweep import sweep as sweep_command
from sgp_runner.data.dataset import TensorSplit
from sgp_runner.data.digits import Digits
from sgp_runner.data.in_memory_data import convert
from sgp_runner.models.mlp import MLP
from sgp_runner.plugin import Algorithm, Listener, Worker
from sgp_runner.topology.graphs import Ring

TINY = "model=quadratic data.samples=64 data.dimension=4 nodes=2 epochs=2 dtype=float64"
TINY += " logger=jsonl"
DIGITS: dict[str, Any] = {"nodes": 2, "epochs": 1, "batch_size": 64, "logger": "jsonl"}
SMALL: dict[str, Any] = {**DIGITS, "batch_size": 4}


@pytest.fixture(autouse=True)
def in_a_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "SGP_RUN_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    yield


@dataclass(frozen=True)
class Shrink(Algorithm):
    """Local steps on parameters that shrink.

    factor: of the parameters in each step
    """

    factor: float = 1.0
    title: ClassVar[str] = "Shrink"

    async def run(self, worker: Worker) -> None:
        for _ in worker.steps():
            worker.params.sub_(worker.update(await worker.grad())).mul_(self.factor)


class Line(nn.Module):
    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.inner, self.drop = nn.Linear(3, width), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.inner(x))


class Twice(Line):
    def forward(self, x: torch.Tensor) -> Any:
        return (Line.forward(self, x),) * 2


def pair(classes: int = 2) -> Any:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(48, 3, generator=generator)
    y = (x[:, 0] > 0).long() * (classes - 1)
    return (x[:32], y[:32]), (x[32:], y[32:])


def records(folder: Path) -> list[str]:
    """All lines but the summary, which has a real time."""
    return (folder / "metrics.jsonl").read_text().splitlines()[:-1]


def config(result: sgp.Result) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((result.folder / "config.yaml").read_text())
    return loaded


def test_importing_the_package_imports_neither_torch_nor_pandas() -> None:
    code = "import sys, sgp_runner; assert 'run' in dir(sgp_runner)\n"
    code += "sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_run_has_the_bytes_and_the_folder_of_the_command() -> None:
    assert main([*TINY.split(), "algo=osgp", "optim.lr=0.05", "results=command"]) == 0
    result = sgp.run(TINY, "algo=osgp", results="python", optim={"lr": 0.05})
    (there,) = Path("command/runs").iterdir()
    assert result.folder == Path("python/runs", there.name).resolve()
    assert records(result.folder) == records(there)
    assert {**config(result), "results": "command"} == yaml.safe_load(
        (there / "config.yaml").read_text()
    )
    environment = json.loads((result.folder / "environment.json").read_text())
    assert environment["command"][0] == "sgp_runner.run"
    assert "optim.lr=0.05" in environment["command"]
    again = sgp.run(TINY, "algo=osgp", results="python", **{"optim.lr": 0.05})
    assert again.summary == result.summary


def test_the_state_of_the_program_neither_matters_nor_changes() -> None:
    plain = sgp.run("model=mlp algo=sgp name=plain", **DIGITS)
    torch.set_flush_denormal(False)  # as other tests may have left it
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    before = torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(2)
    try:
        with torch.no_grad():
            other = sgp.run("model=mlp algo=sgp name=other", **DIGITS)
            assert not torch.is_grad_enabled()
        assert torch.get_default_dtype() == torch.float64 and torch.get_num_threads() == 2
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(before)
    assert torch.equal(torch.rand(1), expected)
    assert sys.float_info.min * 0.5 > 0.0
    assert records(other.folder) == records(plain.folder)


def test_a_function_that_makes_the_built_in_model_on_the_same_data_gives_the_same_numbers() -> None:
    digits = Digits().load(torch.float32)
    splits = [(split.inputs[0], split.targets) for split in (digits.train, digits.valid)]  # type: ignore[attr-defined]
    named = sgp.run("model=mlp network.engine=loop", **DIGITS)
    custom = sgp.run(model=lambda: MLP().build(digits), data=tuple(splits), **DIGITS)
    for kind in ("train", "eval", "average"):
        mine, theirs = (
            result.records[result.records["kind"] == kind]
            .dropna(axis=1)
            .drop(columns=["folder", "run"])
            for result in (custom, named)
        )
        assert len(mine) and mine.to_dict("records") == theirs.to_dict("records")
    assert custom.summary["model"] == "Sequential" and custom.summary["data"] == "in_memory"


def test_a_module_starts_every_node_and_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    module = Line()
    before = [parameter.clone() for parameter in module.parameters()]
    result = sgp.run(model=module, data=pair(), results="one", **SMALL)
    assert all(map(torch.equal, before, module.parameters()))
    again = sgp.run(model=module, data=pair(), results="two", **SMALL)
    assert records(again.folder) == records(result.folder)  # with dropout
    stored = config(result)["model"]
    assert (stored["name"], stored["type"]) == ("in_memory", "Line")
    with torch.no_grad():
        module.inner.bias += 1
    other = sgp.run(model=module, data=pair(), results="one", **SMALL)
    assert other.folder != result.folder
    assert config(other)["model"] == {**stored, "sha256": config(other)["model"]["sha256"]}


def test_a_loss_of_the_users_and_targets_of_any_shape() -> None:
    (x, _), _ = pair()
    ranks = torch.stack([torch.arange(2) for _ in x])

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).abs().mean()

    result = sgp.run(
        model=lambda: nn.Linear(3, 2),
        data=((x, ranks), (x, ranks)),
        loss=loss,
        **SMALL,
    )
    assert result.summary["metric"] == "loss" and len(config(result)["data"]["loss"]) == 64


def test_regression_and_data_sets_that_are_read_sample_by_sample() -> None:
    class Samples(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 32

        def __getitem__(self, index: int) -> Any:
            return torch.rand(3) + index, float(index)

    sizes: dict[str, Any] = {**SMALL, "optim": {"lr": 1e-4}, "model": lambda: nn.Linear(3, 1)}
    runs = [sgp.run(data=(Samples(), Samples()), results=name, **sizes) for name in ("a", "b")]
    assert runs[0].summary["metric"] == "loss"
    assert records(runs[0].folder) == records(runs[1].folder)  # random transforms are seeded


def test_targets_without_a_width_are_a_column() -> None:
    numbers = torch.ones(4, 2), torch.arange(4.0)
    config, dataset = convert((numbers, numbers), None)
    assert config.task == "regression" and isinstance(dataset.train, TensorSplit)
    assert dataset.train.targets.tolist() == [[0.0], [1.0], [2.0], [3.0]]


def test_rows_may_be_dictionaries() -> None:
    rows = [{"pixels": [float(i), 1.0], "label": i % 2, "id": "a"} for i in range(8)]
    columns = torch.tensor([row["pixels"] for row in rows]), torch.arange(8) % 2
    two = [{"label": row["label"], "pixels": row["pixels"]} for row in rows]
    settings = {"nodes": 2, "epochs": 1, "batch_size": 2, "verbose": False}
    results = [
        sgp.run("model=mlp model.hidden=[4]", data=(table, table), data_keys=keys, **settings)
        for table, keys in ((columns, None), (two, None), (rows, ("pixels", "label")))
    ]
    assert len({result.folder for result in results}) == 1  # the same samples are the same run
    for table, keys, sentence in (
        (rows, None, "rows of train are dictionaries with pixels, label, id: name input and "),
        (rows, ("pixel", "label"), "rows of train are dictionaries with pixels, label, id: name "),
        (rows, ("id", "label"), "'id' of train is a str, which is not a tensor."),
        ([*two[:-1], {"label": 1}], None, "train[7] has no 'pixels'."),
    ):
        error = refusal(sgp.run, "model=mlp", data=(table, table), data_keys=keys, **settings)
        assert error.sentence.startswith(sentence)


def test_an_algorithm_that_a_cell_defines_is_compared_and_recorded() -> None:
    done = sgp.sweep(TINY, algo=["sgp", Shrink, Shrink(factor=0.5)], nodes=[2, 4])
    assert len(done) == 6 and not done.failed
    assert sorted(done.table["method"]) == [
        *("SGP", "SGP", "Shrink algo.factor=0.5", "Shrink algo.factor=0.5"),
        *("Shrink algo.factor=1", "Shrink algo.factor=1"),
    ]
    stored = yaml.safe_load((done.folders[-1] / "config.yaml").read_text())
    assert stored["algo"] == {"name": "Shrink", "factor": 0.5}
    assert stored["plugins"]["Shrink"].startswith("python:")
    environment = json.loads((done.folders[-1] / "environment.json").read_text())
    assert "test_running.py" in environment["plugins"]["Shrink"]["source"]
    alone = sgp.run(TINY, algo=SGP(Ring()), name="ring")
    assert config(alone)["algo"] == {"name": "sgp", "topology": {"name": "ring"}}


def test_code_that_has_changed_makes_another_run() -> None:
    def algorithm(scale: str) -> Any:
        code = f"""
from dataclasses import dataclass
from typing import ClassVar
from sgp_runner.plugin import Algorithm
SCALE = {scale}
def scaled(x):
    return SCALE * x
@dataclass(frozen=True)
class Mine(Algorithm):
    title: ClassVar[str] = "Mine"
    async def run(self, worker):
        for _ in worker.steps():
            worker.params.sub_(scaled(worker.update(await worker.grad())))
"""
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(code, "<cell>", "exec", dont_inherit=True), names)
        return names["Mine"]

    first = sgp.run(TINY, algo=algorithm("1.0"))
    assert sgp.run(TINY, algo=algorithm("1.0  # the same")).folder == first.folder
    assert sgp.run(TINY, algo=algorithm("2.0")).folder != first.folder
    sgp.run(TINY, algo=algorithm("1.0"), name="mine")
    with pytest.raises(sgp.ConfigError, match="^name: .*another version of the plug-in Mine"):
        sgp.run(TINY, algo=algorithm("2.0"), name="mine")


def test_what_lives_in_memory_is_not_stored(capsys: pytest.CaptureFixture[str]) -> None:
    one = sgp.run(TINY, algo=Shrink, name="algorithm").folder
    two = sgp.run(model=Line(), data=pair(), batch_size=4, nodes=2, logger="jsonl", epochs=1).folder
    for folder, key in ((one, "plugins"), (two, "data")):
        for command, options in ((replay, ()), (report, ("--retime", "cluster=ideal"))):
            assert command([str(folder), *options]) == 2
            said = capsys.readouterr().err
            assert f"{key}: this run used " in said
            assert "in the memory of a Python program: call sgp_runner.run with it again." in said
    assert main([*TINY.split(), "algo=Shrink"]) == 2
    assert "algo: 'Shrink' is not one of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"algo": "sgpp"}, r"algo: 'sgpp' is not one of .* Did you mean 'sgp'\?"),
        ({"lr": 0.1}, r"lr: there is no such setting. Did you mean 'optim.lr'\?"),
        ({"nodes": "four"}, "nodes: 'four' is not a whole number."),
        ({"nodes": object()}, "settings: <object .*> is not a valid value of a setting."),
        ({"algo": int}, "algo: int has no run: write async def run"),
        (
            {"cluster": SGP},
            "cluster: SGP cannot be a choice of cluster; a class can be a choice of algo",
        ),
        ({"loss": math.fabs}, r"loss: applies only to data=\(train, valid\)"),
        ({"model": 3}, "model: int is not a model: give a model's name, a torch.nn.Module"),
        (
            {"model": nn.Linear},
            r"model: Linear needs arguments \(missing a required argument: 'in_features'\): give a "
            r"module, model=Linear\(...\), or a function without arguments, model=lambda: Linear",
        ),
        ({"model": lambda: 3}, "model: the function made a int, not a torch.nn.Module."),
        ({"model": nn.Flatten()}, "model: Flatten has no parameters to train."),
        ({"model": nn.LazyLinear(2)}, "model: weight of LazyLinear has no shape yet"),
        ({"model": nn.Linear(3, 2).requires_grad_(False)}, "model: weight of Linear is frozen"),
        ({"model": nn.Linear(4, 2)}, r"model: Linear cannot be .*: inputs \[2, 3\] of two samples"),
        ({"model": nn.Linear(3, 1)}, r"model: Linear returns \[2, 1\] .*needs \[2, 2\]\."),
        (
            {"model": Twice(), "loss": lambda outputs, targets: outputs[0].mean()},
            "model: Twice returns a tuple, not a tensor.",
        ),
        (
            {"model": nn.Linear(3, 2), "loss": nn.CrossEntropyLoss(reduction="none")},
            r"loss: a batch has a loss of shape \[2\]; return the mean, a number.",
        ),
        ({"data": "digitz"}, "data: 'digitz' is not one of .* Did you mean 'digits'"),
        ({"data": [1, 2, 3]}, "data: list is not data: give the name"),
        ({"data": (3, pair()[1])}, "data: train is a int: give "),
        ({"data": (DataLoader(pair()[0]), pair()[1])}, "data: train is a DataLoader: give its "),
        ({"data": ((["a"], torch.ones(1)),) * 2}, "data: train has a list, which is not a tensor"),
        ({"data": ((3.0, torch.ones(1)),) * 2}, "data: train has a single number instead"),
        ({"data": ((torch.ones(2, 2), torch.tensor([-1, 1])),) * 2}, "data: a class is negative"),
        (
            {"data": ((torch.tensor([[1.0], [torch.nan]]), torch.tensor([0, 1])),) * 2},
            r"data: train\[1\] has NaN or infinity: replace the number\.",
        ),
        (
            {"data": ((torch.ones(2, 2), torch.tensor([torch.inf, 1.0])),) * 2},
            r"data: train\[0\] has NaN or infinity: replace the number\.",
        ),
        ({"data": pair(), "loss": 3}, "loss: 3 is not a function of outputs and targets."),
        ({"data": (torch.ones(4, 2), torch.ones(4))}, "data: train has no targets: give a torch"),
        ({"data": ((torch.ones(4, 2), torch.ones(3)),) * 2}, "inputs and targets of 4, 3 samples"),
        ({"data": ((torch.ones(0, 2), torch.ones(0)),) * 2}, "data: train is empty."),
        (
            {"data": ((torch.ones(2, 2), torch.ones(2, 2).long()),) * 2},
            "loss: integer targets of shape",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_the_words_of_the_command(
    settings: Mapping[str, Any], sentence: str
) -> None:
    given: dict[str, Any] = {"batch_size": 4, "nodes": 2, "logger": "jsonl"}
    given |= {"data": pair()} if "model" in settings else {}
    with pytest.raises(sgp.ConfigError, match=sentence):
        sgp.run(**{**given, **settings})
    assert not Path("results").exists()


def test_a_sweep_is_no_run() -> None:
    said = str(refusal(sgp.run, "algo=sgp,osgp"))
    assert said.startswith("algo: several values make a sweep: call sgp_run")


def test_settings_are_texts_and_a_launcher_starts_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings, sentence in (
        (3, "settings: 3 is not a string; write 'key=value', or key=value without quotes."),
        ("name='a", "settings: 'name='a' cannot be read (No closing quotation)."),
        ("nodes=true", "nodes: true is not a whole number."),
    ):
        assert str(refusal(sgp.run, settings)) == sentence
    assert str(refusal(sgp.run, nodes=True)).startswith("nodes: true is not a whole number")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(sgp.ConfigError, match="^sgp_runner.run: a launcher has started this proc"):
        sgp.run(TINY)
    with pytest.raises(sgp.ConfigError, match="^-m: the processes of a launcher cannot share a"):
        sweep_command([])


def test_it_runs_in_a_loop_and_in_a_thread() -> None:
    async def cell() -> sgp.Result:
        return sgp.run(TINY, name="loop")

    found = [asyncio.run(cell())]
    thread = threading.Thread(target=lambda: found.append(sgp.run(TINY, name="thread")))
    thread.start()
    thread.join()
    assert records(found[0].folder) == records(found[1].folder)


@dataclass(frozen=True)
class Pressing:
    """A logger that presses Ctrl-C after ten records."""

    def open(self, *where: object, **rest: object) -> Listener:
        return Presser()


class Presser:
    count = 0

    def write(self, record: Mapping[str, object]) -> None:
        self.count += 1
        if self.count == 10:
            signal.raise_signal(signal.SIGINT)

    def finish(self, summary: Mapping[str, object] | None) -> None:
        pass


@pytest.fixture
def hearing_interrupts() -> Iterator[None]:
    """Hear SIGINT, which a process that was started in the background ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hearing_interrupts")
def test_an_interrupt_saves_the_run_which_the_same_call_resumes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = TINY.replace(" logger=jsonl", " epochs=8 log_every=1")
    whole = sgp.run(settings, logger="jsonl", results="whole")
    with pytest.raises(KeyboardInterrupt, match=r"^saved in .*Run the same call again to resume"):
        sgp.run(settings, logger=Pressing)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = sgp.run(settings, logger="jsonl")
    assert "This run resumes from step" in capsys.readouterr().out
    assert records(resumed.folder) == records(whole.folder)


def test_a_sweep_that_is_too_large_is_counted_and_refused() -> None:
    seeds_and_nodes = {"seed": range(101), "nodes": range(1, 51)}
    for words, keywords, key, runs in (
        ((), {"nodes": range(1, 10**6)}, "nodes", "999,999"),
        ((), {"nodes": range(1, 10**12), "seed": [1, 2]}, "nodes", "1,999,999,999,998"),
        (("nodes=range(1,1000000) seed=1,2",), {}, "nodes", "1,999,998"),
        (("algo=sgp,osgp",), seeds_and_nodes, "settings", "10,100"),
    ):
        error = refusal(sgp.sweep, TINY, *words, **keywords)
        assert str(error) == (
            f"{key}: a sweep of {runs} runs is too large: use at most 10,000 combinations."
        )


def test_a_large_sweep_says_how_many_runs_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(sgp.ConfigError, match="^nodes: "):
        sgp.sweep(TINY, nodes=0, seed=range(1, 1001))
    assert capsys.readouterr().out == "1,000 runs; their settings are checked first\n"


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: dict[str, object] = {}
    loop["sgd"] = loop
    endless: list[object] = []
    endless.append(endless)
    for key, value in (("optim", loop), ("data", loop), ("model", {"hidden": endless})):
        said = f"{key}: the value contains itself or is nested too deeply."
        assert str(refusal(sgp.run, TINY, **{key: value})) == said


def test_a_sweep_continues_after_a_failed_run() -> None:
    done = sgp.sweep(TINY, optim=[{"lr": 0.01}, {"lr": 1e9}], seed=range(1, 3))
    assert len(done) == 2
    assert [type(error) for error in done.failed.values()] == [sgp.Diverged] * 2
    assert "diverged at step" in done._repr_html_()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"nodes": [2, 0]}, r"^nodes: 0 must be at least 1. \(nodes=0\)$"),
        ({"seed": []}, r"^seed: has no values to sweep over\.$"),
        ({"loss": math.fabs}, r"^loss: applies only to data=\(train, valid\)"),
        ({"loss": math.fabs, "data": ["digits"]}, r"^loss: applies only to data=\(train, valid\)"),
    ],
)
def test_nothing_runs_if_one_combination_cannot_work(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(sgp.ConfigError, match=sentence):
        sgp.sweep(TINY, **settings)
    assert not Path("results").exists()


@pytest.mark.parametrize("network", ["sim", "gloo"])
def test_a_run_that_is_not_verbose_prints_nothing(
    network: str, capfd: pytest.CaptureFixture[str]
) -> None:
    sgp.run(f"algo=sgp nodes=2 epochs=1 model=mlp network={network} logger=jsonl", verbose=False)
    assert capfd.readouterr() == ("", "")


def test_real_processes(tmp_path: Path) -> None:
    runs: Sequence[sgp.Result] = [
        sgp.run(TINY, network=network, name="x", results=network) for network in ("sim", "gloo")
    ]
    assert [result.summary["clock"] for result in runs] == ["simulated", "wall"]
    assert runs[0].summary["average"] == pytest.approx(runs[1].summary["average"], rel=1e-12)
