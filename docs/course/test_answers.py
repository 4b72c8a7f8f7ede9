"""Marks for ``answers.py``: one for each test that passes, ten in all."""

import answers
import numpy as np
import pytest

import sgp_runner as sgp


def test_bytes_of_an_all_reduce_are_those_of_the_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "algo=ar_sgd model=quadratic nodes=4 epochs=0.05 logger=none"
    summary = sgp.run(words, verbose=False).summary
    size = 4 * 64  # 64 parameters
    assert answers.all_reduce_bytes(4, size) == 384
    assert summary["bytes_per_node"] == summary["steps"] * answers.all_reduce_bytes(4, size)


def test_rare_exchanges_divide_the_bytes():
    assert answers.bytes_per_step(50, 8, 400e6) == pytest.approx(14e6)


def test_a_barrier_costs_the_slowest_node_of_each_step():
    assert answers.barrier_time([[1, 2], [3, 1], [1, 1]]) == 6


def test_without_a_barrier_the_slowest_node_counts_once():
    assert answers.free_time([[1, 2], [3, 1], [1, 1]]) == 5


def test_a_shared_budget_lets_fast_nodes_compute_more():
    assert answers.shared_budget_time([1, 1, 1, 4], 13) == 4


def test_consensus_distance():
    models = np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 3.0], [1.0, -3.0]])
    assert answers.consensus_distance(models) == pytest.approx(np.sqrt(5))


def test_a_ring_is_doubly_stochastic():
    matrix = answers.ring(5)
    assert np.allclose(matrix.sum(axis=0), 1) and np.allclose(matrix.sum(axis=1), 1)
    assert np.allclose(matrix @ [3, 0, 0, 0, 0], [1, 1, 0, 0, 1])


def test_large_rings_mix_slowly():
    matrix = sum(np.roll(np.eye(16), shift, axis=1) for shift in (-1, 0, 1)) / 3
    assert answers.rounds_to(matrix, 0.01) == 89


def test_push_sum_finds_the_mean_where_rows_do_not_add_up_to_one():
    matrix = np.array(
        [[0.25, 0, 0, 0.5], [0.25, 0.5, 0, 0], [0.25, 0.5, 0.5, 0], [0.25, 0, 0.5, 0.5]]
    )
    assert np.allclose(answers.push_sum(matrix, [1, 2, 3, 4], 60), 2.5)
    assert np.allclose(answers.push_sum(matrix, [1, 2, 3, 4], 1), [3, 5 / 3, 2.2, 3.0])


def test_an_outer_step_looks_ahead():
    theta, velocity = answers.outer_step(
        np.array([1.0]), np.array([[0.0], [0.5]]), np.array([1.0]), 0.5, 0.9
    )
    assert np.allclose(velocity, 1.65) and np.allclose(theta, 1 - 0.5 * (0.75 + 0.9 * 1.65))
