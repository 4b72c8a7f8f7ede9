"""Local steps with outer steps, and gossip for unequal data, against recursions written with numpy
from the papers, and against each other where they coincide.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.experiments import make_experiment
from helpers.tiny import START, D, Momentum, Result, gradient, machines, run, sgd
from test_matrix_recursion import SIZES, SYMMETRIC, Oracle, assert_equal

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.choco_sgd import ChocoSGD
from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.algorithms.d_squared import DSquared
from sgp_runner.algorithms.demo import DeMo
from sgp_runner.algorithms.diloco import DiLoCo
from sgp_runner.algorithms.gossip_pga import GossipPGA
from sgp_runner.algorithms.gradient_tracking import GradientTracking
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.algorithms.noloco import NoLoCo
from sgp_runner.algorithms.qg_dsgdm import QGDSGDm
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.algorithms.sparseloco import SparseLoCo
from sgp_runner.algorithms.streaming_diloco import StreamingDiLoCo
from sgp_runner.cluster.compute_variation import GammaTime, LogNormalTime
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.core.codecs.casts import Identity
from sgp_runner.core.codecs.cosine import Chunks, CosineTopK
from sgp_runner.core.codecs.random_k import RandomK
from sgp_runner.core.codecs.top_k import TopK
from sgp_runner.core.fragments import fragments_of
from sgp_runner.core.optim import SGD, Adam, AdamW, Constant, WarmupCosine
from sgp_runner.core.worker import Worker
from sgp_runner.data.grammar import Grammar
from sgp_runner.data.sampler import ShardSampler
from sgp_runner.elastic.build import build_problem
from sgp_runner.models.gpt import GPT
from sgp_runner.topology.graphs import Complete, RandomMatching, Ring, Torus, matrix
from sgp_runner.topology.verify import smallest_eigenvalue
from sgp_runner.utils.errors import ConfigError

STEPS = 12
OPTIM = sgd(lr=0.2, momentum=0.9, nesterov=True, weight_decay=0.01)
PLAIN = sgd(lr=0.2)
COSINE = sgd(lr=0.2, schedule=WarmupCosine(0.3, 0.1))
LATE = [
    machines(),
    machines(LogNormalTime(0.5), latency=1.7),
    machines(GammaTime(2.0), latency=0.3, factors={1: 3.0}),
]
ADAM = Adam(Constant(), lr=0.05)


def same(a: Algorithm, b: Algorithm, nodes: int, optim: Any = OPTIM, steps: int = STEPS) -> None:
    assert_equal(run(a, nodes, steps, optim).x, run(b, nodes, steps, optim).x)


# DiLoCo


@pytest.mark.parametrize("cluster", LATE)
@pytest.mark.parametrize("nesterov", [True, False])
def test_diloco(cluster: Cluster, nesterov: bool) -> None:
    oracle, theta, v = Oracle(3), START.copy(), np.zeros(D)
    for k in range(STEPS):
        oracle.x = oracle.x - oracle.d(k)
        if (k + 1) % 4 == 0:
            delta = np.mean(theta - oracle.x, axis=0)
            v = 0.8 * v + delta
            theta = theta - 0.6 * (delta + 0.8 * v if nesterov else v)
            oracle.x = np.tile(theta, (3, 1))
    algo = DiLoCo(period=4, lr=0.6, momentum=0.8, nesterov=nesterov)
    assert_equal(run(algo, 3, STEPS, OPTIM, cluster).x, oracle.x)


def test_diloco_weighted_by_the_examples_of_each_worker() -> None:
    weights = (0.5, 0.75, 1.75)

    def weigh(result: Result, worker: Worker) -> None:
        worker.examples = weights[worker.rank]

    oracle, theta, v = Oracle(3), START.copy(), np.zeros(D)
    for k in range(8):
        oracle.x = oracle.x - oracle.d(k)
        if (k + 1) % 4 == 0:
            delta = np.average(theta - oracle.x, axis=0, weights=weights)
            v = 0.8 * v + delta
            theta = theta - 0.6 * (delta + 0.8 * v)
            oracle.x = np.tile(theta, (3, 1))
    algo = DiLoCo(period=4, lr=0.6, momentum=0.8, weights="examples")
    assert_equal(run(algo, 3, 8, OPTIM, each_step=weigh).x, oracle.x)


def test_the_examples_of_a_diloco_worker_are_those_of_its_shard(tmp_path: Path) -> None:
    settings = ("algo=diloco", "algo.weights=examples", "model=mlp", "nodes=3")
    for partition, equal in (("iid", True), ("dirichlet", False)):
        made = make_experiment(tmp_path / partition, *settings, f"data.partition={partition}")
        problem = build_problem(made.run)
        examples = [problem.examples(rank) for rank in range(3)]
        assert sum(examples) == pytest.approx(3) and (examples == [1, 1, 1]) == equal
        if isinstance(problem.sampler, ShardSampler):
            sizes = [len(shard) for shard in problem.sampler.shards]
            assert examples == [size * 3 / 1437 for size in sizes]


def test_diloco_with_plain_outer_steps_is_local_sgd() -> None:
    for optim in (OPTIM, ADAM):
        same(DiLoCo(4, lr=1.0, momentum=0.0), LocalSGD(4), 3, optim, steps=14)


def test_diloco_with_a_heavy_ball_is_slowmo_at_a_constant_rate() -> None:
    heavy = DiLoCo(4, lr=0.7, momentum=0.6, nesterov=False)
    same(heavy, SlowMo(LocalSGD(None), tau=4, alpha=0.7, beta=0.6, buffers="keep"), 3)


def test_diloco_at_every_step_is_ar_sgd() -> None:
    same(DiLoCo(1, lr=1.0, momentum=0.0), ARSGD(), 3, PLAIN)
    nesterov = sgd(lr=0.2 * 0.7, momentum=0.9, nesterov=True)
    outer = run(DiLoCo(1, lr=0.7, momentum=0.9), 3, STEPS, PLAIN).x
    assert_equal(outer, run(ARSGD(), 3, STEPS, nesterov).x)


def test_the_outer_parameters_are_evaluated() -> None:
    seen: list[bool] = []

    def look(result: Result, worker: Worker) -> None:
        if worker.steps_taken % 4:
            seen.append(torch.equal(worker.model, worker.params))

    run(DiLoCo(4), 2, 8, OPTIM, each_step=look)
    assert not any(seen) and len(seen) == 12


# Streaming DiLoCo


def test_one_fragment_without_delay_is_diloco() -> None:
    for optim in (OPTIM, ADAM):
        streaming = StreamingDiLoCo(Identity(), 4, fragments=1, delay=0, alpha=0.0, lr=0.7)
        same(streaming, DiLoCo(4, lr=0.7), 3, optim)
    at_once = StreamingDiLoCo(Identity(), 1, fragments=1, delay=0, alpha=0.0, lr=1, momentum=0)
    same(at_once, ARSGD(), 3, PLAIN)


@pytest.mark.parametrize("cluster", LATE)
def test_streaming_diloco(cluster: Cluster) -> None:
    """A fragment of the whole model, sent after steps 3, 6, 9, ... and landing a step later."""
    oracle, theta, v, sent = Oracle(3), START.copy(), np.zeros(D), np.zeros(D)
    for k in range(STEPS + 1):
        oracle.x = oracle.x - oracle.d(k)
        if (k + 1) % 3 == 0:
            sent = np.mean(theta - oracle.x, axis=0)
        if k >= 3 and k % 3 == 0:
            v = 0.9 * v + sent
            theta = theta - 0.4 * (sent + 0.9 * v)
            oracle.x = 0.25 * oracle.x + 0.75 * theta
    algo = StreamingDiLoCo(Identity(), 3, fragments=1, delay=1, alpha=0.25)
    result = run(algo, 3, STEPS + 1, OPTIM, cluster)
    assert_equal(result.x, oracle.x)
    assert_equal(
        np.stack([worker.model.numpy() for worker in result.workers]), np.tile(theta, (3, 1))
    )


@pytest.mark.parametrize("codec", [Identity(), TopK(k=1, side=1), RandomK(0.4)])
def test_the_outer_parameters_are_equal_everywhere_at_all_times(codec: Any) -> None:
    outer: dict[int, dict[int, bytes]] = {}

    def look(result: Result, worker: Worker) -> None:
        outer.setdefault(worker.step, {})[worker.rank] = worker.model.numpy().tobytes()

    algo = StreamingDiLoCo(codec, 3, fragments=1, delay=2)
    run(algo, 3, STEPS, OPTIM, LATE[1], each_step=look)
    assert all(len(set(each.values())) == 1 and len(each) == 3 for each in outer.values())
    # Moved after steps 5, 8 and 11, and by the exchange that the end of the run cuts short.
    assert len({each[0] for each in outer.values()}) == 5


def test_fragments_follow_the_blocks() -> None:
    data = Grammar(block=4, valid_size=1).load(torch.float32)
    with torch.device("meta"):
        module = GPT(layers=6, width=8, heads=2).build(data)
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    sizes = [12 * 64 + 16] * 6
    for pattern, owned in (
        ("strided", [[0, 2, 4], [1, 3, 5]]),
        ("sequential", [[0, 1, 2], [3, 4, 5]]),
    ):
        *blocks, rest = fragments_of(shapes, 3, pattern, 99)
        starts = [256 * 8 + sum(sizes[:i]) for i in range(6)]
        for fragment, numbers in zip(blocks, owned, strict=True):
            places = [i for span in fragment.spans for i in range(span.start, span.stop)]
            expected = [i for n in numbers for i in range(starts[n], starts[n] + sizes[n])]
            assert places == expected
        assert [tuple(shape) for shape in rest.shapes.values()] == [(256, 8), (8,)]
    for layers, count in ((24, 9), (48, 17), (108, 37)):  # those of the paper
        names = {f"blocks.{i}.x": (1,) for i in range(layers)} | {"norm": (1,)}
        assert len(fragments_of(names, 3, "strided", 99)) == count
        assert 100 // count == {24: 11, 48: 5, 108: 2}[layers]


def test_a_model_without_blocks_is_cut_into_runs_of_tensors() -> None:
    shapes = {"a": (4,), "b": (1, 2), "c": (3,), "d": (3,)}
    assert [each.shapes for each in fragments_of(shapes, 3, "strided", 3)] == [
        {"a": (4,)},
        {"b": (1, 2)},
        {"c": (3,), "d": (3,)},
    ]
    assert [each.spans for each in fragments_of(shapes, 3, "strided", 1)] == [
        [slice(0, 4), slice(4, 6), slice(6, 9), slice(9, 12)]
    ]


# NoLoCo


@pytest.mark.parametrize("cluster", LATE)
def test_noloco(cluster: Cluster) -> None:
    oracle, graph = Oracle(4), RandomMatching(seed=5)
    phi, m = oracle.x.copy(), np.zeros((4, D))
    for k in range(STEPS):
        oracle.x = oracle.x - oracle.d(k)
        if (k + 1) % 3 == 0:
            w = np.array(matrix(graph, 4, k // 3))
            m = 0.5 * m + 0.7 * w @ (oracle.x - phi) - 0.6 * (phi - w @ phi)
            phi = phi + m
            oracle.x = phi.copy()
    algo = NoLoCo(graph, period=3, lr=0.7, momentum=0.5, gamma=0.6)
    assert_equal(run(algo, 4, STEPS, OPTIM, cluster).x, oracle.x)


def test_noloco_on_a_complete_graph_is_diloco_with_a_heavy_ball() -> None:
    heavy = DiLoCo(4, lr=0.7, momentum=0.5, nesterov=False)
    for nodes, graph in ((2, RandomMatching()), (3, Complete())):
        same(NoLoCo(graph, period=4), heavy, nodes, steps=14)


def test_the_spread_of_outer_parameters_falls_by_three_tenths_per_exchange() -> None:
    """Asymptotically, for a momentum of 0.5 and gamma 0.7, with gradients of zero."""
    generator = np.random.default_rng(0)
    phi, m, variances = generator.normal(size=(4096, 2)), np.zeros((4096, 2)), []
    for exchange in range(40):
        w = RandomMatching()
        partners = [w.out_peers(rank, 4096, exchange)[0] for rank in range(4096)]
        mean = (phi + phi[partners]) / 2
        m = 0.5 * m - 0.7 * (phi - mean)
        phi = phi + m
        variances.append(phi.var(axis=0).sum())
    assert (variances[-1] / variances[9]) ** (1 / 30) == pytest.approx(0.7, abs=0.01)


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: NoLoCo(RandomMatching(), momentum=0.9), "algo.gamma"),
        (lambda: NoLoCo(RandomMatching(), gamma=0.0), "algo.gamma"),
        (lambda: NoLoCo(RandomMatching()).check(5, OPTIM), "nodes"),
        (lambda: DiLoCo(period=0), "algo.period"),
        (lambda: DiLoCo(lr=0.0), "algo.lr"),
        (lambda: DiLoCo(momentum=1.0), "algo.momentum"),
        (lambda: StreamingDiLoCo(Identity(), 3, delay=3), "algo.delay"),
        (lambda: StreamingDiLoCo(Identity(), alpha=1.1), "algo.alpha"),
        (lambda: ChocoSGD(Ring(), Identity(), gamma=1.5), "algo.gamma"),
        (lambda: ChocoSGD(RandomMatching(), Identity()).check(4, OPTIM), "algo.topology"),
        (lambda: QGDSGDm(Ring()).check(4, ADAM), "optim"),
        (lambda: ARSGD("parameters", TopK()), "algo.codec"),
        (lambda: DSquared(Ring(), lazy=False).check(4, PLAIN), "algo.lazy"),
        (lambda: DSquared(RandomMatching()).check(4, PLAIN), "algo.topology"),
    ],
)
def test_impossible_settings_are_refused(make: Any, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert error.value.key == key


# CHOCO-SGD


def test_choco_without_loss_is_d_psgd() -> None:
    for nodes in (2, 3, 4):
        same(ChocoSGD(Ring(), Identity(), 1.0), DPSGD(Ring(), order="adapt_then_combine"), nodes)
        same(ChocoSGD(Ring(), Identity(), 1.0, layout="released"), DPSGD(Ring()), nodes)


@pytest.mark.parametrize("cluster", LATE)
@pytest.mark.parametrize("layout", ["paper", "released"])
def test_choco(cluster: Cluster, layout: Any) -> None:
    """The largest number of each difference is sent."""
    oracle, x_hat = Oracle(4), np.tile(START, (4, 1))
    w = oracle.p(Ring(), 0)
    for k in range(STEPS):
        x = oracle.x - oracle.d(k)
        for late in (layout == "released", layout == "paper"):
            if late:
                x = x + 0.3 * (w @ x_hat - x_hat)
            else:
                q = x - x_hat
                largest = np.abs(q).argmax(axis=1)
                kept = np.zeros_like(q)
                kept[range(4), largest] = q[range(4), largest].astype(np.float32)
                x_hat = x_hat + kept
        oracle.x = x
    algo = ChocoSGD(Ring(), TopK(k=1, side=8), 0.3, layout=layout)
    assert_equal(run(algo, 4, STEPS, OPTIM, cluster).x, oracle.x)


def test_the_mean_moves_as_without_communication_whatever_the_codec() -> None:
    for codec in (TopK(k=1, side=8), RandomK(0.4)):
        steps: list[np.ndarray] = []

        def look(result: Result, worker: Worker, steps: list[np.ndarray] = steps) -> None:
            if worker.rank == 0:
                steps.append(result.x.mean(axis=0))

        optim = sgd(lr=0.2)
        x = run(ChocoSGD(Ring(), codec, 0.3), 1, STEPS, optim).x
        assert_equal(x, run(LocalSGD(None), 1, STEPS, optim).x)
        before = np.tile(START, (4, 1))
        result = run(ChocoSGD(Ring(), codec, 0.3), 4, 1, optim)
        step = np.mean([0.2 * gradient(i, 0, before[i]) for i in range(4)], axis=0)
        assert_equal(result.x.mean(axis=0), START - step)


# SparseLoCo


def test_sparseloco_without_loss_is_diloco_without_momentum() -> None:
    for optim in (OPTIM, ADAM):
        same(SparseLoCo(Identity(), 4, lr=0.8), DiLoCo(4, lr=0.8, momentum=0.0), 3, optim, 14)


@pytest.mark.parametrize("divide_by", ["workers", "senders"])
def test_sparseloco(divide_by: Any) -> None:
    """The largest number of each difference is sent."""
    oracle, theta, e = Oracle(3), START.copy(), np.zeros((3, D))
    for k in range(STEPS):
        oracle.x = oracle.x - oracle.d(k)
        if (k + 1) % 3 == 0:
            e = 0.9 * e + theta - oracle.x
            largest, q = np.abs(e).argmax(axis=1), np.zeros((3, D))
            q[range(3), largest] = e[range(3), largest].astype(np.float32)
            e = e - q
            senders = np.maximum((q != 0).sum(axis=0), 1)
            theta = theta - 0.8 * q.sum(axis=0) / (3 if divide_by == "workers" else senders)
            oracle.x = np.tile(theta, (3, 1))
    algo = SparseLoCo(TopK(k=1, side=8), 3, beta=0.9, lr=0.8, divide_by=divide_by)
    assert_equal(run(algo, 3, STEPS, OPTIM).x, oracle.x)


def test_what_was_sent_and_what_is_left_is_the_sum_of_all_differences() -> None:
    """For a feedback without decay, whatever the codec."""
    for codec in (TopK(k=1, side=8), TopK(k=2, side=8, bits=2), RandomK(0.4)):
        result = run(SparseLoCo(codec, 1, beta=1.0), 3, STEPS, sgd(lr=0.2))
        moved = START - result.x[0]  # the mean of all that was sent
        left = np.mean([worker.state["error"].numpy() for worker in result.workers], axis=0)
        steps = np.zeros(D)
        for k, at in enumerate(trajectory(codec)[:STEPS]):
            steps += np.mean([0.2 * gradient(i, k, at) for i in range(3)], axis=0)
        assert_equal(moved + left, steps)


def trajectory(codec: Any) -> list[np.ndarray]:
    """The common models before each step of a run that is repeated."""
    models = [START]
    run(
        SparseLoCo(codec, 1, beta=1.0),
        3,
        STEPS,
        sgd(lr=0.2),
        each_step=lambda r, w: models.append(w.params.numpy().copy()) if w.rank == 0 else None,
    )
    return models


def test_coded_gradients_with_error_feedback() -> None:
    """The largest number of each gradient is sent."""
    momentum, e, x = Momentum(OPTIM), np.zeros((3, D)), START.copy()
    for k in range(STEPS):
        e = e + np.stack([gradient(i, k, x) for i in range(3)])
        largest, q = np.abs(e).argmax(axis=1), np.zeros((3, D))
        q[range(3), largest] = e[range(3), largest].astype(np.float32)
        e = e - q
        x = x - momentum.step(q.mean(axis=0), x)
    result = run(ARSGD(codec=TopK(k=1, side=8)), 3, STEPS, OPTIM)
    assert_equal(result.x, np.tile(x, (3, 1)))


# DeMo


def test_demo_with_all_coefficients_takes_the_sign_of_the_mean_gradient() -> None:
    x = START.copy()
    for k in range(STEPS):
        x = x - 0.1 * np.sign(np.mean([gradient(i, k, x) for i in range(3)], axis=0))
    result = run(DeMo(k=64), 3, STEPS, sgd(lr=0.1))
    assert_equal(result.x, np.tile(x, (3, 1)))
    for worker in result.workers:
        np.testing.assert_allclose(worker.state["momentum"].numpy(), 0, atol=1e-6)


def test_the_weight_decay_of_demo_is_decoupled() -> None:
    x = START.copy()
    for k in range(STEPS):
        g = np.mean([gradient(i, k, x) for i in range(3)], axis=0)
        x = (1 - 0.1 * 0.3) * x - 0.1 * np.sign(g)
    assert_equal(run(DeMo(k=64), 3, STEPS, sgd(lr=0.1, weight_decay=0.3)).x, np.tile(x, (3, 1)))


@pytest.mark.parametrize(
    ("optim", "key", "fix"),
    [
        (sgd(momentum=0.9), "optim.momentum", "use optim.momentum=0."),
        (ADAM, "optim", "use optim=sgd, not adam."),
    ],
)
def test_demo_refuses_another_momentum(optim: Any, key: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DeMo().check(4, optim)
    sentence = f"DeMo has a momentum of its own, algo.beta: {fix}"
    assert (caught.value.key, caught.value.sentence) == (key, sentence)


def test_the_cosine_transform_is_scipys() -> None:
    from scipy.fft import dctn

    x = torch.randn(12 * 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    chunks = Chunks((12, 10), 4)  # blocks of 4 x 2
    coefficients = chunks.transform(x)
    blocks = x.view(3, 4, 5, 2).movedim(1, 2).reshape(15, 4, 2).numpy()
    expected = np.stack([dctn(block, norm="ortho").reshape(-1) for block in blocks])
    np.testing.assert_allclose(coefficients.numpy(), expected, atol=1e-12)
    assert torch.allclose(chunks.transform_back(coefficients), x, atol=1e-12)
    assert Chunks((7,), 64).size == 7 and Chunks((130,), 64).size == 26


def test_a_message_of_demo_has_the_largest_coefficients_and_their_places() -> None:
    codec, shapes = CosineTopK(2, 4), {"a": (8, 8), "b": (6,)}
    m = torch.randn(70, generator=torch.Generator().manual_seed(0))
    message = codec.encode(m, shapes, 0)
    # Four chunks of 16 and two of 3: two coefficients each, with places of 4 and 2 bits.
    assert len(message) == 4 * 12 + 8 * 4 // 8 + 4 * 2 // 8
    coefficients = codec.decode(message, shapes, m, 0)
    assert int((coefficients != 0).sum()) == 12
    rest = m - codec.transform_back(coefficients, shapes)
    again = Chunks((8, 8), 4).transform(rest[:64])
    sent = coefficients[:64].view(4, 16)
    assert bool((again.abs().max(1).values <= sent.abs().topk(2, 1).values[:, 1] + 1e-5).all())


# Gossip for unequal data


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("nesterov", [True, False])
def test_qg_dsgdm(n: int, nesterov: bool) -> None:
    optim = sgd(lr=0.2, momentum=0.9, nesterov=nesterov, weight_decay=0.01)
    x, m_hat = np.tile(START, (n, 1)), np.zeros((n, D))
    w = np.array(matrix(Ring(), n, 0))
    for k in range(STEPS):
        g = np.stack([gradient(i, k, x[i]) for i in range(n)]) + 0.01 * x
        m = 0.9 * m_hat + g
        new = w @ (x - 0.2 * (g + 0.9 * m if nesterov else m))
        m_hat = 0.8 * m_hat + 0.2 * (x - new) / 0.2
        x = new
    assert_equal(run(QGDSGDm(Ring(), mu=0.8), n, STEPS, optim).x, x)


def test_quasi_global_momentum_of_zero_is_d_psgd() -> None:
    same(QGDSGDm(Ring()), DPSGD(Ring(), order="adapt_then_combine"), 4, PLAIN)


def test_quasi_global_momentum_survives_a_learning_rate_of_zero() -> None:
    class Off:
        def factor(self, epoch: float, horizon: object) -> float:
            return 0.0

    result = run(QGDSGDm(Ring()), 3, 4, sgd(momentum=0.9, schedule=Off()))
    assert_equal(result.x, np.tile(START, (3, 1)))


@pytest.mark.parametrize("optim", [PLAIN, COSINE])
@pytest.mark.parametrize("n", SIZES)
def test_d_squared(n: int, optim: SGD) -> None:
    w = (np.array(matrix(Ring(), n, 0)) + np.eye(n)) / 2
    rates = [0.2 if optim is PLAIN else rate(optim, k) for k in range(STEPS)]
    x = old = np.tile(START, (n, 1))
    g_old = None
    for k in range(STEPS):
        g = np.stack([gradient(i, k, x[i]) for i in range(n)])
        drift = 0.0 if g_old is None else (old - x) / rates[k - 1] - g_old
        old, x, g_old = x, w @ (x - rates[k] * (g + drift)), g
        assert_equal(x.mean(axis=0), old.mean(axis=0) - rates[k] * g.mean(axis=0))
    assert_equal(run(DSquared(Ring()), n, STEPS, optim).x, x)


def rate(optim: SGD, step: int) -> float:
    from helpers.tiny import PER_EPOCH

    from sgp_runner.core.optim import Horizon, lr_at

    return lr_at(optim, step / PER_EPOCH, Horizon(STEPS / PER_EPOCH, PER_EPOCH, 1, 1))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("topology", SYMMETRIC, ids=str)
def test_gradient_tracking(topology: Any, n: int) -> None:
    for layout in ("adapt_then_combine", "diging"):
        x = np.tile(START, (n, 1))
        y = g_old = None
        for k in range(STEPS):
            w = np.array(matrix(topology, n, k))
            last = np.array(matrix(topology, n, k - 1)) if k else None
            g = np.stack([gradient(i, k, x[i]) for i in range(n)])
            y = g if y is None else last @ y + g - g_old
            assert_equal(y.mean(axis=0), g.mean(axis=0))
            x = w @ (x - 0.2 * y) if layout == "adapt_then_combine" else w @ x - 0.2 * y
            g_old = g
        assert_equal(run(GradientTracking(topology, layout), n, STEPS, PLAIN).x, x)


@pytest.mark.parametrize("n", [2, 3, 4, 6])
def test_gossip_pga(n: int) -> None:
    oracle = Oracle(n)
    for k in range(STEPS):
        half = oracle.x - oracle.d(k)
        w = np.full((n, n), 1 / n) if (k + 1) % 3 == 0 else oracle.p(Ring(), k)
        oracle.x = w @ half
    assert_equal(run(GossipPGA(Ring(), period=3), n, STEPS, OPTIM).x, oracle.x)


def test_gossip_pga_between_its_two_ends() -> None:
    same(GossipPGA(Ring(), period=1), ARSGD(average="parameters"), 4, ADAM)
    same(GossipPGA(Ring(), period=99), DPSGD(Ring(), order="adapt_then_combine"), 4)


def test_smallest_eigenvalues() -> None:
    assert [smallest_eigenvalue(Ring(), n) for n in (2, 3, 4, 8)] == pytest.approx(
        [0, 0, -1 / 3, -1 / 3]
    )
    assert smallest_eigenvalue(Ring(), 100) == pytest.approx(-1 / 3)
    assert smallest_eigenvalue(Torus(), 8) == pytest.approx(-1 / 2)
    assert smallest_eigenvalue(Complete(), 5) == pytest.approx(0)


def test_local_steps_of_adamw_clip_each_gradient() -> None:
    optim = AdamW(Constant(), lr=0.05, clip=0.1)
    loose = replace(optim, clip=None)
    a, b = (run(DiLoCo(3), 2, 6, each).x for each in (optim, loose))  # type: ignore[arg-type]
    assert not np.allclose(a, b)
