"""Real runs that are recorded, replayed in one process, and timed again under another algorithm.

A rank's scheduler is deterministic but for the order in which gradients and messages reach it, and
for the numbers of the steps that it draws from a shared budget. A recording holds that order and
those numbers (`recording`, written by `recorded`), so that the rank's own code, fed with them,
takes every decision again and ends with the same bytes (`exact`). Times are recorded beside them:
how long each gradient and each message took, on which any algorithm can be simulated (`what_if`).
"""
