"""The graphs over which nodes gossip, and the verification of these graphs."""
