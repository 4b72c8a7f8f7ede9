"""Planning of a cluster before it is used, and the diagnosis of one that is slow."""
