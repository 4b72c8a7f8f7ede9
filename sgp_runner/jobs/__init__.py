"""Many runs: pools of jobs and what they need to know of the machine."""
