"""What a run leaves behind: records, evaluations, checkpoints and mirrors of its metrics."""
