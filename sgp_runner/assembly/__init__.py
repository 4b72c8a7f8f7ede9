"""Assembly of a run, from its experiment to its summary: problem, workers, backend, records."""
