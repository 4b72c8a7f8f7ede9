"""The file of a study: YAML with the settings of ``sgp-run`` and a few keys of its own.

``question``, ``task``, ``arms``, ``baseline``, ``primary``, ``tune``, ``seeds``, ``matters``,
``clusters``, ``measures``, ``amended``, ``published`` and ``transfer`` belong to the study. Every
other key is a setting that all arms share.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgp_runner.config.choices import CONFIGS
from sgp_runner.studies.arm_settings import Arm, arms_in, one_of, unquoted
from sgp_runner.studies.measures import AMOUNTS, Measure, measure_of
from sgp_runner.studies.study_tasks import TASKS
from sgp_runner.utils.errors import ConfigError, nearest
from sgp_runner.utils.reading import Unbounded, read_yaml

LADDER = "ladder"
RULES = ("halving", "tpe")  # of a search
EXAMPLES = {"halving": LADDER, "tpe": "tag(log,interval(0.01,1))"}  # of what a key has
RATE = "optim.lr"
OWN = (
    *("question", "task", "arms", "baseline", "primary", "tune", "seeds", "matters"),
    *("clusters", "measures", "amended", "published", "transfer"),
)
NOT_SHARED = {  # settings that a study makes itself -> what to write instead
    "seed": "seeds",
    "name": "another name of the file",
    "resume": "nothing: finished runs are not repeated",
    "experiment": "task, or the settings themselves",
}
DEFAULT_SEEDS = 5
SEARCH_SEEDS, PILOT_SEEDS = range(101, 109), range(201, 205)  # of which none decides
SHIPPED = CONFIGS / "study"  # studies that are part of the package
NAME = re.compile(r"[\w.+-]{1,80}")


@dataclass(frozen=True)
class ArmCluster:
    """The machines on which all arms are timed, as overrides; none: those in the settings."""

    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tuning:
    """The settings searched for each arm, and the budget of a search.

    ladder: whether ``optim.lr`` is searched on a ladder
    first: the first values of the ladder; empty: half and double the arm's own value
    lists: key -> its values; with the rule ``tpe`` also one range, such as ``interval(0.01,1)``
    budget: maximum number of runs of a search; the same for all arms
    by: the cost to reach a target that searches minimise; None: the loss
    rule: halving | tpe
    earlier: whether the study was recorded with the rule of `tuning.settle_earlier`
    """

    ladder: bool = False
    first: tuple[float, ...] = ()
    lists: Mapping[str, tuple[str, ...]] | None = None
    budget: int = 0
    by: Measure | None = None
    rule: str = "halving"
    earlier: bool = False


@dataclass(frozen=True)
class StudyFile:
    """A study as specified before it is run.

    name: name of its folder in ``results``/studies
    question: the question, as a sentence
    common: settings of all arms, as overrides
    baseline: the arm that the others are compared with
    primary: the arm under study; its comparison is tested alone. A single arm is both.
    seeds: seeds of the runs that decide; empty: as many as ``matters`` needs
    limits: the minimum and maximum number of seeds, if ``matters`` determines it; None: no limits
    matters: the smallest difference of the first measure that matters, in its unit; None: unknown
    clusters: the machines; the primary comparison uses the first
    measures: the compared quantities; the first one decides
    amended: a sentence about a change after the first run; empty: none
    results: folder of all results
    content: the contents of the file
    """

    name: str
    question: str
    common: tuple[str, ...]
    arms: tuple[Arm, ...]
    baseline: str
    primary: str
    tune: Tuning
    seeds: tuple[int, ...]
    limits: tuple[int, int] | None
    matters: float | None
    clusters: tuple[ArmCluster, ...]
    measures: tuple[Measure, ...]
    amended: str
    results: Path
    content: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        return self.results / "studies" / self.name

    @property
    def transferred(self) -> dict[str, str]:
        """The arm with published settings of each searched arm, if it has one."""
        return {arm.of: arm.name for arm in self.arms if arm.of}

    @property
    def digest(self) -> str:
        """A hash of the file without ``amended``."""
        content = {key: value for key, value in self.content.items() if key != "amended"}
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)


def read_study(path: Path) -> StudyFile:
    """Read and check the file of a study. Raises ConfigError.

    A path without a suffix can be a prefix of a name in `SHIPPED`, such as ``claims/02``.
    """
    path = located(path)
    try:
        tree = read_yaml(path)
    except FileNotFoundError:
        raise ConfigError(
            "study", f"there is no file '{path}'; sgp-run study new {path} ... writes one."
        ) from None
    except (OSError, ValueError, Unbounded) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise ConfigError("study", f"{path} cannot be read: {reason}.") from None
    study = study_of(tree, path.stem)
    if str(study.measures[0]) == "accuracy" and isinstance(
        value := tree.get("matters"), int | float
    ):
        raise ConfigError("matters", f"{value:g} may be a share or points: write {value:g} points.")
    return study


def located(path: Path) -> Path:
    """Return the only file of `SHIPPED` whose name begins with ``path``, or ``path`` itself."""
    if path.suffix or path.is_absolute() or path.exists():
        return path
    matches = [*SHIPPED.glob(f"{path}.yaml"), *SHIPPED.glob(f"{path}-*.yaml")]
    return matches[0] if len(matches) == 1 else path


def study_of(tree: object, name: str) -> StudyFile:
    """Return the study with the contents ``tree``. Raises ConfigError if they are invalid."""
    if not isinstance(tree, Mapping) or not all(isinstance(key, str) for key in tree):
        raise ConfigError("study", f"{name} has no keys such as question: and arms:.")
    if not names_folder(name):
        raise ConfigError("study", f"'{name}' cannot name a folder: use letters, digits and - _ .")
    for key, instead in NOT_SHARED.items():
        if key in tree:
            raise ConfigError(key, f"a study sets it for each run; write {instead}.")
    arms = arms_in(tree.get("arms"))
    names = [arm.name for arm in arms if not arm.of]
    if len(names) < len(arms) and not tree.get("transfer"):
        raise ConfigError(
            "transfer", "write the rule by which published settings were moved to this size."
        )
    baseline = one_of(names, "baseline", tree.get("baseline", names[-1]))
    primary = one_of(names, "primary", tree.get("primary", names[0]))
    alone = len(arms) == 1
    if baseline == primary and not alone:
        raise ConfigError("primary", f"'{primary}' is also the baseline; choose another arm.")
    if alone and "matters" in tree:
        raise ConfigError("matters", "a study of one arm compares nothing; leave it out.")
    limits = limits_in(tree.get("seeds"), tree.get("matters") is not None)
    seeds = () if limits else seeds_in(tree.get("seeds"), tree.get("matters") is not None)
    measures = tuple(map(measure_of, several("measures", tree.get("measures", ["loss"]))))
    question = f"How good is {primary}?" if alone else f"Is {primary} better than {baseline}?"
    return StudyFile(
        name,
        str(tree.get("question") or question),
        (*task_overrides(tree.get("task")), *shared_overrides(tree)),
        arms,
        baseline,
        primary,
        tuning_in(tree.get("tune") or {}, tree.get("task"), measures[0]),
        seeds,
        limits,
        matters_in(tree.get("matters"), measures[0]),
        tuple(map(cluster_in, several("clusters", tree.get("clusters", [""])))),
        measures,
        str(tree.get("amended") or ""),
        Path(str(tree.get("results", "results"))),
        dict(tree),
    )


def names_folder(name: str) -> bool:
    """Return whether a study's name is a valid folder name, unlike ``..``."""
    return NAME.fullmatch(name) is not None and name.strip(".") != ""


def seeds_in(value: object, may_lack: bool) -> tuple[int, ...]:
    """Return the seeds, given a number of seeds or a list of seeds."""
    if value is None:
        return () if may_lack else tuple(range(1, DEFAULT_SEEDS + 1))
    seeds = tuple(value) if isinstance(value, list) else value
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        seeds = tuple(range(1, min(seeds, SEARCH_SEEDS[0]) + 1))
    if not isinstance(seeds, tuple) or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise ConfigError("seeds", f"'{value}' is not a number of seeds: write seeds: 5.")
    if len(set(seeds)) < 2 or len(set(seeds)) < len(seeds):
        raise ConfigError("seeds", "a paired test needs two different seeds or more.")
    if used := {*SEARCH_SEEDS, *PILOT_SEEDS} & {*seeds}:
        raise ConfigError(
            "seeds",
            f"{min(used)} is reserved: searches use the seeds 101 to 108, and pilots 201 to "
            f"204; write at most {SEARCH_SEEDS[0] - 1} seeds, or a list of others.",
        )
    return seeds


def limits_in(value: object, matters: bool) -> tuple[int, int] | None:
    """Return the numbers in a text such as ``6 to 16``; None for any other value."""
    match = re.fullmatch(r"(\d{1,2}) to (\d{1,2})", str(value))
    if match is None:
        return None
    low, high = int(match[1]), int(match[2])
    if not 2 <= low <= high:
        raise ConfigError(
            "seeds",
            f"'{value}' must go from at least 2 to a larger number, such as 6 to 16.",
        )
    if not matters:
        raise ConfigError(
            "seeds",
            f"'{value}' needs matters:, which determines the number of seeds; write "
            "seeds: 5 for a number.",
        )
    return low, high


def first_seeds(count: int) -> tuple[int, ...]:
    """Return the first ``count`` seeds from 1 that neither searches nor pilots use."""
    numbers = (seed for seed in itertools.count(1) if seed not in (*SEARCH_SEEDS, *PILOT_SEEDS))
    return tuple(itertools.islice(numbers, count))


def matters_in(value: object, decides: Measure) -> float | None:
    """Parse a difference ``value`` of the first measure, in seconds, bytes, nats or shares."""
    if value is None:
        return None
    number = decides.amount(str(value))
    if number is None or not 0 < number < float("inf"):
        example = AMOUNTS[decides.cost or decides.quality].example
        raise ConfigError(
            "matters", f"'{value}' is not a positive difference of {decides}: write {example}."
        )
    return number


def several(key: str, value: object) -> list[str]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ConfigError(key, "the list is empty: leave the key out, or give a value.")
    return [str(item) for item in values]


def cluster_in(text: str) -> ArmCluster:
    """Return the overrides of ``sgp_ethernet bandwidth=1Gbit/s``."""
    overrides = []
    for word in unquoted("clusters", text):
        key = word.partition("=")[0]
        if "=" not in word:
            overrides.append(f"cluster={word}")
        elif key.partition(".")[0] == "cluster":
            overrides.append(word)
        else:
            overrides.append(f"cluster.{word}")
    return ArmCluster(tuple(overrides))


def tuning_in(value: object, task: object, decides: Measure) -> Tuning:
    """Return the searched settings: each key has ``ladder``, a list of values or a range.

    decides: the first measure, which searches minimise if it has a target
    """
    if not isinstance(value, Mapping):
        raise ConfigError("tune", "write settings below it, such as optim.lr: ladder.")
    lists: dict[str, tuple[str, ...]] = {}
    rule = str(value.get("rule", RULES[0]))
    if rule not in RULES:
        raise ConfigError("tune.rule", f"'{rule}' is not one of {', '.join(RULES)}.")
    ladder, first = False, TASKS[str(task)].rates if str(task) in TASKS else ()
    for key, values in value.items():
        if key in ("budget", "rule"):
            continue
        if rule == "tpe" and isinstance(values, str) and "interval(" in values:
            lists[str(key)] = (values,)
        elif isinstance(values, str) and values.startswith(LADDER) and rule != "tpe":
            if key != RATE:
                raise ConfigError(f"tune.{key}", f"only {RATE} has a ladder; write its values.")
            ladder, first = True, ladder_in(values, first)
        elif isinstance(values, list) and values:
            lists[str(key)] = tuple(word(value) for value in values)
        else:
            raise ConfigError(
                f"tune.{key}",
                f"'{values}' is not a search: write a list of values, or {EXAMPLES[rule]}.",
            )
    if not ladder and not lists:
        return Tuning()
    budget = value.get("budget")
    if type(budget) is not int or budget < 1:
        raise ConfigError("tune.budget", "give the runs of an arm's search, such as budget: 8.")
    by = decides if decides.target is not None else None
    return Tuning(ladder, first if ladder else (), lists, budget, by, rule)


def ladder_in(text: str, first: tuple[float, ...]) -> tuple[float, ...]:
    """Return the values in a text such as ``ladder(0.05, 0.2)``; ``first`` if there are none."""
    if text == LADDER:
        return first
    try:
        match = re.fullmatch(rf"{LADDER}\((.+),(.+)\)", text)
        low, high = sorted(float(part) for part in match.groups()) if match else (0.0, 0.0)
    except ValueError:
        low = high = 0.0
    doubled = [low * 2.0**power for power in range(1, 11)]
    if not low > 0 or high not in doubled:
        raise ConfigError(
            f"tune.{RATE}",
            f"'{text}' is not a ladder: write {LADDER}, or two values whose ratio is 2, 4, 8 ..., "
            f"such as {LADDER}(0.05, 0.2).",
        )
    return low, high


def task_overrides(task: object) -> tuple[str, ...]:
    if task is None:
        return ()
    if str(task) not in TASKS:
        hint = nearest(str(task), TASKS)
        raise ConfigError("task", f"'{task}' is not one of {', '.join(TASKS)}.{hint}")
    return TASKS[str(task)].all_overrides


def shared_overrides(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings of all arms, as overrides."""
    for key, value in tree.items():
        if key not in (*OWN, "results"):
            yield from overrides_in(key, value)


def overrides_in(key: str, value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from overrides_in(f"{key}.{name}", inner)
    else:
        yield f"{key}={word(value)}"


def word(value: object) -> str:
    """Return a YAML value as written on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(word, value))}]"
    return str(value)
