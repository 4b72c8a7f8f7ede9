"""Plug-ins: choices of the user's own, in a file, a package or a Python program.

A file defines one class of its group (``algo=./gossip_pga.py``), a choice with the file's name. A
package (``--plugin mypkg``, or installed with an entry point of the group `loading.GROUP`) has a
YAML file per choice, in ``configs/GROUP/``, and names their classes in ``CHOICES`` of its
``__init__.py``: ``{"algo": {"gossip_pga": "mypkg.gossip_pga:GossipPGA"}}``.

Code is imported only if the command line names it or it is installed. A stored configuration has
the name and the hash of each plug-in that it uses. A run is refused if they differ; they never
cause an import.
"""
