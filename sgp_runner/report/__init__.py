"""Reports on runs: tables, one web page that needs no network, and every plot as a picture.

``read`` loads run folders as data frames and groups the seeds of each setting, ``rank`` compares
the settings, ``plots`` defines the figures, and ``render`` writes tables and figures to a folder.
"""
