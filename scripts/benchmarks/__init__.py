"""Sections of ``make bench``: modules with a function ``measure(...)`` that yields tables.

The docstring of a section describes on the page what is measured and how. Arguments of ``measure``
default to the sizes that are reported; tests pass small ones.
"""
