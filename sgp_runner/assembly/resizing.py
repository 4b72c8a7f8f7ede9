"""Continuation of a saved run on a different number of nodes (``resume=resize``), as a new run.

The former run is left unchanged. The new run begins at its newest checkpoint, and saves and resumes
its own checkpoints afterwards. The stored configuration has the `Origin`, so its name differs from
that of a run with this number of nodes from the start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from sgp_runner.config.experiment import FORMAT, Experiment, Origin, digest_of, settings_of
from sgp_runner.config.run import Run
from sgp_runner.config.schema import RESIZED
from sgp_runner.core.mean_state import continued_step, mean_worker
from sgp_runner.core.problem import Problem
from sgp_runner.core.state import State
from sgp_runner.recording.checkpoint import Found, read, valid, verify
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.reading import read_yaml


def resize(experiment: Experiment) -> Experiment:
    """Return the run that continues from a checkpoint of the same run with different ``nodes``.

    Of several such runs, the one that has read the most samples continues; if there is none, one
    that differs in faults too, since faults belong to machines that may be gone. Raises ConfigError
    if no run can continue.
    """
    run = experiment.run
    if (reason := obstacle(run)) is not None:
        raise ConfigError(
            "resume", f"{reason}, so it cannot be resized: use resume=auto with the former nodes."
        )
    for keys in (("nodes",), ("nodes", "faults", "on_failure")):
        saved = sorted(saved_runs(experiment, keys), key=lambda run: run.steps * run.nodes)
        if former := [origin for origin in saved if origin.nodes != run.nodes]:
            break
    if not former and saved:
        raise ConfigError(
            "nodes",
            f"{saved[-1].run} was saved with {run.nodes} nodes too: use another number of nodes, "
            "or resume=auto.",
        )
    if not former:
        raise ConfigError(
            "resume",
            f"{run.results}/runs has no checkpoint of a run that differs only in nodes: "
            "checkpoint.every_steps saves one, or use resume=auto.",
        )
    experiment = experiment.with_values(resume="auto")
    return replace(experiment, config={**experiment.config, RESIZED: asdict(former[-1])})


def obstacle(run: Run) -> str | None:
    """Return why a run cannot continue on a different number of nodes; None if it can."""
    if run.algo.servers:
        return f"{run.algo.title} has a server"
    if run.algo.asynchronous:
        return f"{run.algo.title} is asynchronous"
    if not run.model.trains:
        return "a timing study has no model"
    if run.record:
        return "a recording (record=true) must cover the whole run"
    if run.network.clock == "wall" and run.gpus_per_node > 1:
        return "the state of a node is divided among its devices (gpus_per_node)"
    return None


def saved_runs(experiment: Experiment, keys: Collection[str]) -> Iterator[Origin]:
    """Yield the newest checkpoint of each run that differs in no settings but ``keys``."""
    for folder in sorted(Path(experiment.run.results, "runs").glob("*/checkpoints")):
        try:
            config = read_yaml(folder.parent / "config.yaml")
            there = settings_of(config)
            nodes = int(str(there["nodes"]))
        except (OSError, ValueError, AttributeError, KeyError):
            continue
        alike = digest_without(keys, there) == digest_without(keys, experiment.settings)
        if config.get("format") == FORMAT and alike:
            for path in [*valid(folder, digest_of(there))][:1]:
                steps = int(path.name.partition("-")[2])
                yield Origin(folder.parent.name, digest_of(there), steps, nodes)


def digest_without(keys: Collection[str], settings: Mapping[str, object]) -> str:
    """Return a hash of all settings except ``keys``."""
    return digest_of({key: settings[key] for key in settings if key not in {*keys, RESIZED}})


def read_all_ranks(checkpoint: Found, origin: Origin, device: str) -> State:
    """Return rank 0's state in a checkpoint of a real run, and the ``workers`` of all ranks.

    Raises UnusableCheckpoint for a damaged file.
    """
    states = []
    for rank in range(len(checkpoint.original_ranks)):
        verify(checkpoint.path, origin.digest, f"rank{rank}.pt")
        states.append(read(checkpoint.path / f"rank{rank}.pt", device))
    return states[0] | {"workers": [state["worker"] for state in states]}


def continued(workers: Sequence[State], run: Run, problem: Problem) -> tuple[State, float]:
    """Return the state from which all workers of ``run`` continue, and their epoch.

    workers: states of the former workers at the start of one step
    problem: divided among the nodes of ``run``

    Raises ConfigError if the algorithm defines no rule for its state.
    """
    nodes = len(workers)
    try:
        worker = mean_worker(workers, run.algo.title)
    except ValueError as error:
        raise ConfigError("resume", f"{error}: use resume=auto with the former nodes.") from error
    sent = round(sum(worker["num_bytes_sent"] for worker in workers) / nodes)
    before, after = (
        round(problem.subset(size, run.batch_size).sampler.steps_per_epoch)
        for size in (nodes, run.nodes)
    )
    step = continued_step(worker["taken"], (nodes, before), (run.nodes, after))
    # Messages of the same step that faster workers had sent are sent again.
    comm = {"mailbox": [], "collectives": 0}
    return {**worker, "comm": comm, "num_bytes_sent": sent}, step / after
