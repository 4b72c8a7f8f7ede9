"""Sections of ``make bench``: modules with a function ``measure(...)`` that yields tables.

The page shows the docstring of each section, which describes what is measured and how. The default
arguments of ``measure`` give the reported measurements; tests pass smaller sizes.
"""
