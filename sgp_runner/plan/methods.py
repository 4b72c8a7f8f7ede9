"""The methods that a plan compares: every algorithm with its usual settings, and a few others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sgp_runner.config.choices import class_of, groups
from sgp_runner.utils.errors import ConfigError, nearest


@dataclass(frozen=True)
class Method:
    """An algorithm with settings.

    title: name in the table
    overrides: settings, as arguments of ``sgp-run``; the first one chooses the algorithm
    """

    title: str
    overrides: tuple[str, ...]

    @property
    def algorithm(self) -> str:
        return self.overrides[0].partition("=")[2]


def method(title: str, algorithm: str, *settings: str) -> Method:
    return Method(title, (f"algo={algorithm}", *(f"algo.{setting}" for setting in settings)))


SAVES = 0.05  # a method pays if it saves this share of the time of a simpler one
DATA_PARALLEL = method("Data parallel", "ar_sgd")
# Numbers of steps H between exchanges of DiLoCo and of Streaming DiLoCo.
PERIODS, STREAMING_PERIODS = (30, 100, 500), (30, 100)


def methods(periods: Sequence[int] | None = None) -> tuple[Method, ...]:
    """Return all methods.

    Algorithms without settings here use their defaults. The hybrid of two algorithms is left out.

    periods: replace `PERIODS` and `STREAMING_PERIODS`
    """
    special = (
        DATA_PARALLEL,
        method("Data parallel, int8", "ar_sgd", "codec=int8"),
        method("PowerSGD, rank 2", "powersgd", "rank=2"),
        method("Pipe-SGD, depth 2", "pipe_sgd", "depth=2"),
        method("OSGP, tau 1", "osgp", "tau=1"),
        method("Gossip-PGA, H 48", "gossip_pga", "period=48"),
        method("Local SGD, H 12", "local_sgd", "tau=12"),
        method("SlowMo of Local SGD", "slowmo", "base=local_sgd"),
        method("SlowMo of SGP", "slowmo", "base=sgp"),
        method("DES-LOC, H 32", "des_loc", "period=32"),
        *(method(f"DiLoCo, H {h}", "diloco", f"period={h}") for h in periods or PERIODS),
        method("DiLoCo, H 30, delayed", "diloco", "period=30", "overlap=delayed"),
        method("Streaming DiLoCo, H 30", "streaming_diloco", "period=30"),
        *(
            method(f"Streaming DiLoCo, H {h}, FP4", "streaming_diloco", f"period={h}", "codec=fp4")
            for h in periods or STREAMING_PERIODS
        ),
        method("1-bit Adam, 15 % warm-up", "onebit_adam", "warmup_epochs=0.15"),
        method("0/1 Adam, 15 % warm-up", "zero_one_adam", "freeze_epochs=0.15"),
        method("Async DiLoCo, H 50", "async_diloco", "period=50"),
        method("NoLoCo, H 50", "noloco", "period=50"),
        method("SparseLoCo, H 30", "sparseloco", "period=30"),
    )
    rest = set(groups()["algo"]) - {method.algorithm for method in special} - {"hybrid"}
    return (*special, *(method(title_of(name), name) for name in sorted(rest)))


def simplest(seconds: Sequence[float]) -> int:
    """Return the index of the first time that is within `SAVES` of the shortest.

    seconds: times of methods, simplest method first
    """
    least = min(seconds)
    return next(i for i, time in enumerate(seconds) if (1 - SAVES) * time <= least)


def title_of(algorithm: str) -> str:
    cls = class_of("algo", algorithm)
    title = getattr(cls, "title", algorithm)
    if cls is None or isinstance(title, str):
        return str(title)
    return str(cls().title)  # of the default settings


def chosen(names: str | None, periods: str | None) -> Iterator[Method]:
    """Yield data parallel and the methods of the algorithms in ``names``.

    names: separated by commas; None: all algorithms
    periods: numbers of steps H, separated by commas; None: the defaults
    """
    every = methods(None if periods is None else list(map(steps_in, periods.split(","))))
    algorithms = {method.algorithm for method in every}
    wanted = algorithms if names is None else set(names.split(","))
    for name in sorted(wanted - algorithms):
        raise ConfigError(
            "methods",
            f"'{name}' is not one of {', '.join(sorted(algorithms))}.{nearest(name, algorithms)}",
        )
    yield from (method for method in every if method is DATA_PARALLEL or method.algorithm in wanted)


def steps_in(text: str) -> int:
    """Return the number of steps H in ``text``."""
    if not text.isdecimal() or not int(text):
        raise ConfigError("periods", f"H is a number of steps, at least 1, not '{text}'.")
    return int(text)
