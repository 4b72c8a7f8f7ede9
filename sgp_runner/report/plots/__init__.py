"""Plots as data: what is shown, in which style, with which labels."""
