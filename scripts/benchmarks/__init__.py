"""Sections of ``make bench``: modules with a function ``measure(...)`` that yields tables.

The page shows the docstring of each section, which describes what is measured and how. Arguments of
``measure`` default to the sizes of the reported measurements; tests pass small sizes.
"""
