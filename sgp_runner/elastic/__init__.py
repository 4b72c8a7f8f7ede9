"""Who takes part in a run, and what its ranks do together before the first step."""
