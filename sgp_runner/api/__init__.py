"""The Python interface: `run`, `sweep`, `study` and `load`, which ``sgp_runner`` exports too."""

from sgp_runner.api.results import Result, Results, load
from sgp_runner.api.running import run, sweep
from sgp_runner.api.studying import study
from sgp_runner.utils.errors import ConfigError, Diverged, Stopped

__all__ = [
    "ConfigError",
    "Diverged",
    "Result",
    "Results",
    "Stopped",
    "load",
    "run",
    "study",
    "sweep",
]
