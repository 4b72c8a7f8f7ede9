"""Communication graphs of gossip algorithms, and their verification."""
