"""Data sets, one file each, and the rule that deals their samples to the workers."""
