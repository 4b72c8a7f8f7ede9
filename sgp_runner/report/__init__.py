"""Reports on runs: tables, one web page that needs no network, and every plot as a picture.

``runs`` reads folders into frames, ``settings`` joins the seeds of one setting, ``tables`` and
``plots`` define what is shown, ``interactive``, ``images`` and ``page`` draw it, ``write`` puts it
in a folder.
"""
