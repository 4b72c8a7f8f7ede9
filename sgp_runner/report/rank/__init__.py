"""Rankings by time to a target, and the tables of a report."""
