"""The Hydra configuration tree. In a wheel it is the package ``sgp_runner.configs``."""
