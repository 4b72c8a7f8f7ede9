"""``sgp-run calibrate [SETTINGS]``: measure the machines of a run and write a cluster profile.

The measurement uses the ranks, messages and gradients of a run with these settings (default:
``network=gloo``). It is started like any run, optionally by a launcher.
"""

from __future__ import annotations

import datetime
import platform
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from sgp_runner.assembly.execution import prepare, verify_memory
from sgp_runner.cli.argparser import put
from sgp_runner.cli.options import load
from sgp_runner.config.command_line import parse
from sgp_runner.config.experiment import Experiment, make_experiment
from sgp_runner.config.overrides import compose, configs
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.files import replace_file
from sgp_runner.utils.launchers import launched, launched_rank
from sgp_runner.utils.lock import locked
from sgp_runner.utils.units import counted

HELP = """usage: sgp-run calibrate [KEY=VALUE ...]

Measures messages, all-reduces and gradients with the ranks of a real run of these
settings, in less than two minutes, and writes a cluster profile for the simulator.

  sgp-run calibrate nodes=4 model=resnet8 name=here   on this machine: results/cluster/here.yaml
  srun --nodes 4 --ntasks 4 sgp-run calibrate network=gloo nodes=4 model=resnet20 name=ours
  sgp-run --config-dir results cluster=here nodes=4 model=resnet8 algo=osgp"""


def main(argv: Sequence[str]) -> int:
    """Run the command with the arguments after its name and return the exit code."""
    experiment = prepared(argv)
    if measure(experiment):
        path = conclude(experiment, ["sgp-run", "calibrate", *argv])
        put(f"{path}: simulate with sgp-run --config-dir {path.parent.parent} cluster={path.stem}")
    return 0


def prepared(argv: Sequence[str]) -> Experiment:
    """Create the experiment of the measurement; its files are in the folder ``calibration``."""
    overrides = load(argv).overrides
    with configs():
        settings = parse(overrides)
        names = {setting.name for setting in settings}
        ours = ["resume=never", "logger=jsonl", *([] if "network" in names else ["network=gloo"])]
        ours += [] if "name" in names else ["name=measured"]
        config = compose([*parse(ours), *settings])
    config["results"] = f"{config['results']}/calibration"
    network = config["network"]
    assert isinstance(network, dict)
    if network["name"] == "gloo" and "network.shared_memory" not in names:
        network["shared_memory"] = False  # a profile describes links
    experiment = make_experiment(config)
    run = experiment.run
    if not re.fullmatch(r"[A-Za-z]\w*", run.name or ""):
        raise ConfigError(
            "name",
            f"'{run.name}' is not a valid name for a cluster: "
            "use a letter, then letters, digits and _.",
        )
    if run.nodes < 2:
        raise ConfigError("nodes", "a single node sends no messages: use nodes=2 or more.")
    if run.algo.servers:
        raise ConfigError(
            "algo",
            f"{run.algo.title} has a server, which a calibration cannot use: "
            "leave the algorithm out.",
        )
    if not run.model.trains:
        raise ConfigError(
            "model",
            f"{run.model.name} has no computation to time: choose the model that you train.",
        )
    return experiment


def measure(
    experiment: Experiment,
    program: str = "probe_process",
    adapt: Callable[[Experiment], Experiment] | None = None,
) -> bool:
    """Measure with all ranks; return whether this is rank 0, which writes the results.

    program: module of `sgp_runner.calibration` that each rank runs
    adapt: adds the measurements to the experiment; None: adds those of a calibration
    """
    from sgp_runner.assembly.start import execute
    from sgp_runner.calibration.probe import measuring

    run, first = experiment.run, launched_rank() in (None, 0)
    if first:
        verify_memory(run)
    with locked(experiment.directory) if first else nullcontext():
        if first:
            prepare(experiment)
            what = f"{run.network.name} with {counted(run.nodes, 'node')} and {run.model.name}"
            put(f"measuring {what}; this takes up to two minutes")
        if run.network.name in ("gloo", "nccl") and launched() is None:
            from sgp_runner.assembly.real.launch import launch

            launch(experiment, ("-m", f"sgp_runner.calibration.{program}"))
        else:
            execute((adapt or measuring)(experiment))
    return first


def conclude(experiment: Experiment, command: Sequence[str]) -> Path:
    """Write the cluster profile and return its path."""
    from sgp_runner.calibration.probe import FILE, Measured
    from sgp_runner.calibration.profile import CalibratedSetting, profile

    run = experiment.run
    measurements = Measured.from_json((experiment.directory / FILE).read_text(encoding="utf-8"))
    path = Path(run.results).parent / "cluster" / f"{run.name}.yaml"
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes")
    imitated = getattr(run.network, "slowed", False)
    setting = CalibratedSetting(
        path.stem,
        run.model.name,
        run.batch_size,
        "eager" if imitated else "rendezvous",
        " ".join(command),
        platform.platform(),
        when,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, profile(measurements, setting))
    return path
