"""Replay of recorded real runs, and simulation of other algorithms with recorded times.

A rank's scheduler is deterministic except for the order in which gradients and messages arrive, and
for the step numbers that it draws from a shared budget. A recording (`sgp_runner.recording.trace`)
contains this order and the step numbers, so that a replay repeats every decision and ends with the
same bytes (`exact`). It also contains the duration of each gradient and each message. With these
durations `what_if` can simulate any algorithm.
"""
