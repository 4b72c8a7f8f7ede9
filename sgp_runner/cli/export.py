"""``sgp-run export``: export the settings of a run or a study to another training loop."""

from __future__ import annotations

import argparse
import keyword
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgp_runner.cli.argparser import Parser, put
from sgp_runner.cli.export_texts import HOSTS, OPTIMIZERS, SCRIPT, TEST
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from sgp_runner.config.experiment import Experiment

EPILOG = """examples
  sgp-run export results/runs/NAME --to trainer averaging.py
  sgp-run export results/studies/NAME --to ddp averaging.py

FILE has the algorithm, its settings and the optimizer of the run, or of the
best arm of the study, and what a training loop imports from it. test_FILE
beside it trains 20 steps on two ranks, or on as many as the algorithm needs:
python -m pytest test_FILE"""


def main(argv: Sequence[str]) -> int:
    """Run the command with the arguments after its name and return the exit code."""
    parser = Parser(
        prog="sgp-run export",
        description="Write a file for using the method of a run or study in another training loop.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="RUN_OR_STUDY", help="its folder")
    parser.add_argument("--to", required=True, choices=HOSTS, help="the training loop")
    parser.add_argument("file", type=Path, metavar="FILE", help="the file to write, such as a.py")
    options = parser.parse_args(argv)
    file: Path = options.file
    test = file.with_name(f"test_{file.name}")
    check_files(file, test)
    experiment = experiment_in(options.folder)
    values = values_of(experiment, options.folder, options.to, file.stem)
    texts = {file: SCRIPT, test: TEST}
    try:
        for path, text in texts.items():
            path.write_text(filled(text, values), encoding="utf-8")
    except OSError as error:
        raise ConfigError("export", f"cannot write to {file.parent}: {error.strerror}.") from error
    put(f"{file}: {experiment.run.algo.title} for {HOSTS[options.to].title}. Check it with")
    put(f"  python -m pytest {test}")
    return 0


def check_files(file: Path, test: Path) -> None:
    """Raise ConfigError unless both files can be created and ``file`` can be imported."""
    if file.suffix != ".py" or not file.stem.isidentifier() or keyword.iskeyword(file.stem):
        raise ConfigError(
            "export", f"{file} cannot be imported: rename it, for example to averaging.py."
        )
    if not file.parent.is_dir():
        raise ConfigError("export", f"there is no folder {file.parent} for {file.name}: create it.")
    for path in (file, test):
        if path.exists():
            raise ConfigError("export", f"{path} exists: choose another name, or delete it.")


def experiment_in(folder: Path) -> Experiment:
    """Return the run in ``folder``, or the best arm of its study. Raises ConfigError."""
    from sgp_runner.config.experiment import load_experiment

    if (folder / "config.yaml").is_file():
        return load_experiment(folder / "config.yaml", None)
    check_study(folder)
    from sgp_runner.studies.study_file import study_of
    from sgp_runner.studies.study_record import read_versions

    study = study_of(read_versions(folder / "study.json")[-1]["content"], folder.name)
    import pandas as pd

    from sgp_runner.studies.arms import RunMaker

    try:
        best = pd.read_csv(folder / "table.csv", keep_default_na=False).iloc[0]
        arm = {arm.name: arm for arm in study.arms}[best["arm"]]
        settings = str(best["settings"]).split()
    except (OSError, ValueError, LookupError):  # pandas' errors are ValueErrors
        raise ConfigError(
            "export",
            f"{folder / 'table.csv'} lacks the arms of the study: make it again with "
            "sgp-run study FILE.",
        ) from None
    maker = RunMaker(study)
    return maker.experiment(maker.overrides(arm, settings))


def check_study(folder: Path) -> None:
    """Raise ConfigError, suggesting a folder, unless a finished study is in ``folder``."""
    roots = (Path("results/runs"), Path("results/studies"))
    if not folder.is_dir():
        what = f"there is no folder {folder}"
        near = [folder.parent] if folder.is_file() else [root / folder.name for root in roots]
    elif (folder / "study.json").is_file():
        if (folder / "table.csv").is_file():
            return
        raise ConfigError("export", f"the study in {folder} has no table.csv yet: finish it.")
    else:
        what, near = f"{folder} is not the folder of a run or a study", []
    meant = next((str(path) for path in near if path.is_dir()), "")
    names = meant or " or ".join(f"{root}/NAME" for root in roots)
    raise ConfigError("export", f"{what}: write {names}.")


def values_of(experiment: Experiment, folder: Path, host: str, module: str) -> Mapping[str, str]:
    """Return the values of the placeholders in the templates, by name. Raises ConfigError."""
    from sgp_runner.algorithms.slowmo import SlowMo

    run, algo = experiment.run, experiment.run.algo
    if algo.asynchronous or algo.servers:
        what = "is asynchronous" if algo.asynchronous else "has a server"
        raise ConfigError(
            "export", f"{algo.title} {what}, which a training loop does not support: use sgp-run."
        )
    optim = run.optim
    if optim.name not in OPTIMIZERS:
        raise ConfigError(
            "export",
            f"optim={optim.name} cannot be exported to torch.optim: repeat the run with optim=sgd, "
            "adam or adamw.",
        )
    scale = run.nodes * run.batch_size / optim.lr_reference_batch if optim.lr_reference_batch else 1
    fields = {**vars(optim), "lr": optim.lr * scale}
    if optim.name == "sgd":
        fields["nesterov"] = optim.nesterov and optim.momentum > 0
    config: Any = experiment.config
    settings = dict(config["algo"])
    name = settings.pop("name")
    if isinstance(algo, SlowMo):  # `Averager` has another name for this setting
        rules = {"keep": "local", "average": "mean", "reset": "reset"}
        if (rule := settings.pop("buffers")) in rules:
            settings["optimizer_state"] = rules[rule]
    clip = getattr(optim, "clip", None)
    return {
        "MODULE": module,
        "TITLE": algo.title,
        "SOURCE": folder.resolve().name,
        "LOOP": HOSTS[host].title,
        "USE": HOSTS[host].use,
        "NODES": str(run.nodes),
        "BATCH": str(run.batch_size),
        "SCHEDULE": config["optim"]["schedule"]["name"],
        "CLIP": "not clipped" if clip is None else f"clipped to a norm of {clip:g}",
        "ALGO": quoted(name),
        "SETTINGS": listed(settings),
        "IMPORTS": HOSTS[host].imports,
        "OPTIMIZER": OPTIMIZERS[optim.name].format(**fields),
        "FACTORY": HOSTS[host].factory,
        "TRAIN": HOSTS[host].train,
        "SIZE": str(smallest_size(experiment)),
    }


def smallest_size(experiment: Experiment) -> int:
    """Return the smallest number of ranks, at least 2, with which the algorithm works in a loop."""
    from torch import nn, optim

    from sgp_runner.core.optim.wrapped import ParameterVector, WrappedOptimizer

    run, model = experiment.run, nn.Linear(1, 1)
    kind = optim.SGD if run.optim.name == "sgd" else optim.AdamW
    local = WrappedOptimizer(kind(model.parameters(), lr=0.1), ParameterVector(model))
    run.algo.check(run.nodes, local)
    for size in range(2, run.nodes):
        try:
            run.algo.check(size, local)
        except ConfigError:
            continue
        return size
    return max(2, run.nodes)


def listed(settings: Mapping[str, Any], indent: str = "") -> str:
    """Return the text of a dictionary with a line for each setting."""
    inner, lines = f"{indent}    ", []
    for key, value in settings.items():
        text = listed(value, inner) if isinstance(value, Mapping) and value else quoted(value)
        lines.append(f"{inner}{quoted(key)}: {text},\n")
    return "{\n" + "".join(lines) + indent + "}"


def quoted(value: object) -> str:
    text = repr(value)
    return text if '"' in text else text.replace("'", '"')


def filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text
