"""The sections of ``make bench``: a module each, with a docstring of what is measured and how, and
``measure(...)`` that yields tables.

What ``measure`` takes has defaults, the sizes that are reported; tests call it with small ones.
"""
