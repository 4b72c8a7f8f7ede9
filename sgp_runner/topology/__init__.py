"""The graphs over which nodes gossip, and their verification."""
