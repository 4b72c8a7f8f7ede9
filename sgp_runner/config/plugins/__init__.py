"""Plug-ins: choices of the user's own, in a file, a package or a Python program.

A file defines one class of its group (``algo=./gossip_pga.py``); the choice has the file's name. A
package (``--plugin mypkg``, or installed with an entry point of the group `loading.GROUP`) has a
YAML file per choice, in ``configs/GROUP/``, and lists their classes in ``CHOICES`` of its
``__init__.py``: ``{"algo": {"gossip_pga": "mypkg.gossip_pga:GossipPGA"}}``.

Code is imported only if it is on the command line or installed. A stored configuration has the
name and the hash of each plug-in of the run. They never cause an import; a run is refused if they
differ from the loaded plug-ins.
"""
