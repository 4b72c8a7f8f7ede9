"""Plug-ins: choices of the user's own, in a file, a package or a Python program.

A file has one class of a kind (``algo=./gossip_pga.py``), which becomes the choice of its name. A
package (``--plugin mypkg``, or installed with an entry point of the group `loading.GROUP`) has a
YAML file per choice, in ``configs/GROUP/``, and names their classes in ``CHOICES`` of its
``__init__.py``: ``{"algo": {"gossip_pga": "mypkg.gossip_pga:GossipPGA"}}``.

Code is imported only if the command line names it or it is installed. A stored configuration has
the name and the hash of each plug-in that it uses, and they only refuse a run: they import nothing.
"""
