"""Records, evaluations, checkpoints and mirrors of the metrics of a run."""
