"""RelaySGD against its recursion on trees, and against the mean of delayed models."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.recursion import ADAM, OPTIM, STEPS, Oracle, assert_equal, same
from helpers.tiny import START, D, run

from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.algorithms.relay_sgd import RelaySGD
from sgp_runner.topology.graphs import RandomMatching, Ring, StaticExponential, Topology, matrix
from sgp_runner.topology.trees import Tree
from sgp_runner.utils.errors import ConfigError

TREES = [Tree(1), Tree(), Tree(3), Tree(9)]


def distances(tree: Topology, n: int) -> np.ndarray:
    """Edges between any two nodes."""
    adjacent = np.array(matrix(tree, n, 0)) > 0
    far, reached = np.zeros((n, n), dtype=int), np.eye(n, dtype=bool)
    while not reached.all():
        far += ~reached
        reached = reached @ adjacent
    return far


@pytest.mark.parametrize("fill", ["start", "own"])
@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 6, 8])
def test_relay_sgd_by_hand(n: int, tree: Tree, fill: str) -> None:
    oracle = Oracle(n)
    neighbours = [tree.out_peers(i, n, 0) for i in range(n)]
    sums, counts = np.zeros((n, n, D)), np.zeros((n, n))  # from i to j, of the last step
    for k in range(STEPS):
        y = oracle.x - oracle.d(k)
        before, counted = sums.copy(), counts.copy()
        for i in range(n):
            for j in neighbours[i]:
                others = [neighbour for neighbour in neighbours[i] if neighbour != j]
                sums[i, j] = y[i] + sum(before[other, i] for other in others)
                counts[i, j] = 1 + sum(counted[other, i] for other in others)
        filling = START if fill == "start" else y
        missing = n - 1 - counts.sum(axis=0)
        oracle.x = (y + sums.sum(axis=0) + missing[:, None] * filling) / n
    assert_equal(run(RelaySGD(tree, fill), n, STEPS, OPTIM).x, oracle.x)  # type: ignore[arg-type]


@pytest.mark.parametrize("fill", ["start", "own"])
@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("n", [2, 3, 6, 8])
def test_models_of_relay_sgd_are_means_of_delayed_models(n: int, tree: Tree, fill: str) -> None:
    """From as many steps on as the diameter: x_i(t + 1) = mean_j y_j(t - max(d_ij - 1, 0))."""
    oracle, far = Oracle(n), distances(tree, n)
    # The oracle takes the local steps at the models of the run.
    models = [run(RelaySGD(tree, fill), n, k, OPTIM).x for k in range(1, STEPS + 1)]  # type: ignore[arg-type]
    y = []
    for k in range(STEPS):
        oracle.x = models[k - 1] if k else np.tile(START, (n, 1))
        y.append(oracle.x - oracle.d(k))
    late = np.maximum(far - 1, 0)
    for t in range(far.max() - 1, STEPS):
        expected = [np.mean([y[t - late[i, j]][j] for j in range(n)], axis=0) for i in range(n)]
        assert_equal(models[t], np.array(expected))


def test_relay_sgd_of_two_nodes_averages_exactly() -> None:
    assert same(RelaySGD(Tree()), ARSGD("parameters"), 2)
    assert same(RelaySGD(Tree()), ARSGD("parameters"), 2, ADAM)
    assert same(RelaySGD(Tree()), LocalSGD(None), 1)


def test_bytes_of_relay_sgd() -> None:
    """A model and a count to each neighbour, in float64."""
    sent = [worker.comm.num_bytes_sent for worker in run(RelaySGD(Tree()), 6, STEPS).workers]
    assert sent == [8 * (D + 1) * STEPS * degree for degree in (2, 3, 2, 1, 1, 1)]


@pytest.mark.parametrize("topology", [Ring(), RandomMatching(), StaticExponential()], ids=str)
def test_relay_sgd_refuses_graphs_that_are_no_trees(topology: Topology) -> None:
    with pytest.raises(ConfigError, match="needs the same tree in every step") as error:
        RelaySGD(topology).check(4, OPTIM)
    assert error.value.key == "algo.topology"
    with pytest.raises(ConfigError, match=r"^algo.topology.branches: 0 must be at least 1\.$"):
        Tree(0)


def test_d_psgd_on_trees() -> None:
    """Weights of edges make the mixing matrix symmetric, whatever the degrees."""
    for tree in TREES:
        mixing = np.array(matrix(tree, 7, 0))
        assert_equal(mixing, mixing.T)
        assert_equal(mixing.sum(axis=0), np.ones(7))
        assert np.diag(mixing).min() > 0
        DPSGD(tree).check(7, OPTIM)
    assert_equal(np.array(matrix(Tree(), 4, 0))[1], np.array([1 / 3, 1 / 3, 0, 1 / 3]))
