"""The graphs over which nodes gossip, and whether one works for a number of nodes."""
