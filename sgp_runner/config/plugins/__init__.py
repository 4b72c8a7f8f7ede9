"""Plug-ins: the user's own choices, in a file, a package or a Python program.

A file (``algo=./gossip_pga.py``) defines one class of a group; the choice has the file's name. A
package (``--plugin mypkg``, or installed with an entry point of the group `loading.GROUP`) has one
YAML file for each choice, in ``configs/GROUP/``. Its ``__init__.py`` lists the classes in ``CHOICES
= {"algo": {"gossip_pga": "mypkg.gossip_pga:GossipPGA"}}``.

A plug-in is imported only if it is on the command line or installed. A stored configuration
contains the name and hash of each plug-in that the run used. Reading a stored configuration never
imports a plug-in; the configuration is rejected if its plug-ins differ from the loaded plug-ins.
"""
