"""Reports on runs: tables, one web page that needs no network, and every plot as a picture.

``read`` turns folders into frames and joins the seeds of one setting, ``rank`` compares them,
``plots`` defines the figures, and ``render`` draws them and writes them into a folder.
"""
