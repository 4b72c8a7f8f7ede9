"""Solutions of `answers.py`."""

import numpy as np


def all_reduce_bytes(nodes, size):
    return 2 * (nodes - 1) / nodes * size


def bytes_per_step(period, nodes, size):
    return all_reduce_bytes(nodes, size) / period


def barrier_time(times):
    return sum(max(step) for step in times)


def free_time(times):
    return max(sum(node) for node in zip(*times, strict=True))


def shared_budget_time(seconds, gradients):
    ends = sorted(each * k for each in seconds for k in range(1, gradients + 1))
    return ends[gradients - 1]


def consensus_distance(models):
    apart = np.asarray(models) - np.mean(models, axis=0)
    return np.sqrt((apart**2).sum(axis=1).mean())


def ring(nodes):
    return sum(np.roll(np.eye(nodes), shift, axis=1) for shift in (-1, 0, 1)) / 3


def rounds_to(matrix, share):
    second = np.sort(np.abs(np.linalg.eigvalsh(matrix)))[-2]
    rounds = 0
    while second**rounds >= share:
        rounds += 1
    return rounds


def push_sum(matrix, values, rounds):
    x, w = np.asarray(values, float), np.ones(len(values))
    for _ in range(rounds):
        x, w = matrix @ x, matrix @ w
    return x / w


def outer_step(theta, models, velocity, rate, momentum):
    change = theta - np.mean(models, axis=0)
    velocity = momentum * velocity + change
    return theta - rate * (change + momentum * velocity), velocity
