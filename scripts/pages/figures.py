"""Figures of the messages in the first steps of each algorithm, from a simulated run.

Four nodes have ResNet-50's gradients and messages on 10 Gbit/s Ethernet; node 3 is slower. Each row
is a node, and time goes to the right. Bars are gradients. Lines are messages, from their start to
their arrival. Bands are all-reduces.
"""

from __future__ import annotations

import io
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sgp_runner.elastic.build import timing_problem

NODES = 4
STEPS = 4.0  # number of steps of a normal node in a figure
SETTINGS = (
    f"nodes={NODES}",
    "model=timing_only",
    "model.sample_steps=null",
    "cluster=sgp_ethernet",
    "cluster.compute.node_factors={3: 1.4}",
    "epochs=0.008",
    "logger=jsonl",
)
OWN = {
    "halos": ("algo.regions=2", "algo.period=2", "algo.arrivals=2"),
    "hybrid": ("algo.switch_epoch=0.0016",),
    "local_sgd": ("algo.tau=2",),
    "onebit_adam": ("algo.warmup_epochs=0.004",),
    "zero_one_adam": ("algo.kappa=1", "algo.freeze_epochs=0.004", "algo.doubling=1"),
    "slowmo": ("algo.tau=2",),
    **dict.fromkeys(
        (
            "async_diloco",
            "des_loc",
            "diloco",
            "streaming_diloco",
            "noloco",
            "gasloc",
            "heloco",
            "sparseloco",
            "gossip_pga",
        ),
        ("algo.period=2",),
    ),
}
GRADIENT, MESSAGE, ALL_REDUCE, TEXT = "#5b8fd6", "#d9793d", "#8c9aa8", "#808489"


@dataclass
class Trace:
    """The first seconds of a simulated run; all times are in seconds.

    gradients: rank, begin and end
    messages: source, destination, begin and end
    all_reduces: begin (when the last rank has joined) and end
    """

    ranks: int
    step: float
    title: str
    gradients: list[tuple[int, float, float]] = field(default_factory=list)
    messages: list[tuple[int, int, float, float]] = field(default_factory=list)
    all_reduces: list[tuple[float, float]] = field(default_factory=list)


def all_figures() -> Iterator[tuple[str, str]]:
    """Yield the name of each algorithm and its figure as SVG."""
    from sgp_runner.config.choices import groups

    for algo in groups()["algo"]:
        yield algo, draw(traced(algo))


def traced(algo: str) -> Trace:
    """Simulate some steps of ``algo`` without gradients, and record the times of events."""
    from sgp_runner.config.overrides import experiment_of
    from sgp_runner.core.timing_study import Study
    from sgp_runner.simulator.times import simulate_times

    run = experiment_of([f"algo={algo}", *SETTINGS, *OWN.get(algo, ())]).run
    problem = timing_problem(run, Study(None, run.study.real))
    simulation, workers = simulate_times(run, problem)
    step = run.timed_as.step_seconds(run.cluster, run.model.name, run.batch_size)
    trace = Trace(len(workers), step, run.algo.title)
    watch(simulation, trace)
    simulation.run()
    return trace


def watch(simulation: Any, trace: Trace) -> None:
    """Make ``simulation`` record its gradients, messages and all-reduces in ``trace``."""
    begun: dict[tuple[int, int], deque[float]] = defaultdict(deque)
    transmit, deliver = simulation.fabric.transmit, simulation.fabric.deliver
    collectives, compute = simulation.machines.collectives, simulation.machines.compute
    end_of, times = collectives.end_of, compute.gradient_times

    def noting_transmit(sent: Any, num_bytes: float) -> None:
        if sent.message.numel():
            begun[sent.src, sent.dst].append(simulation.now())
        transmit(sent, num_bytes)

    def noting_deliver(sent: Any) -> None:
        if sent.message.numel():
            begin = begun[sent.src, sent.dst].popleft()
            trace.messages.append((sent.src, sent.dst, begin, simulation.now()))
        deliver(sent)

    def noting_end_of(collective: Any) -> float:
        end = end_of(collective)
        trace.all_reduces.append((simulation.now(), end))
        return float(end)

    def noting_times(rank: int) -> tuple[float, float]:
        for number, (other, begin, end) in enumerate(trace.gradients):
            if other == rank and end > simulation.now():  # abandoned
                trace.gradients[number] = rank, begin, simulation.now()
        end, joins = times(rank)
        trace.gradients.append((rank, simulation.now(), end))
        return end, joins

    simulation.fabric.transmit, simulation.fabric.deliver = noting_transmit, noting_deliver
    collectives.end_of, compute.gradient_times = noting_end_of, noting_times


def draw(trace: Trace) -> str:
    """Return the SVG of ``trace``, in colours that can be read on white and on black."""
    import matplotlib
    from matplotlib.figure import Figure

    seconds = STEPS * trace.step * 1.4
    settings = {"svg.fonttype": "none", "svg.hashsalt": trace.title, "font.size": 10}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(6.4, 0.5 * trace.ranks + 0.9), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.subplots()
        axes.set_facecolor("none")
        for begin, end in trace.all_reduces:
            axes.axvspan(begin, end, color=ALL_REDUCE, alpha=0.45, lw=0)
        for rank, begin, end in trace.gradients:
            axes.barh(rank, end - begin, 0.34, begin, color=GRADIENT)
        for src, dst, begin, end in trace.messages:
            axes.annotate(
                "",
                (end, dst),
                (begin, src),
                annotation_clip=False,
                clip_on=True,
                arrowprops={"arrowstyle": "->", "color": MESSAGE, "lw": 1.2, "clip_on": True},
            )
        axes.set_xlim(0, seconds)
        axes.set_ylim(trace.ranks - 0.5, -0.5)
        axes.set_yticks(range(trace.ranks), [*map(name_of, range(trace.ranks))], color=TEXT)
        axes.set_xlabel("simulated time in seconds", color=TEXT)
        axes.tick_params(colors=TEXT, length=0)
        axes.spines[:].set_visible(False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    return text.getvalue()


def name_of(rank: int) -> str:
    return "server" if rank == NODES else f"node {rank}"
