"""Runs and sweeps from Python, on the same code path as the command."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, TypeAlias

from torch import Tensor, nn

from sgp_runner.api.arguments import literal, overrides_of, split
from sgp_runner.api.isolation import alone, saving_on_interrupt, torch_as_usual
from sgp_runner.api.results import Result, Results
from sgp_runner.assembly.execution import run_experiment
from sgp_runner.cli.sweep import announce, check_number, combinations, describe_settings
from sgp_runner.config import choices
from sgp_runner.config.command_line import Setting, parse, refuse_several
from sgp_runner.config.experiment import Experiment, make_experiment
from sgp_runner.config.overrides import compose, configs
from sgp_runner.config.plugins.from_python import IN_MEMORY, InMemory
from sgp_runner.config.plugins.loading import named
from sgp_runner.utils.errors import ConfigError, Stopped
from sgp_runner.utils.memory import collecting_garbage
from sgp_runner.utils.messages import logger

#: The name of a choice, a file (``./mine.py``), or a class that follows the plug-in contract, or an
#: instance of such a class.
Choice: TypeAlias = "str | type[Any] | object"
#: A choice, a module, or a function without arguments that returns a module.
Model: TypeAlias = "Choice | nn.Module | Callable[[], nn.Module]"
#: A choice, or a training and a validation set.
Data: TypeAlias = "Choice | tuple[Any, Any]"
Loss: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"


@dataclass(frozen=True)
class Value:
    """A value of a keyword argument: its title in a sweep, and the overrides that set it."""

    title: str
    overrides: Sequence[str]


def run(
    *overrides: str,
    algo: Choice | None = None,
    model: Model | None = None,
    data: Data | None = None,
    loss: Loss | None = None,
    data_keys: Sequence[str] | None = None,
    verbose: bool = True,
    **settings: object,
) -> Result:
    """Run one experiment, or return its result if it has finished before.

    overrides: settings as on the command line, ``"algo=osgp nodes=8"``
    algo: name, file, class or instance
    model: name, file, class or instance; or a `torch.nn.Module`, whose parameters initialise every
        node; or a function without arguments that creates a module from the run's seed
    data: name, file, class or instance; or a pair (train, valid) of torch data sets, or of pairs
        (inputs, targets) of tensors or arrays
    loss: if ``data`` is a pair: ``loss(outputs, targets)`` returns the mean loss of a batch;
        default: cross-entropy if a target is a single integer, else half the squared distance
    data_keys: if the samples of ``data`` are dictionaries: the keys of the inputs and, last, of the
        target; default: the key of the target is called label, target or y, and there is one other
    verbose: whether to show information and progress; warnings are always shown
    settings: Python values of other keys; a dictionary sets several keys: ``optim={"lr": 0.1}``

    Raises ConfigError, before anything is written, for invalid settings; Diverged; Stopped or
    KeyboardInterrupt after an interrupt, once the run is saved; and any other error of the run. The
    same call resumes an interrupted run.
    """
    started = time.monotonic()
    if loss is not None and data is None:
        raise needless_loss()
    with alone(verbose), torch_as_usual(), keeping(loss, data_keys) as bring:
        values = [
            bring(key, value) for key, value in arguments_of(algo, model, data, settings).items()
        ]
        extra = (override for value in values for override in value.overrides)
        asked = named([*split(overrides), *extra])
        with configs():
            parsed = parse(asked)
            refuse_several(parsed, ": call sgp_runner.sweep.")
            experiment = called("run", parsed)
        return execute(dataclasses.replace(experiment, started=started))


def sweep(
    *overrides: str,
    algo: Choice | Sequence[Choice] | None = None,
    model: Model | Sequence[Model] | None = None,
    data: Data | Sequence[Data] | None = None,
    loss: Loss | None = None,
    data_keys: Sequence[str] | None = None,
    verbose: bool = True,
    **settings: object,
) -> Results:
    """Run every combination of several values, one after another, and return the results.

    The arguments are the same as for `run`. Pass several values of a key as a list, tuple or range,
    or in an override such as ``"algo=sgp,osgp"``. For a key whose value is a list, such as
    ``model.hidden``, pass a list of lists. Pass several data sets as a list of pairs.

    A failed run does not stop the sweep; its error is in `Results.failed`. Raises ConfigError
    before the first run if a combination is invalid.
    """
    if loss is not None and data is None:
        raise needless_loss()
    with alone(verbose), torch_as_usual(), keeping(loss, data_keys) as bring:
        asked = {
            key: values_in(key, value)
            for key, value in arguments_of(algo, model, data, settings).items()
        }
        check_number({key: len(values) for key, values in asked.items()})
        per_key = [[bring(key, item) for item in values] for key, values in asked.items()]
        jobs = plan(split(overrides), per_key)
        failed: dict[str, Exception] = {}
        folders: list[Path] = []
        for number, (title, experiment) in enumerate(jobs, start=1):
            logger.info(f"\n[{number}/{len(jobs)}] {title}")
            try:
                done = execute(dataclasses.replace(experiment, started=time.monotonic()))
                folders.append(done.folder)
            except Stopped:
                raise
            except Exception as error:
                logger.error(str(error))
                failed[title] = error
        return Results(folders, failed)


def arguments_of(
    algo: object, model: object, data: object, rest: Mapping[str, object]
) -> dict[str, Any]:
    """Return ``rest`` and the choices that are not None."""
    choices = {"algo": algo, "model": model, "data": data}
    return {key: value for key, value in choices.items() if value is not None} | dict(rest)


@contextmanager
def keeping(
    loss: Loss | None, data_keys: Sequence[str] | None
) -> Iterator[Callable[[str, Any], Value]]:
    """Yield a function that converts keywords to `Value`; keep objects in memory until exit."""
    with ExitStack() as stack:

        def bring(key: str, value: Any) -> Value:
            try:
                return brought(key, value)
            except RecursionError:
                raise ConfigError(
                    key, "the value contains itself or is nested too deeply."
                ) from None

        def brought(key: str, value: Any) -> Value:
            title = title_of(key, value)
            in_memory = key in ("model", "data") and not is_choice(value)
            if key == "data" and loss is not None and not in_memory:
                raise needless_loss()
            if in_memory and key == "model":
                from sgp_runner.models import in_memory_model as models

                value = stack.enter_context(models.hold(value))
            elif in_memory:
                from sgp_runner.data import in_memory_data as sets

                value = stack.enter_context(sets.hold(value, loss, data_keys))
            if in_memory:
                choices.extend(InMemory(IN_MEMORY, type(value), None), [(key, IN_MEMORY)])
            return Value(title, list(overrides_of(key, value)))

        yield bring


def needless_loss() -> ConfigError:
    return ConfigError(
        "loss", "applies only to data=(train, valid); other data sets have their own loss."
    )


def is_choice(value: object) -> bool:
    """Return whether ``value`` is a choice or its name, not a model or data in memory."""
    if isinstance(value, str | PurePath | Mapping) or value is None:
        return True
    cls = value if isinstance(value, type) else type(value)
    return dataclasses.is_dataclass(cls) or hasattr(cls, "build") or hasattr(cls, "load")


def title_of(key: str, value: Any) -> str:
    """Return the title of a value in a sweep, such as ``algo=sgp``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{key}={value}"
    try:
        return f"{key}={literal(value, choice=True)}"
    except ConfigError:
        return f"{key}={getattr(value, '__name__', type(value).__name__)}"


def values_in(key: str, value: Any) -> Sequence[Any]:
    """Return the values of a keyword of a sweep; a tuple for ``data`` is one value."""
    several = list if key == "data" else list | tuple | range
    if not isinstance(value, several):
        return [value]
    if not value:
        raise ConfigError(key, "has no values to sweep over.")
    return value


def plan(
    overrides: Sequence[str], per_key: Sequence[Sequence[Value]]
) -> list[tuple[str, Experiment]]:
    """Return the title and the experiment of each combination."""
    jobs: list[tuple[str, Experiment]] = []
    for chosen in itertools.product(*per_key):
        several = [value.title for value, values in zip(chosen, per_key, strict=True) if values[1:]]
        asked = named([*overrides, *[override for value in chosen for override in value.overrides]])
        with configs():
            settings = parse(asked)
            swept = {setting.name for setting in settings if setting.swept}
            combined = combinations(settings)
            if not jobs:
                runs = len(combined) * math.prod(map(len, per_key))
                check_number({"settings": runs})
                announce(runs)
            for combination in map(parse, combined):
                title = " ".join(filter(None, [describe_settings(combination, swept), *several]))
                try:
                    jobs.append((title, called("sweep", combination)))
                except ConfigError as error:
                    where = f" ({title})" if title else ""
                    raise ConfigError(error.key, f"{error.sentence}{where}") from error
    return jobs


def called(function: str, settings: Sequence[Setting]) -> Experiment:
    """Return the experiment of ``settings``, with the call of ``function`` as its command."""
    command = [f"sgp_runner.{function}", *(setting.typed for setting in settings)]
    return dataclasses.replace(make_experiment(compose(settings)), command=command)


def execute(experiment: Experiment) -> Result:
    with saving_on_interrupt(), collecting_garbage():
        summary = run_experiment(experiment)
    assert summary is not None  # no launcher has started this process
    return Result(Path(str(summary["run_dir"])).resolve(), summary)
