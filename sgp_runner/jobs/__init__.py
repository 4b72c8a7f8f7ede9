"""Many runs: pools of jobs, and the machine's resources that they share."""
