"""Traces of some steps of a run, in Chrome's trace format, for Perfetto (https://ui.perfetto.dev).

`SimulatedTrace` shows the modelled machines in simulated time: when nodes compute or wait, and when
messages and collectives are in flight. `ProfiledSteps` records the process of a real rank with
PyTorch's profiler.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgp_runner.config.experiment import Experiment
from sgp_runner.config.run import steps_in
from sgp_runner.core.step_hooks import StepListener
from sgp_runner.core.worker import Worker
from sgp_runner.utils.files import replace_file
from sgp_runner.utils.spans import mark_spans

if TYPE_CHECKING:
    from torch.profiler import profile

US = 1e6  # Chrome's unit, a microsecond


@dataclass(frozen=True)
class Span:
    """An activity from ``begin`` to ``end`` (s) on the track of a node.

    number: distinguishes activities that overlap on a track; None for computing and waiting, which
        never overlap
    """

    node: int
    name: str
    begin: float
    end: float
    number: int | None = None
    details: dict[str, object] | None = None

    def events(self) -> list[dict[str, object]]:
        event: dict[str, object] = {"name": self.name, "pid": self.node, "tid": 0}
        event |= {"args": self.details} if self.details else {}
        if self.number is None:
            return [event | {"ph": "X", "ts": self.begin * US, "dur": (self.end - self.begin) * US}]
        event |= {"cat": "network", "id2": {"local": self.number}}
        return [
            event | {"ph": "b", "ts": self.begin * US},
            event | {"ph": "e", "ts": self.end * US},
        ]


class SimulatedTrace:
    """Recorder of the spans of all nodes in ``steps``, from the clock events of a simulation.

    spans: spans in order of their ends; spans of all nodes together have ``size`` as node
    started: start time of each unfinished gradient, by rank and step
    sent: start time and bytes of each message in flight
    joined: time at which the first rank joined each collective in progress
    computed: end time of the last traced gradient, by rank
    beyond: ranks that have passed the traced steps
    size: number of nodes
    """

    def __init__(self, steps: range) -> None:
        self.steps = steps
        self.spans: list[Span] = []
        self.started: dict[tuple[int, int], float] = {}
        self.sent: dict[int, tuple[float, float]] = {}
        self.joined: dict[int, float] = {}
        self.computed: dict[int, float] = {}
        self.beyond: set[int] = set()
        self.size = 0

    def follow(self, simulation: Any) -> None:
        """Record the events of ``simulation`` from now on."""
        machines, clock = simulation.machines, simulation.clock
        self.size = simulation.size

        def on_send(sent: Any, num_bytes: float) -> None:
            if len(self.beyond) < self.size:
                self.sent[id(sent)] = clock.now, num_bytes

        def on_join(number: int, *arguments: Any) -> None:
            if len(self.beyond) < self.size:
                self.joined.setdefault(number, clock.now)

        def on_gradient_end(rank: int, step: int) -> None:
            if (rank, step) in simulation.gradients:  # not abandoned
                self.on_end(rank, step, clock.now)

        machines.start_gradient = both(
            lambda gradient, contribution: self.on_start(gradient.rank, gradient.step, clock.now),
            machines.start_gradient,
        )
        machines.fabric.transmit = both(on_send, machines.fabric.transmit)
        machines.collectives.contribute = both(on_join, machines.collectives.contribute)
        before: dict[str, Callable[..., None]] = {
            "gradient ends": on_gradient_end,
            "joins": lambda number, rank, step, num_bytes, ready: self.on_end(rank, step, ready),
            "arrive": lambda sent: self.on_arrival(sent, clock.now),
            "collective ends": lambda number: self.on_collective_end(number, clock.now),
            "coded": lambda rank, number, what, begin: self.on_coded(rank, what, begin, clock.now),
        }
        for event, note in before.items():
            clock.handlers[event] = both(note, clock.handlers[event])

    def began(self) -> bool:
        """Return whether any rank has reached the traced steps."""
        return bool(self.started or self.computed)

    def on_start(self, rank: int, step: int, now: float) -> None:
        if step > self.steps[-1]:
            self.beyond.add(rank)
        if step in self.steps:
            self.started[rank, step] = now
            waited = self.computed.get(rank, now)
            if waited < now:
                self.spans.append(Span(rank, "waits", waited, now))

    def on_end(self, rank: int, step: int, end: float) -> None:
        if (begin := self.started.pop((rank, step), None)) is not None:
            self.spans.append(Span(rank, f"gradient {step}", begin, end))
            self.computed[rank] = end

    def on_arrival(self, sent: Any, now: float) -> None:
        under_way = self.sent.pop(id(sent), None)
        if under_way is not None and self.began():
            begin, num_bytes = under_way
            details = {"bytes": num_bytes, "tag": sent.tag}
            name = f"to node {sent.dst}"
            self.spans.append(Span(sent.src, name, begin, now, len(self.spans), details))

    def on_coded(self, rank: int, what: str, begin: float, now: float) -> None:
        if self.began():
            self.spans.append(Span(rank, f"{what}s", begin, now, len(self.spans)))

    def on_collective_end(self, number: int, now: float) -> None:
        begin = self.joined.pop(number, None)
        if begin is not None and self.began():
            details: dict[str, object] = {"number": number}
            self.spans.append(Span(self.size, "collective", begin, now, len(self.spans), details))

    def events(self) -> list[dict[str, object]]:
        """Return the events of the traced steps, from their first gradient to their last."""
        gradients = [span for span in self.spans if span.name.startswith("gradient")]
        if not gradients:
            return []
        begin, end = min(span.begin for span in gradients), max(span.end for span in gradients)
        spans = [span for span in self.spans if span.begin <= end and span.end > begin]
        nodes = sorted({span.node for span in spans})
        titles = [title for node in nodes for title in self.titles(node)]
        return titles + [event for span in spans for event in span.events()]

    def titles(self, node: int) -> list[dict[str, object]]:
        """Return names and position of a node's group and row; Perfetto adds the node's number."""
        titles: dict[str, dict[str, object]] = {
            "process_name": {"name": "node" if node < self.size else "all nodes"},
            "process_sort_index": {"sort_index": node},
            "thread_name": {"name": "computes"},
        }
        return [
            {"ph": "M", "name": kind, "pid": node, "tid": 0, "args": value}
            for kind, value in titles.items()
        ]

    def write(self, path: Path) -> None:
        content = {
            "traceEvents": self.events(),
            "displayTimeUnit": "ms",
            "otherData": {"clock": "simulated"},
        }
        replace_file(path, json.dumps(content) + "\n")


def both(note: Callable[..., None], handle: Callable[..., None]) -> Callable[..., None]:
    @wraps(handle)  # checkpoints store arguments by the names of its parameters
    def handler(*arguments: Any) -> None:
        note(*arguments)
        handle(*arguments)

    return handler


class ProfiledSteps:
    """Listener of a real rank that profiles ``steps`` and forwards all calls to ``listener``.

    The profiler is prepared one step earlier, which takes seconds; other ranks wait for this.
    """

    def __init__(self, listener: StepListener, steps: range, path: Path) -> None:
        self.listener, self.steps, self.path = listener, steps, path
        self.profiler: profile | None = None

    def start_of_step(self, worker: Worker) -> None:
        self.listener.start_of_step(worker)
        step = worker.step + 1
        if step in (self.steps.start - 1, self.steps.start) and self.profiler is None:
            from torch._C._profiler import _ExperimentalConfig
            from torch.profiler import profile

            config = _ExperimentalConfig(profile_all_threads=True)
            self.profiler = profile(experimental_config=config)
            self.profiler.prepare_trace()
        if step == self.steps.start and self.profiler is not None:
            from torch.profiler import record_function

            self.profiler.start_trace()
            mark_spans(record_function)

    def end_of_step(self, worker: Worker) -> None:
        if self.profiler is not None and worker.step >= self.steps[-1]:
            mark_spans(None)
            self.profiler.stop_trace()
            self.profiler.export_chrome_trace(str(self.path))
            self.profiler, self.steps = None, range(-1, 0)
        self.listener.end_of_step(worker)


def traced(experiment: Experiment, listener: StepListener, process: int) -> StepListener:
    """Return ``listener``, or one that also profiles the steps of ``trace_steps``."""
    steps = experiment.run.trace_steps
    if steps is None:
        return listener
    path = experiment.directory / f"trace.rank{process}.json"
    return ProfiledSteps(listener, steps_in(steps), path)
