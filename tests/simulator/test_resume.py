"""A simulated run that is killed at any event, and started again as often as it takes, ends as if
nothing had happened.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import torch
from helpers.commands import Command
from helpers.experiments import distance, instrumented, make_experiment

from sgp_runner.assembly.start import execute
from sgp_runner.cli.main import main
from sgp_runner.config.experiment import Experiment
from sgp_runner.core.scheduler import VirtualClock
from sgp_runner.recording.checkpoint import VERSION, saved_steps
from sgp_runner.utils.files import checksum

SETTINGS = ("nodes=4", "batch_size=32", "epochs=2", "log_every=3", "checkpoint.every_minutes=null")
RANDOM = ("cluster.compute_time=log_normal", "cluster.compute_time.cv=0.5")
SLOW_NETWORK = ("cluster.bandwidth=20000000", "cluster.latency_seconds=0.01")
EACH = "{int8: 5us, top_k: 5us, low_rank: 5us, quantize8: 5us}"
CODING = (f"cluster.codecs.encode_seconds={EACH}", f"cluster.codecs.decode_seconds={EACH}")
BESIDE = "cluster.codecs.overlap=true"
VARIANTS = {
    "ar_sgd": ("cluster.collectives.overlap=0.5",),
    "ar_sgd, parameters": ("algo.average=parameters", "optim=adam"),
    "d_psgd": (),
    "d_psgd, adapting first": ("algo.order=adapt_then_combine", "algo.topology=torus"),
    "ad_psgd": (
        *("faults=slow_node", "faults.churn_per_hour=3600", "faults.absence_seconds=200ms"),
        "cluster.links.protocol=rendezvous",
    ),
    "a2cid2": ("algo.averages_per_gradient=1.5",),
    "ad_psgd, two averages": ("algo.averages_per_gradient=2", "algo.topology=ring"),
    "sgp": ("algo.topology.peers=2",),
    "osgp": ("algo.tau=2",),
    "osgp, released, between regions": (
        *("algo.layout=released", "algo.topology=complete"),
        "cluster.links.regions=[{nodes: 1, bandwidth_up: 3Mbit/s, bandwidth_down: 9Mbit/s, "
        "latency_seconds: 20ms}, {nodes: 3, bandwidth_up: 2Mbit/s, bandwidth_down: 4Mbit/s, "
        "latency_seconds: 30ms}]",
    ),
    "slowmo": ("algo.tau=5", "algo.base=osgp"),
    "slowmo, own averages": ("algo.tau=3", "algo.exact_average=false", "algo.buffers=average"),
    "gap_aware": (),
    "osgp, ranks sharing cores": (
        *(
            "cluster.hosts.cores_per_host=1",
            "cluster.hosts.ranks_per_host=2",
            "cluster.links.protocol=rendezvous",
            "cluster.collectives.overlap=0",
        ),
        *(
            "cluster.hosts.passing_seconds_per_byte=1e-6",
            "cluster.hosts.mixing_seconds_per_byte=1e-6",
        ),
    ),
    "ar_sgd, ranks sharing cores": (
        *(
            "cluster.hosts.cores_per_host=1",
            "cluster.hosts.ranks_per_host=2",
            "cluster.collectives.overlap=0.3",
        ),
        "cluster.hosts.passing_seconds_per_byte=1e-6",
    ),
    "gap_aware, ranks sharing cores": (
        *("cluster.hosts.cores_per_host=2", "cluster.hosts.serving_seconds_per_byte=1e-6"),
        *("cluster.hosts.passing_seconds_per_byte=1e-6", "faults=slow_node"),
    ),
    "gap_aware, dana": (
        "algo.momentum=dana",
        "optim.nesterov=false",
        "cluster.hosts.serving_seconds_per_byte=1e-6",
    ),
    "async_diloco": ("algo.period=3", "algo.grace=0.2", "algo.speeds=[4,2,2,1]"),
    "async_diloco, at once": ("algo.period=2", "algo.delay=2", "algo.c=0.3", "optim=adam"),
    "halos": (
        *("algo.regions=2", "algo.period=2", "algo.arrivals=2", "algo.delay=2", "algo.lr=0.5"),
    ),
    "pipe_sgd": ("algo.depth=4",),
    "pipe_sgd, compressed": ("algo.depth=3", "algo.compression=quantize8"),
    "pipe_sgd, coded beside": ("algo.depth=3", "algo.compression=quantize8", *CODING, BESIDE),
    "pipe_sgd, coded in turn": ("algo.depth=2", "algo.compression=quantize8", *CODING),
    "local_sgd": ("algo.tau=4",),
    "ps_sgd": (),
    "ar_sgd, coded": ("algo.codec=top_k_2bit", "algo.codec.k=9", *CODING),
    "diloco": ("algo.period=5",),
    "diloco, eager": ("algo.period=3", "algo.overlap=eager"),
    "streaming_diloco, coded": (
        "algo.period=4",
        "algo.delay=3",
        "algo.codec=int8",
        *CODING,
        BESIDE,
    ),
    "noloco": ("algo.period=3",),
    "sparseloco": ("algo.period=4", "algo.codec.k=9"),
    "demo": ("algo.k=3",),
    "powersgd": ("algo.start=2", *CODING),
    "powersgd, ranks sharing cores": (*CODING, "cluster.hosts.cores_per_host=1"),
    "acp_sgd": ("algo.start=1",),
    "des_loc": ("algo.period=2", "algo.period_u=3", "algo.period_v=4", "optim=adam"),
    "rennala": ("algo.batch=3",),
    "ringleader": (),
    "ringmaster": ("algo.limit=2",),
    "ringmaster, stop": ("algo.limit=2", "algo.stop=true"),
    "rennala, ranks sharing cores": (
        *("cluster.hosts.cores_per_host=2", "cluster.hosts.serving_seconds_per_byte=1e-6"),
        *("cluster.hosts.passing_seconds_per_byte=1e-6", "faults=slow_node"),
    ),
    "relay_sgd": (),
    "swarm_sgd": ("algo.period=3",),
    "swarm_sgd, blocking": ("algo.blocking=true", "algo.steps=geometric"),
    "onebit_adam": ("algo.warmup_epochs=0.2",),
    "zero_one_adam": (
        *("algo.freeze_epochs=0.3", "algo.kappa=1", "algo.doubling=2", "algo.codec=sign_l2"),
    ),
    "ef_sign": (),
    "acco": ("optim=adam",),
    "accum_adam": ("algo.accumulate=3",),
    "choco_sgd, released": ("algo.layout=released",),
    "choco_sgd, coded beside": ("algo.layout=released", "algo.codec=int8", *CODING, BESIDE),
    "qg_dsgdm": (),
    "d_squared": (),
    "gradient_tracking": (),
    "gossip_pga": ("algo.period=3",),
    "hybrid": ("algo.first=osgp", "algo.then=slowmo", "algo.then.tau=4", "algo.switch_epoch=0.7"),
}


class Killed(BaseException):
    """As sudden as SIGKILL for everything that has not reached the disk."""


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many events the simulator may still run; Killed after that."""
    left = [10**9]
    advance = VirtualClock.advance

    def counted(clock: VirtualClock) -> bool:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return advance(clock)

    monkeypatch.setattr(VirtualClock, "advance", counted)
    yield left


def records(experiment: Experiment) -> list[dict[str, object]]:
    """What was recorded, byte for byte but for the real time in the summary."""
    lines = (experiment.directory / "metrics.jsonl").read_text().splitlines()
    parsed = [json.loads(line) for line in lines]
    for record in parsed:
        record.pop("real_s", None)
        record.pop("run_dir", None)
    return parsed


def finish(
    experiment: Experiment, events: list[int], random: Random, most: int, least: int = 1
) -> int:
    """Start the run until it ends by itself; how often it was killed.

    It is killed after between ``least`` and ``most`` events of each start.
    """
    for kills in range(1000):
        events[0] = random.randint(least, most)
        try:
            assert execute(instrumented(experiment)) is not None
            return kills
        except Killed:
            continue
    raise AssertionError("it is always killed before its next checkpoint")


def whole_and_interrupted(
    tmp_path: Path, events: list[int], seed: int, *settings: str, often: bool = False
) -> None:
    """Compare a run that is killed two or three times, or at any event if ``often``."""
    random = Random(seed)
    whole = make_experiment(tmp_path / "whole", *SETTINGS, *settings, "checkpoint.every_steps=null")
    execute(instrumented(whole))
    needed = 10**9 - events[0]
    every = random.randint(1, 4)
    cut = make_experiment(tmp_path / "cut", *SETTINGS, *settings, f"checkpoint.every_steps={every}")
    assert finish(cut, events, random, needed // 2, 1 if often else needed // 3) > 0
    assert distance(whole, cut) == 0
    assert records(whole) == records(cut)


MEASURED = {"observer.real_s"}


def leaves(state: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Yield every field of a saved state by its dotted key, a tensor as its type and numbers."""
    if isinstance(state, dict):
        yield key, list(state)
        for name, value in state.items():
            yield from leaves(value, f"{key}.{name}".lstrip("."))
    elif isinstance(state, list | tuple):
        yield key, (type(state), len(state))
        for number, value in enumerate(state):
            yield from leaves(value, f"{key}[{number}]")
    elif isinstance(state, torch.Tensor):
        yield key, (state.dtype, str(state.tolist()))
    elif key not in MEASURED:
        yield key, repr(state)  # equal for NaN too


def checkpoints(experiment: Experiment) -> dict[str, object]:
    """Return all fields of all checkpoints in a run's folder but measured times."""
    found: dict[str, object] = {}
    for path in sorted(experiment.checkpoints.glob("step-*/*")):
        place = path.relative_to(experiment.checkpoints)
        if path.suffix == ".pt":
            state = torch.load(path, weights_only=True)
            found |= {f"{place} {key}": value for key, value in leaves(state)}
        else:
            found[str(place)] = json.loads(path.read_text())["longer"]
    return found


def compare_checkpoints(tmp_path: Path, events: list[int], seed: int, *settings: str) -> None:
    random = Random(seed)
    overrides = [*SETTINGS, *settings, "checkpoint.keep=1000", "checkpoint.keep_last=true"]
    overrides.append(f"checkpoint.every_steps={random.choice(['1', '2', '3', '7', 'null'])}")
    whole, cut = (make_experiment(tmp_path / name, *overrides) for name in ("whole", "cut"))
    execute(whole)
    # Most of the run, as there may be one checkpoint, and later steps may have more events.
    assert finish(cut, events, random, max(2, (10**9 - events[0]) * 9 // 10)) > 0
    saved = checkpoints(whole)
    assert saved and checkpoints(cut) == saved


@pytest.mark.parametrize("variant", ["diloco", "osgp", "gap_aware"])
def test_a_killed_run_has_saved_the_same_states(
    variant: str, tmp_path: Path, events: list[int]
) -> None:
    overrides = (f"algo={variant}", *VARIANTS[variant], *RANDOM)
    compare_checkpoints(tmp_path, events, 1, "model=mlp", *overrides)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_killed_run_has_saved_the_same_states_many_times(
    variant: str, seed: int, tmp_path: Path, events: list[int]
) -> None:
    network = SLOW_NETWORK if seed % 2 else ()
    overrides = (f"algo={variant.partition(',')[0]}", *VARIANTS[variant], *RANDOM, *network)
    compare_checkpoints(tmp_path, events, seed, "model=mlp", *overrides, f"seed={seed}")


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_killed_run_ends_with_the_same_bytes(
    variant: str, tmp_path: Path, events: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """On a fast or a slow network, in turn."""
    algo, number = variant.partition(",")[0], list(VARIANTS).index(variant)
    network = SLOW_NETWORK if number % 2 else ()
    overrides = (f"algo={algo}", *VARIANTS[variant], *RANDOM, *network)
    whole_and_interrupted(tmp_path, events, number, "model=mlp", *overrides)
    assert "worker.state" not in capsys.readouterr().err  # all state is kept


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_killed_run_ends_with_the_same_bytes_many_times(
    variant: str, seed: int, tmp_path: Path, events: list[int]
) -> None:
    algo = variant.partition(",")[0]
    network = SLOW_NETWORK if seed % 2 else ()
    whole_and_interrupted(
        tmp_path,
        events,
        seed,
        "model=mlp",
        f"algo={algo}",
        *VARIANTS[variant],
        *RANDOM,
        *network,
        f"seed={seed}",
        often=True,
    )


FAULTS = {
    "windows": (
        "faults.events=[{what: pause, ranks: [1], start: 0.3, end: 0.9}, {what: crash, ranks: "
        "[2], start: 0.5, end: 1.2},{what: partition, ranks: [0, 3], start: 0.8, end: 1.5}, "
        "{what: slow_link, ranks: [3], factor: 6, end: 1},{what: slow_node, ranks: [0], factor: "
        "3, start: 1, end: 2}]"
    ),
    "late": "faults=delay faults.delay_law=uniform",
    "lost": (
        "faults=drop faults.drop_probability=0.2 faults.delay_seconds=0.01 "
        "faults.delay_law=exponential"
    ),
}


# Several algorithms under each fault in the fast tests, and all of them in the slow ones.
UNDER_FAULTS = {
    "ar_sgd": ("windows",),
    "ad_psgd, two averages": ("late",),
    "sgp": ("lost",),
    "osgp": ("windows", "late"),
    "gap_aware": ("lost",),
    "async_diloco": ("windows",),
    "pipe_sgd, compressed": ("late",),
    "ps_sgd": ("lost",),
}


@pytest.mark.parametrize(
    ("variant", "fault"),
    [
        pytest.param(variant, fault, marks=() if fault in fast else pytest.mark.slow)
        for variant, fast in UNDER_FAULTS.items()
        for fault in FAULTS
    ],
)
def test_a_killed_run_with_faults_ends_with_the_same_bytes(
    variant: str, fault: str, tmp_path: Path, events: list[int]
) -> None:
    algo, overrides = (
        variant.partition(",")[0],
        [FAULTS[fault]] if "[" in FAULTS[fault] else FAULTS[fault].split(),
    )
    settings = (f"algo={algo}", *VARIANTS[variant], *RANDOM, *SLOW_NETWORK, *overrides)
    whole_and_interrupted(tmp_path, events, sum(map(ord, variant + fault)), "model=mlp", *settings)


@pytest.mark.parametrize(
    ("seed", "settings"),
    [
        # With constant compute times most events happen at the same moment as others.
        (
            5,
            (
                *("model=mlp", "algo=osgp", "algo.tau=3", "cluster.compute_time=constant"),
                *SLOW_NETWORK,
            ),
        ),
        # With batch norm, and one gradient after the other
        (
            6,
            (
                *("model=resnet8", "algo=ar_sgd", "epochs=1", "cluster.collectives.overlap=0.5"),
                *RANDOM,
            ),
        ),
        # Evaluations within an epoch
        (6, ("model=mlp", "algo=ad_psgd", "epochs=1", "eval_every=0.1", *RANDOM)),
        # Traced runs
        (8, ("model=mlp", "algo=ar_sgd", "epochs=1", "trace_steps=2-9", *RANDOM)),
        (8, ("model=mlp", "algo=osgp", "epochs=1", "trace_steps=2-9", *RANDOM)),
        (7, ("model=timing_only", "algo=sgp", "epochs=0.02", "nodes=8", *RANDOM)),
    ],
    ids=["equal times", "batch norm", "evaluations", "traced", "traced osgp", "timing study"],
)
def test_runs_of_other_kinds_go_on_too(
    seed: int, settings: tuple[str, ...], tmp_path: Path, events: list[int]
) -> None:
    whole_and_interrupted(tmp_path, events, seed, *settings)


WORDS = ["algo=ad_psgd", "model=mlp", "nodes=4", "epochs=12", "logger=jsonl", "eval_every=5"]


def start(folder: Path, *overrides: str) -> Command:
    folder.mkdir(exist_ok=True)
    return Command(*WORDS, *overrides, folder=folder)


def metrics(folder: Path) -> list[str]:
    (path,) = folder.glob("results/runs/*/metrics.jsonl")
    return path.read_text().splitlines()


def test_the_command_after_sigkill_and_sigusr1_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    with monkeypatch.context() as inside:
        inside.chdir(whole)
        assert main(WORDS) == 0
    codes = []
    for number in (signal.SIGKILL, signal.SIGUSR1):
        process = start(cut, "checkpoint.every_steps=3")
        before = len(metrics(cut)) if list(cut.glob("results/runs/*/metrics.jsonl")) else 0
        while process.poll() is None and (
            not list(cut.glob("results/runs/*/checkpoints/step-*"))
            or len(metrics(cut)) < before + 36
        ):
            time.sleep(0.05)
        process.send_signal(number)
        out, error = process.communicate()
        codes.append(process.returncode)
        if number != signal.SIGKILL:
            assert re.fullmatch(
                (
                    rf"sgp-run: stopped by {number.name}; saved in results/runs/\S+/step-\d+. Run "
                    r"the same command again to resume.\n"
                ),
                error,
            )
            assert "resumes from step" in out
    assert codes == [-signal.SIGKILL, 75]
    assert start(cut, "checkpoint.every_steps=3").wait() == 0
    assert metrics(cut)[:-1] == metrics(whole)[:-1]  # the last line holds the real time
    assert not list(cut.glob("results/runs/*/checkpoints"))
    monkeypatch.chdir(cut)
    capsys.readouterr()
    assert main(WORDS) == 0
    assert "This run has finished already" in capsys.readouterr().out


def cut_off(tmp_path: Path, events: list[int], *settings: str) -> Experiment:
    """A run with several checkpoints that was killed."""
    experiment = make_experiment(
        tmp_path, *SETTINGS, "model=mlp", "checkpoint.every_steps=5", "checkpoint.keep=3", *settings
    )
    events[0] = 230
    with pytest.raises(Killed):
        execute(experiment)
    events[0] = 10**9
    return experiment


def test_the_latest_checkpoints_are_kept(tmp_path: Path, events: list[int]) -> None:
    steps = saved_steps(cut_off(tmp_path, events).checkpoints)
    assert len(steps) == 3 and [a - b for a, b in itertools.pairwise(steps)] == [5, 5]


def test_time_passing_asks_for_checkpoints_too(tmp_path: Path, events: list[int]) -> None:
    often = ("checkpoint.every_steps=null", "checkpoint.every_minutes=0.0001")
    assert len(saved_steps(cut_off(tmp_path, events, *often).checkpoints)) > 1


def truncate(path: Path) -> None:
    os.truncate(path / "rank1.pt", 1000)


def flip_a_bit(path: Path) -> None:
    data = bytearray((path / "run.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "run.pt").write_bytes(bytes(data))


def edit(path: Path, **values: object) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, **values}))


def put(path: Path, make: Callable[[Path], object]) -> None:
    """Put something else in the place of a file."""
    path.unlink()
    make(path)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (truncate, "rank1.pt is damaged."),
    "corrupt": (flip_a_bit, "run.pt is damaged."),
    "incomplete": (
        lambda path: (path / "rank0.pt").unlink(),
        "rank0.pt cannot be read (No such file or directory).",
    ),
    "a pipe": (
        lambda path: put(path / "run.pt", os.mkfifo),
        "run.pt cannot be read (Not a regular file).",
    ),
    "a device": (
        lambda path: put(path / "rank1.pt", lambda place: place.symlink_to("/dev/zero")),
        "rank1.pt cannot be read (Not a regular file).",
    ),
    "a deep manifest": (
        lambda path: (path / "manifest.json").write_text("[" * 100_000),
        "its manifest.json is missing or damaged.",
    ),
    "without manifest": (
        lambda path: (path / "manifest.json").unlink(),
        "its manifest.json is missing or damaged.",
    ),
    "foreign": (lambda path: edit(path, run="0123"), "it belongs to a run with other settings."),
    "older": (
        lambda path: edit(path, version=0),
        f"it has format 0, and this version of sgp-run reads format {VERSION}.",
    ),
    "reaching out": (
        lambda path: edit(path, files={"../x.pt": ""}),
        "its manifest.json is missing or damaged.",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_bad_checkpoint_is_refused_and_the_one_before_is_used(
    damage: str, tmp_path: Path, events: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = cut_off(tmp_path, events)
    newest, second, _ = saved_steps(experiment.checkpoints)
    spoil, sentence = DAMAGE[damage]
    spoil(experiment.checkpoints / f"step-{newest}")
    capsys.readouterr()
    assert execute(experiment) is not None
    out, error = capsys.readouterr()
    assert error == (
        f"warning: the checkpoint {experiment.checkpoints}/step-{newest} is not used: {sentence}\n"
    )
    assert f"resumes from step {second}" in out


class Malice:
    """Its pickle makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.path}",)


def test_a_checkpoint_cannot_run_code(
    tmp_path: Path, events: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = cut_off(tmp_path, events)
    place = experiment.checkpoints / f"step-{saved_steps(experiment.checkpoints)[0]}"
    torch.save({"now": Malice(tmp_path / "harm")}, place / "run.pt")
    files = json.loads((place / "manifest.json").read_text())["files"]
    edit(place, files={**files, "run.pt": checksum(place / "run.pt")})
    capsys.readouterr()
    assert execute(experiment) is not None
    assert capsys.readouterr().err == (
        f"warning: the checkpoint {place} is not used: it does not fit this run "
        "(run.pt does not contain data of sgp-run).\n"
    )
    assert not (tmp_path / "harm").exists()


def test_an_average_that_was_still_to_come_is_taken_after_a_resumption(
    tmp_path: Path, events: list[int]
) -> None:
    """Saved after the last step of an incomplete period of SlowMo, when no step is left."""
    overrides = (
        *SETTINGS,
        "model=mlp",
        "algo=slowmo",
        "algo.tau=5",
        "algo.base=local_sgd",
    )  # 22 steps: 4 x 5 + 2
    whole, cut = (
        make_experiment(tmp_path / name, *overrides, "checkpoint.every_steps=22")
        for name in ("whole", "cut")
    )
    execute(instrumented(whole))
    needed, kept = 10**9 - events[0], 0
    for last in range(1, 40):
        events[0] = needed - last
        with pytest.raises(Killed):
            execute(instrumented(cut))
        kept += saved_steps(cut.checkpoints) == [22]
        events[0] = 10**9
        if kept:
            break
        shutil.rmtree(cut.directory)
        cut.directory.mkdir()
    assert kept
    execute(instrumented(cut))
    assert distance(whole, cut) == 0
