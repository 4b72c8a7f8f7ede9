"""Plots as data: their series, styles, axes and labels."""
