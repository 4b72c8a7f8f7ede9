"""The Hydra configuration tree. A package, so that ``pkg://sgp_runner.configs`` finds it however it is installed."""
