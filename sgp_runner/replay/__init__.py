"""Recorded real runs, replayed in one process or timed again under another algorithm.

A rank's scheduler is deterministic except for the order in which gradients and messages reach it,
and for the numbers of the steps that it draws from a shared budget. A recording
(`sgp_runner.recording.trace`) holds that order and those numbers, so that the rank's own code takes
every decision again and ends with the same bytes (`exact`). It also holds how long each gradient
and each message took, from which any algorithm can be simulated (`what_if`).
"""
