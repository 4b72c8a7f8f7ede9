"""sgp-run: an experiment runner for communication-efficient distributed training.

    import sgp_runner as sgp

    result = sgp.run("algo=osgp", nodes=8)
    result.plot()

`run`, `sweep`, `study` and `load` come from `sgp_runner.api`. `Averager` runs an algorithm in
another training loop. Both are imported on first use.
"""

from typing import TYPE_CHECKING

from sgp_runner._version import __version__ as __version__

if TYPE_CHECKING:
    from sgp_runner.api import (
        ConfigError,
        Diverged,
        Result,
        Results,
        Stopped,
        load,
        run,
        study,
        sweep,
    )
    from sgp_runner.api.averager import Averager

__all__ = [
    "Averager",
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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'sgp_runner' has no attribute '{name}'")
    if name == "Averager":
        from sgp_runner.api.averager import Averager  # with PyTorch

        return Averager
    from sgp_runner import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
