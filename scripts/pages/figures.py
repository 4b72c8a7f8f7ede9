"""Figures of the messages in the first steps of each algorithm, from a simulated run.

The nodes have ResNet-50's gradients and messages on 10 Gbit/s Ethernet; node 3 is slower. Each row
is a node, and time goes to the right. Bars are gradients. Lines are messages, from their start to
their arrival. Bands are all-reduces.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

from sgp_runner.assembly.build import timing_problem

SECONDS = 1.4  # simulated time of a figure
SLOW, FACTOR = 3, 1.4  # the slow node, and how many times longer it takes for a gradient
SETTINGS = (
    "model=timing_only",
    "model.sample_steps=null",
    "cluster=sgp_ethernet",
    f"cluster.compute.node_factors={{{SLOW}: {FACTOR}}}",
    "epochs=0.016",
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
            "sparseloco",
            "gossip_pga",
        ),
        ("algo.period=2",),
    ),
}
GRADIENT, MESSAGE, ALL_REDUCE = "#5b8fd6", "#d9793d", "#8c9aa8"
FONT = "text{fill:#7c8086;font:12px sans-serif}"


@dataclass
class Trace:
    """The events in the first seconds of a simulated run; all times are in seconds.

    nodes: number of nodes; higher ranks are servers
    ranks: number of nodes and servers
    gradients: rank, begin and end
    messages: source, destination, begin, end and bytes
    all_reduces: begin (when the last rank has joined) and end
    """

    nodes: int
    ranks: int
    title: str
    gradients: list[tuple[int, float, float]] = field(default_factory=list)
    messages: list[tuple[int, int, float, float, float]] = field(default_factory=list)
    all_reduces: list[tuple[float, float]] = field(default_factory=list)

    def name(self, rank: int) -> str:
        """Return the name of a rank, such as ``node 3`` or ``server``."""
        if rank < self.nodes:
            return f"node {rank}"
        return f"server {rank - self.nodes}" if self.ranks > self.nodes + 1 else "server"


def algorithms(names: str = "*") -> Iterator[str]:
    """Yield the names of the algorithms that match a pattern."""
    from sgp_runner.config.choices import groups

    return (algo for algo in groups()["algo"] if fnmatch(algo, names))


def traced(algo: str, nodes: int) -> Trace:
    """Simulate ``algo`` without gradients, and record events that start in the first `SECONDS`."""
    from sgp_runner.assembly.simulated.times import simulate_times
    from sgp_runner.config.overrides import experiment_of
    from sgp_runner.core.timing_study import Study

    overrides = OWN.get(algo, ())
    run = experiment_of([f"algo={algo}", f"nodes={nodes}", *SETTINGS, *overrides]).run
    problem = timing_problem(run, Study(None, run.study.real))
    simulation, workers = simulate_times(run, problem)
    trace = Trace(nodes, len(workers), run.algo.title)
    watch(simulation, trace)
    simulation.run()
    trace.gradients = [event for event in trace.gradients if event[1] < SECONDS]
    trace.messages = [event for event in trace.messages if event[2] < SECONDS]
    trace.all_reduces = [event for event in trace.all_reduces if event[0] < SECONDS]
    return trace


def watch(simulation: Any, trace: Trace) -> None:
    """Make ``simulation`` record its gradients, messages and all-reduces in ``trace``."""
    begun: dict[tuple[int, int], deque[tuple[float, float]]] = defaultdict(deque)
    transmit, deliver = simulation.fabric.transmit, simulation.fabric.deliver
    collectives, compute = simulation.machines.collectives, simulation.machines.compute
    end_of, times = collectives.end_of, compute.gradient_times

    def noting_transmit(sent: Any, num_bytes: float) -> None:
        if sent.message.numel():
            begun[sent.src, sent.dst].append((simulation.now(), num_bytes))
        transmit(sent, num_bytes)

    def noting_deliver(sent: Any) -> None:
        if sent.message.numel():
            begin, num_bytes = begun[sent.src, sent.dst].popleft()
            trace.messages.append((sent.src, sent.dst, begin, simulation.now(), num_bytes))
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


WIDTH, LEFT, TOP, ROW = 520, 60, 30, 34  # in pixels


def draw(trace: Trace) -> str:
    """Return the SVG of ``trace``, in colours that are legible on white and on black."""
    height = ROW * trace.ranks
    scale = (WIDTH - LEFT - 10) / SECONDS

    def x(time: float) -> float:
        return round(time * scale, 1)

    def y(rank: int) -> float:
        return (rank + 0.5) * ROW

    plot = [
        *(
            f'<rect class="r" x="{x(a)}" width="{x(b) - x(a):.1f}" height="{height}"/>'
            for a, b in trace.all_reduces
        ),
        *(
            f'<rect x="{x(a)}" y="{y(rank) - 6}" width="{x(b) - x(a) - 1:.1f}" height="12"/>'
            for rank, a, b in trace.gradients
        ),
        *(f'<path d="M{x(a)} {y(i)}L{x(b)} {y(j)}"/>' for i, j, a, b, _ in trace.messages),
    ]
    labels = [
        *(text(0, TOP + y(rank) + 4, trace.name(rank)) for rank in range(trace.ranks)),
        *(
            text(LEFT + x(0.2 * i), TOP + height + 16, f"{0.2 * i:.1f}", "middle")
            for i in range(round(SECONDS / 0.2) + 1)
        ),
        text(WIDTH / 2, TOP + height + 32, "simulated time in seconds", "middle"),
    ]
    return svg(WIDTH, TOP + height + 40, f"{trace.title} on {trace.nodes} nodes", [
        f'<style>rect{{fill:{GRADIENT}}}path{{stroke:{MESSAGE};stroke-width:1.3;'
        f"marker-end:url(#a)}}.r{{fill:{ALL_REDUCE};opacity:.45}}{FONT}</style>",
        '<marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" '
        f'orient="auto"><polygon points="0,0 8,4 0,8" fill="{MESSAGE}"/></marker>',
        *legend(trace),
        f'<svg x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - 10}" height="{height}">',
        *plot,
        "</svg>",
        *labels,
    ])  # fmt: skip


def legend(trace: Trace) -> Iterator[str]:
    """Yield the legend for the colours that occur in a figure."""
    yield f'<rect x="{LEFT}" y="6" width="24" height="10"/>{text(LEFT + 30, 15, "gradient")}'
    if trace.messages:
        yield f'<path d="M{LEFT + 110} 11h26"/>{text(LEFT + 142, 15, "message")}'
    if trace.all_reduces:
        at = LEFT + 230
        yield f'<rect class="r" x="{at}" y="4" width="24" height="14"/>'
        yield text(at + 30, 15, "all-reduce")


def text(x: float, y: float, content: str, anchor: str = "start") -> str:
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{where}>{content}</text>'


def svg(width: float, height: float, title: str, lines: Iterable[str]) -> str:
    """Return an SVG with a title for screen readers."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return "\n".join([head, f"<title>{title}</title>", *lines, "</svg>\n"])
