"""Your answers: replace each ``raise NotImplementedError``. ``pytest`` marks them."""


def all_reduce_bytes(nodes, size):
    """Return the bytes that a node sends in a bandwidth-optimal all-reduce of ``size`` bytes."""
    raise NotImplementedError


def bytes_per_step(period, nodes, size):
    """Return the mean bytes per step of DiLoCo: an all-reduce every ``period`` steps."""
    raise NotImplementedError


def barrier_time(times):
    """Return the seconds of a run whose nodes wait for each other after every step.

    times: [steps, nodes], seconds of each gradient
    """
    raise NotImplementedError


def free_time(times):
    """Return the seconds until the last node has computed its own gradients without waiting."""
    raise NotImplementedError


def shared_budget_time(seconds, gradients):
    """Return the seconds until the nodes have finished ``gradients`` gradients in total.

    Each node starts its next gradient at once, as in AD-PSGD.

    seconds: [nodes], seconds of a gradient of each node
    """
    raise NotImplementedError


def consensus_distance(models):
    """Return the root mean square distance of ``models`` [nodes, D] from their mean."""
    raise NotImplementedError


def ring(nodes):
    """Return the mixing matrix [nodes, nodes] of a ring whose nodes average with both neighbours.

    ``nodes`` is at least 3.
    """
    raise NotImplementedError


def rounds_to(matrix, share):
    """Return the rounds of ``x <- P x`` until any deviation from the mean is below ``share``.

    The deviation is measured in the 2-norm. ``matrix`` [n, n] is symmetric and doubly stochastic.
    """
    raise NotImplementedError


def push_sum(matrix, values, rounds):
    """Return the de-biased values [n] after some rounds of push-sum.

    matrix: [n, n], whose columns add up to 1
    values: [n]
    """
    raise NotImplementedError


def outer_step(theta, models, velocity, rate, momentum):
    """Return DiLoCo's new outer parameters and velocity, with Nesterov's momentum.

    theta, velocity: [D]
    models: [nodes, D], after the local steps
    """
    raise NotImplementedError
