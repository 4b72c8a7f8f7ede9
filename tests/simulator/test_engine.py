"""Engines: one gradient at a time or many at once give the same numbers."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.paths import ROOT
from torch import Tensor

from sgp_runner.core.mailbox import WrittenAfterSend
from sgp_runner.core.problem import Compute, Problem, make_problem
from sgp_runner.data.digits import Digits
from sgp_runner.data.grammar import Grammar
from sgp_runner.data.numbers_en_de import NumbersEnDe
from sgp_runner.data.quadratic_problem import QuadraticData
from sgp_runner.data.tasks import Classification
from sgp_runner.models.gpt import GPT
from sgp_runner.models.mlp import MLP
from sgp_runner.models.quadratic import Quadratic
from sgp_runner.models.resnet import ResNet
from sgp_runner.models.transformer import Transformer
from sgp_runner.simulator.engine import Engine, Gradient, Loop, NoGradients, Vmap
from sgp_runner.simulator.engines import make_engine, repeat_to_the_bit
from sgp_runner.simulator.parallel import Parallel

WORKERS = 7


def invalid_reason(
    model: Any, data: Any, dtype: torch.dtype = torch.float64, batch_size: int = 4
) -> Problem:
    return make_problem(model, data, workers=WORKERS, batch_size=batch_size, seed=1, dtype=dtype)


PROBLEMS = {
    "mlp": lambda dtype: invalid_reason(MLP(hidden=(16, 16), dropout=0.3), Digits(), dtype),
    # One hidden unit: PyTorch's kernels for a single worker round differently here.
    "narrow": lambda dtype: invalid_reason(MLP(hidden=(1,)), Digits(), dtype, batch_size=8),
    "transformer": lambda dtype: invalid_reason(
        Transformer(
            width=16, heads=2, feed_forward=32, encoder_layers=1, decoder_layers=1, dropout=0.2
        ),
        NumbersEnDe(train_size=64, valid_size=8),
        dtype,
    ),
    "transformer with two embeddings": lambda dtype: invalid_reason(
        Transformer(width=16, feed_forward=32, shared_embedding=False),
        NumbersEnDe(train_size=64, valid_size=4),
        dtype,
    ),
    "gpt": lambda dtype: invalid_reason(
        GPT(layers=2, width=8, heads=2), Grammar(block=6, train_size=64, valid_size=4), dtype
    ),
    "quadratic": lambda dtype: invalid_reason(
        Quadratic(), QuadraticData(dimension=5, samples=64), dtype
    ),
    "resnet8": lambda dtype: invalid_reason(ResNet("resnet8"), Digits(), dtype),
}


def start(problem: Problem, engine: Engine, count: int = WORKERS) -> list[Gradient]:
    """Start a gradient of each worker, at parameters of its own."""
    started = [
        Gradient(rank, 0, problem.start() + 0.01 * rank, problem.flat.fresh_buffers())
        for rank in range(count)
    ]
    for gradient in started:
        engine.start(gradient)
    return started


def gradients(
    problem: Problem, engine: Engine, steps: int = 2
) -> tuple[list[Tensor], list[float], list[list[Tensor]]]:
    """Of all workers, started together and finished in an order of their own, for a few steps at
    moving parameters.
    """
    params = [problem.start() + 0.01 * rank for rank in range(WORKERS)]
    buffers = [problem.flat.fresh_buffers() for _ in range(WORKERS)]
    values, losses = [], []
    for step in range(steps):
        started = [Gradient(rank, step, params[rank], buffers[rank]) for rank in range(WORKERS)]
        for gradient in started:
            engine.start(gradient)
        for gradient in reversed(started):
            values.append(engine.finish(gradient))
            losses.append(gradient.loss)
            params[gradient.rank].sub_(values[-1], alpha=0.1)
    return values, losses, buffers


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "name", ["mlp", "transformer", "transformer with two embeddings", "gpt", "quadratic"]
)
def test_vmap_equals_the_loop_with_dropout(name: str) -> None:
    problem = PROBLEMS[name](torch.float64)
    expected, losses, _ = gradients(problem, Loop(problem))
    for width in (1, 3, 32):
        actual, others, _ = gradients(problem, Vmap(problem, width))
        assert (
            max(float((a - b).abs().max()) for a, b in zip(expected, actual, strict=True)) < 1e-13
        )
        assert others == pytest.approx(losses, abs=1e-13)
    assert float(expected[0].abs().max()) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["mlp", "narrow", "transformer"])
def test_the_width_of_vmap_does_not_change_a_byte(name: str, dtype: torch.dtype) -> None:
    problem = PROBLEMS[name](dtype)
    expected, *_ = gradients(problem, Vmap(problem, 1))
    for width in (2, 3, 7, 32):
        actual, *_ = gradients(problem, Vmap(problem, width))
        assert all(torch.equal(a, b) for a, b in zip(expected, actual, strict=True))


def test_the_initial_parameters_stay_what_they_were() -> None:
    problem = PROBLEMS["mlp"](torch.float64)
    before = problem.start()
    gradients(problem, Loop(problem))
    assert torch.equal(problem.start(), before)


def test_gradients_of_one_call_of_vmap_share_nothing() -> None:
    problem = PROBLEMS["mlp"](torch.float64)
    engine = Vmap(problem, 32)
    first, second = (engine.finish(gradient) for gradient in start(problem, engine, 2))
    first.zero_()
    assert (first._version, second._version) == (1, 0)
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()


def test_batch_norm_sees_each_batch_once() -> None:
    problem = PROBLEMS["resnet8"](torch.float64)
    _, _, statistics = gradients(problem, Loop(problem), steps=3)
    names = [name for _, name in problem.flat.slots]
    counts = {
        int(b)
        for buffers in statistics
        for name, b in zip(names, buffers, strict=True)
        if name == "num_batches_tracked"
    }
    assert counts == {3}


def test_vmap_tries_three_widths_and_keeps_the_fastest_without_changing_a_byte() -> None:
    problem = PROBLEMS["mlp"](torch.float32)
    engine = Vmap(problem, 4)
    expected, *_ = gradients(problem, Vmap(problem, 1), steps=8)
    actual, *_ = gradients(problem, engine, steps=8)
    assert all(torch.equal(a, b) for a, b in zip(expected, actual, strict=True))
    assert {width: len(tries) for width, tries in engine.tried.items()} == {4: 2, 2: 2}
    assert engine.width == min((4, 2), key=lambda width: min(engine.tried[width]))


def test_few_values_wait_to_be_used() -> None:
    problem = PROBLEMS["mlp"](torch.float32)
    engine = Vmap(problem, 3)
    started = start(problem, engine)
    engine.finish(started[5])
    assert [gradient.value is not None for gradient in started] == [True] * 2 + [False] * 5
    assert list(engine.pending) == [started[2], started[3], started[4], started[6]]


def test_vmap_computes_all_that_are_in_flight_when_the_first_falls_due() -> None:
    problem = PROBLEMS["mlp"](torch.float64)
    engine = Vmap(problem, 32)
    started = start(problem, engine)
    engine.finish(started[3])
    assert not engine.pending
    assert sum(gradient.value is not None for gradient in started) == WORKERS - 1


@pytest.mark.parametrize("make", [Loop, lambda problem: Vmap(problem, 4)])
def test_parameters_that_change_in_flight_are_caught(make: Any) -> None:
    problem = PROBLEMS["mlp"](torch.float64)
    engine = make(problem)
    (gradient,) = start(problem, engine, 1)
    gradient.params.add_(1)
    with pytest.raises(WrittenAfterSend, match="the parameter vector of rank 0"):
        engine.finish(gradient)


def test_parameters_that_change_after_an_early_computation_are_caught() -> None:
    problem = PROBLEMS["mlp"](torch.float64)
    engine = Vmap(problem, 4)
    started = start(problem, engine, 2)
    engine.finish(started[0])  # computes both
    started[1].params.add_(1)
    with pytest.raises(WrittenAfterSend, match="the parameter vector of rank 1"):
        engine.finish(started[1])


def test_the_engine_suits_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert isinstance(make_engine(PROBLEMS["resnet8"](torch.float32), "auto", 32), Parallel)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert isinstance(make_engine(PROBLEMS["mlp"](torch.float32), "auto", 32), Vmap)
    assert isinstance(make_engine(PROBLEMS["resnet8"](torch.float32), "auto", 32), Loop)
    assert isinstance(
        make_engine(invalid_reason(MLP(hidden=(550, 550)), Digits()), "auto", 32), Loop
    )  # 344,310 parameters
    assert isinstance(make_engine(PROBLEMS["mlp"](torch.float32), "loop", 32), Loop)


def test_timing_studies_compute_nothing() -> None:
    engine = NoGradients()
    gradient = Gradient(0, 0, torch.ones(4), [])
    engine.start(gradient)
    assert engine.finish(gradient).tolist() == [0.0] * 4


@pytest.fixture
def forkable(request: pytest.FixtureRequest) -> None:
    """A process without a GPU: other tests register a pretended one, which is there to stay."""
    if torch.accelerator.is_available():
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", request.node.nodeid],
            check=False,
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        pytest.skip("passed in a process of its own")


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Use so many threads of PyTorch."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("forkable")
@pytest.mark.parametrize(("name", "cores"), [("resnet8", 2), ("resnet8", 4), ("transformer", 3)])
def test_the_number_of_cores_does_not_change_a_byte(name: str, cores: int) -> None:
    problem = PROBLEMS[name](torch.float32)
    with threads(1):
        expected, losses, statistics = gradients(problem, Loop(problem), steps=4)
    engine = Parallel(problem, cores)
    with threads(2):  # of which a fork has one
        torch.randn(1 << 20).exp_()
        actual, others, also = gradients(problem, engine, steps=4)
        assert len(engine.assistants) == cores - 1
        engine.close()
    assert all(torch.equal(a, b) for a, b in zip(expected, actual, strict=True))
    assert others == losses
    for one, other in zip(statistics, also, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.usefixtures("forkable")
def test_what_is_due_first_is_computed_first_and_the_last_one_waits_for_no_other_process() -> None:
    problem = PROBLEMS["resnet8"](torch.float32)
    engine = Parallel(problem, 2)
    engine.start_assistants()
    for rank in range(WORKERS):
        gradient = Gradient(rank, 0, problem.start(), problem.flat.fresh_buffers())
        gradient.due = -float(rank)
        engine.start(gradient)
    assert [gradient.rank for gradient in engine.running] == [0, 2]
    assert [gradient.rank for gradient in engine.pending] == [1, 3, 4, 5, 6]
    assert engine.pop_pending().rank == 6
    engine.close()


@pytest.mark.usefixtures("forkable")
def test_a_dropped_gradient_leaves_nothing_behind() -> None:
    """In whatever state it is: computed early, in another process, or neither."""
    problem = PROBLEMS["resnet8"](torch.float32)
    engine = Parallel(problem, 2)
    engine.start_assistants()
    started = start(problem, engine)
    assert engine.work_ahead()
    assert engine.pending and engine.running and engine.done
    for gradient in started:
        engine.drop(gradient)
        buffers = zip(gradient.buffers, problem.flat.fresh_buffers(), strict=True)
        assert all(torch.equal(a, b) for a, b in buffers)
    assert not (engine.pending or engine.running or engine.done or engine.ranks)
    engine.close()


@pytest.mark.usefixtures("forkable")
def test_a_process_that_is_killed_is_done_without() -> None:
    problem = PROBLEMS["resnet8"](torch.float32)
    with threads(1):
        expected, *_ = gradients(problem, Loop(problem), steps=1)
    engine = Parallel(problem, 2)
    gradients(problem, engine, steps=1)
    assistant = engine.assistants[0]
    started = start(problem, engine)
    assistant.process.kill()
    again = [engine.finish(gradient) for gradient in reversed(started)]
    assert engine.assistants == [] and not assistant.process.is_alive()
    assert all(torch.equal(a, b) for a, b in zip(expected, again, strict=True))


@pytest.mark.usefixtures("forkable")
def test_an_evaluation_has_the_same_bytes_on_any_number_of_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sgp_runner.core.problem.LARGE", 1000)
    problem = PROBLEMS["resnet8"](torch.float32)
    assert [len(chunk) for chunk in problem.chunks] == [64, 64, 64, 64, 64, 40]
    params, buffers = problem.start(), problem.flat.fresh_buffers()
    expected = problem.sums(params, buffers)
    engine = Parallel(problem, 3)
    assert len(engine.assistants) == 2  # of a large model, from the start
    gradients(problem, engine, steps=1)
    assert engine.sums(params, buffers) == expected
    engine.assistants[0].process.kill()
    assert engine.sums(params, buffers) == expected
    assert len(engine.assistants) == 1
    engine.close()


@pytest.mark.usefixtures("forkable")
def test_an_evaluation_in_one_pass_leaves_the_other_processes_to_their_gradients() -> None:
    problem = PROBLEMS["resnet8"](torch.float32)
    assert [len(chunk) for chunk in problem.chunks] == [360]
    params, buffers = problem.start(), problem.flat.fresh_buffers()
    engine = Parallel(problem, 3)
    assert engine.assistants == []
    gradients(problem, engine, steps=1)
    assert engine.sums(params, buffers) == problem.sums(params, buffers)
    assert [assistant.sums for assistant in engine.assistants] == [None, None]
    engine.close()


@pytest.mark.usefixtures("forkable")
def test_processes_end_with_the_engine_that_started_them() -> None:
    engine = Parallel(PROBLEMS["resnet8"](torch.float32), 2)
    engine.start_assistants()
    (process,) = [assistant.process for assistant in engine.assistants]
    assert process.is_alive()
    del engine
    gc.collect()
    assert not process.is_alive()


VISIBLE_CARD = """
import sys
import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
_setup_privateuseone_for_python_backend("pretend")
from test_engine import PROBLEMS, gradients
from sgp_runner.simulator.parallel import Assistant, Parallel
problem = PROBLEMS["resnet8"](torch.float32)
if sys.argv[1] == "second":
    problem.gradient(problem.start(), problem.flat.fresh_buffers(), 0, 0)
engine, values, receive = Parallel(problem, 2), [], Assistant.receive
def received(assistant):
    gradient, result = receive(assistant)
    values.append(result)
    return gradient, result
Assistant.receive = received
gradients(problem, engine, steps=3)
print(len(engine.assistants), any(values))
"""


@pytest.mark.parametrize(("run", "printed"), [("first", "1 True"), ("second", "0 False")])
def test_other_processes_compute_beside_a_visible_gpu(run: str, printed: str) -> None:
    """PyTorch refuses gradients in a fork of a process that has computed one."""
    done = subprocess.run(
        [sys.executable, "-c", VISIBLE_CARD, run],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.splitlines()[-1] == printed
    assert ("cannot compute gradients" in done.stderr) == (run == "second")


def test_a_small_run_imports_no_compiler(tmp_path: Path) -> None:
    overrides = [f"results={tmp_path}", "model=mlp", "nodes=2", "logger=jsonl", "epochs=0.05"]
    code = (
        "import sys\n"
        "from sgp_runner.config.overrides import experiment_of\n"
        "from sgp_runner.assembly.execution import run_experiment\n"
        f"run_experiment(experiment_of({overrides}))\n"
        "print(*sorted({'torch', 'torch._dynamo', 'sympy'} & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1] == "torch"
    (metrics,) = tmp_path.rglob("metrics.jsonl")
    assert '"loss"' in metrics.read_text()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_batched_loss_is_the_loss(smoothing: float) -> None:
    task, random = Classification(smoothing), torch.Generator().manual_seed(0)
    outputs = torch.randn(5, 3, 4, dtype=torch.float64, generator=random)
    targets = torch.randint(4, (5, 3), generator=random)
    losses = torch.func.vmap(task.batched_loss)(outputs, targets)
    expected = [task.loss(*sample) for sample in zip(outputs, targets, strict=True)]
    assert torch.allclose(losses, torch.stack(expected), rtol=1e-14, atol=0)


def test_a_gpu_repeats_to_the_bit_without_filling_new_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch would write NaN to each message and result first, another pass over memory."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    try:
        repeat_to_the_bit(Compute("cuda", deterministic=True))
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    finally:
        repeat_to_the_bit(Compute())
    assert not torch.are_deterministic_algorithms_enabled()
