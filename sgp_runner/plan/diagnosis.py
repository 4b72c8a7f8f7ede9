"""Diagnosis of why several nodes are slower than one, from observed times.

The inverse problem has many solutions. A diagnosis gives the range of rates that the network may
have carried, judges each cause by the numbers that are known, and names the observation that would
confirm it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Literal

from sgp_runner.cluster.connection_laws import connection_rate
from sgp_runner.plan.observation import Observation
from sgp_runner.utils.units import bit_rate, counted, duration, num_bytes, percent

Verdict = Literal["likely", "possible", "unlikely", "excluded"]

ORDER: tuple[Verdict, ...] = ("likely", "possible", "unlikely", "excluded")
# Shares of a claimed rate that a network carries when it is the limit, and when it is not.
FULL, PARTIAL = 0.8, 0.5
# Nominal rates of interfaces, and the share of one that TCP carries.
NOMINAL = (1e8, 1e9, 2.5e9, 1e10, 2.5e10, 4e10, 5e10, 1e11, 2e11, 4e11)
PAYLOAD = (0.85, 1.0)
# A smaller model keeps its gap if it keeps this share of it, and loses it in proportion if it is
# within this factor of its size.
KEPT, IN_PROPORTION = 0.75, 1.25
SEVERAL = 1.5  # several connections carry this many times the rate of one if one is the limit
TYPICAL_WINDOW = 4 * 2**20  # bytes; Linux's largest default for sending (net.ipv4.tcp_wmem)


@dataclass(frozen=True)
class Cause:
    """A possible cause.

    why: the numbers that support or contradict it
    observation: the observation that would confirm it. command: a command to obtain it
    """

    name: str
    verdict: Verdict
    why: str
    observation: str
    command: str


@dataclass(frozen=True)
class Diagnosis:
    """The rates and causes that explain an observation.

    rates: by number of nodes, bit/s if the whole all-reduce was overlapped, and if none of it was
    one_rate: whether a single rate explains the times on all numbers of nodes
    rate_explains: whether the time of a smaller model agrees with the rate; None: not observed
    """

    observation: Observation
    rates: dict[int, tuple[float, float]]
    one_rate: bool
    rate_explains: bool | None
    causes: tuple[Cause, ...]

    @property
    def nodes(self) -> int:
        """The number of nodes for which the causes are judged."""
        return min(self.rates)

    @property
    def answer(self) -> str:
        """The answer in one sentence."""
        seen, nodes = self.observation, self.nodes
        low, high = self.rates[nodes]
        if seen.gap(nodes) <= 0:
            return (
                f"{counted(nodes, 'node')} take no longer for a step than one: there is nothing to "
                f"explain; the network carried {bit_rate(low)} or more."
            )
        slower = (
            f"A step on {nodes} nodes takes {seen.together[nodes] / seen.alone:.3g} times as long"
        )
        if not self.one_rate:
            apart = self.rates[nodes][1] / self.rates[max(self.rates)][1]
            apart = max(apart, 1 / apart)
            return (
                f"{slower}, and a slow network is not the answer: {nodes} and {max(self.rates)} "
                f"nodes need rates {apart:.1f} times apart."
            )
        if self.rate_explains is False:
            return (
                f"{slower}, and a slow network is not the answer: a smaller model does not lose "
                "the gap in proportion."
            )
        if low == inf:
            return f"{slower}: latency alone takes longer than the gap."
        return f"{slower}: the network carried {span(low, high)}{of_link(seen, low, high)}."


def span(low: float, high: float) -> str:
    """Return a range of rates as text."""
    if high == inf:
        return f"{bit_rate(low)} or more"
    first, unit = bit_rate(low).split()
    last, same = bit_rate(high).split()
    return f"{first} to {last} {unit}" if unit == same else f"{first} {unit} to {last} {same}"


def of_link(seen: Observation, low: float, high: float) -> str:
    """Return the share of the claimed rate as text; empty if no rate was claimed."""
    if seen.bandwidth is None or high == inf:
        return ""
    shares = sorted({f"{100 * rate / seen.bandwidth:.0f}" for rate in (low, high)}, key=float)
    return f", {' to '.join(shares)} % of {bit_rate(seen.bandwidth)}"


def diagnose(seen: Observation) -> Diagnosis:
    """Return the rates and the causes that explain an observation."""
    rates = {nodes: seen.rates(nodes) for nodes in sorted(seen.together)}
    one_rate = max(low for low, _ in rates.values()) <= min(high for _, high in rates.values())
    nodes = min(rates)
    causes: list[Cause] = []
    if seen.gap(nodes) > 0:
        causes = [*network_causes(seen, nodes), *other_causes(seen, nodes)]
    explains = None
    if seen.small is not None:
        share, gap = seen.small
        explains = gap <= IN_PROPORTION * share * seen.gap(nodes)
    if explains is not None or not one_rate:
        wrong = explains is False or not one_rate
        by = "the smaller model" if one_rate else "the other number of nodes"
        causes = [
            refuted(cause, by) if (cause.name in OF_THE_RATE) == wrong else cause
            for cause in causes
        ]
    causes.sort(key=lambda cause: ORDER.index(cause.verdict))
    return Diagnosis(seen, rates, one_rate, explains, tuple(causes))


def refuted(cause: Cause, by: str) -> Cause:
    """Return ``cause`` with the verdict lowered, as the observation ``by`` contradicts it."""
    worst = max(ORDER.index(cause.verdict), ORDER.index("unlikely"))
    why = f"{cause.why} But {by} contradicts it."
    return Cause(cause.name, ORDER[worst], why, cause.observation, cause.command)


LINK, CONNECTION, INTERFACE = "rate of the link", "one connection", "another interface"
RING, LATENCY = "a ring over all devices", "latency"
OF_THE_RATE = (LINK, CONNECTION, INTERFACE, RING)


def network_causes(seen: Observation, nodes: int) -> Iterator[Cause]:
    """Yield the causes inside the network."""
    low, high = seen.rates(nodes)
    yield link_cause(seen, low, high)
    yield connection_cause(seen, low, high)
    yield interface_cause(low, high, seen.bandwidth)
    if seen.devices > 1:
        yield ring_cause(seen, nodes)
    yield latency_cause(seen, nodes)


def scaling(seen: Observation) -> float:
    """Return the rate over the most connections relative to the rate over the fewest."""
    return seen.streams[max(seen.streams)] / seen.streams[min(seen.streams)]


def carried(seen: Observation) -> str:
    """Return a sentence with the measured rates of TCP connections."""
    parts = (
        f"{bit_rate(rate)} over {counted(number, 'connection')}"
        for number, rate in sorted(seen.streams.items())
    )
    return f"TCP carries {', '.join(parts)}."


def link_cause(seen: Observation, low: float, high: float) -> Cause:
    verdict: Verdict = "possible"
    why = "No rate was claimed (bandwidth=)."
    if seen.bandwidth is not None:
        top, bottom = high / seen.bandwidth, low / seen.bandwidth
        why = f"The network carried {span(low, high)}{of_link(seen, low, high)}."
        verdict = "likely" if top >= FULL and bottom <= 1 else "possible"
        if top < PARTIAL:
            verdict = "unlikely"
            why += " If the claim is right, the link is not the limit."
    if len(seen.streams) > 1:
        top = max(seen.streams.values())
        verdict = "likely" if low / top <= 1 / FULL and high / top >= PARTIAL else "unlikely"
        verdict = verdict if scaling(seen) < SEVERAL else "unlikely"
        why += f" {carried(seen)}"
    return Cause(
        LINK,
        verdict,
        why,
        "Eight connections between two nodes carry no more than that.",
        "iperf3 -c HOST -P 8",
    )


def connection_cause(seen: Observation, low: float, high: float) -> Cause:
    verdict: Verdict = "possible"
    trip = 2 * seen.latency
    needed = low * trip / 8
    why = f"At a round trip of {duration(trip)}, {num_bytes(needed)} in flight give this rate."
    if seen.window is not None:
        rate = connection_rate(inf, trip, seen.window, seen.connections)
        plural = counted(seen.connections, "connection")
        why = f"{plural} with a window of {num_bytes(seen.window)} carry {bit_rate(rate)}."
        verdict = "likely" if 0.5 * low <= rate <= 1.5 * high else "unlikely"
    elif needed < TYPICAL_WINDOW / 16:
        why += " A window is larger, so a processor that serves one socket is a better suspect."
    if seen.bandwidth is not None and low >= FULL * seen.bandwidth:
        verdict = "excluded"
    if len(seen.streams) > 1:
        fits = PARTIAL * low <= seen.streams[min(seen.streams)] <= high / PARTIAL
        verdict = "excluded" if scaling(seen) < SEVERAL else "likely" if fits else "possible"
        why = carried(seen)
    return Cause(
        CONNECTION,
        verdict,
        why,
        "One connection carries this rate, and eight carry several times as much. Then more "
        "sockets help: NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4.",
        "iperf3 -c HOST -P 1; iperf3 -c HOST -P 8",
    )


def interface_cause(low: float, high: float, claimed: float | None) -> Cause:
    fits = [
        rate
        for rate in NOMINAL
        if low <= PAYLOAD[1] * rate and high >= PAYLOAD[0] * rate and rate < (claimed or inf) * 0.99
    ]
    why = "No nominal rate below the claim is in the range."
    if fits:
        why = f"The range fits an interface of {' or '.join(map(bit_rate, fits))}."
    return Cause(
        INTERFACE,
        "likely" if fits and claimed is not None else "possible" if fits else "unlikely",
        why,
        "NCCL's log shows an interface other than the fast one.",
        "NCCL_DEBUG=INFO; sgp-run check network=nccl",
    )


def ring_cause(seen: Observation, nodes: int) -> Cause:
    low, high = seen.rates(nodes)
    rate = low if high == inf else high
    if rate == inf:
        return Cause(RING, "unlikely", "Latency explains the whole gap.", "", "")
    flat = seen.all_reduce_seconds(nodes, rate)
    first = seen.all_reduce_seconds(nodes, rate, over="nodes")
    return Cause(
        RING,
        "possible",
        f"It takes {flat / first:.3g} times as long as a ring of nodes that reduce first: at "
        f"{bit_rate(rate)}, {duration(flat)} instead of {duration(first)}. It compounds another "
        "cause.",
        f"With one device per node, the gap is {flat / first:.3g} times smaller.",
        "torchrun --nproc-per-node 1",
    )


def latency_cause(seen: Observation, nodes: int) -> Cause:
    rounds = seen.cluster(1e9).all_reduce_rounds(nodes)
    part = seen.all_reduce_seconds(nodes, 1e15) / seen.gap(nodes)
    needed = seen.gap(nodes) / rounds
    verdict: Verdict = "likely" if part > PARTIAL else "possible" if part > 0.1 else "unlikely"
    return Cause(
        LATENCY,
        verdict,
        f"{duration(seen.latency)} one way explain {percent(min(part, 1))} of the gap; to explain "
        f"all of it, each of the ring's {rounds} rounds would have to take {duration(needed)}.",
        "A model of half the size has the same gap; with a slow link it would have half.",
        "ping HOST (half of it is the latency)",
    )


def other_causes(seen: Observation, nodes: int) -> Iterator[Cause]:
    """Yield the causes outside the network, which do not depend on the model size."""
    gap, factor = seen.gap(nodes), seen.together[nodes] / seen.alone
    verdict, why = judged("possible", "", seen.loading, gap)
    yield Cause(
        "input loading",
        verdict,
        f"Loading would have to take {duration(gap)} longer per step on {nodes} nodes, for example "
        f"because of a shared file system.{why}",
        "The gap is gone if every step trains on the same batch in memory.",
        "one batch, loaded once, in your training loop",
    )
    wait = None if seen.slowest is None else max(0.0, seen.slowest - 1) * seen.alone
    verdict, why = judged("possible" if factor < 3 else "unlikely", "the others wait ", wait, gap)
    yield Cause(
        "a slow node",
        verdict,
        f"One node would have to be {factor:.3g} times slower than the one that was timed.{why}",
        "One node alone takes as long as all nodes together.",
        "the run on one node, on each node in turn",
    )
    yield Cause(
        "evaluation and checkpoints",
        "possible" if factor < 2 else "unlikely",
        f"They would have to take {duration(gap)} per step on average.",
        "The time between two steps without evaluation has no gap.",
        "the times of single steps in the log, not those of an epoch",
    )


def judged(verdict: Verdict, what: str, seconds: float | None, gap: float) -> tuple[Verdict, str]:
    """Return the verdict on a cause that takes ``seconds`` per step, and the reason as text.

    verdict: the verdict if ``seconds`` was not observed
    """
    if seconds is None:
        return verdict, ""
    share = seconds / gap
    result: Verdict = "likely" if share > PARTIAL else "possible" if share > 0.1 else "excluded"
    return result, f" Measured: {what}{duration(seconds)}, {percent(min(share, 1))} of the gap."


def text_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the paragraphs of a diagnosis: answer, rates, causes and assumptions."""
    seen = diagnosis.observation
    yield diagnosis.answer
    yield ""
    for nodes, (low, high) in diagnosis.rates.items():
        yield (
            f"{counted(nodes, 'node')}: {duration(seen.together[nodes])} per step, alone "
            f"{duration(seen.alone)}. Rate of a ring over {nodes * seen.devices} devices with "
            f"{num_bytes(seen.num_bytes)}: {span(low, high)}, from all communication hidden to "
            "none."
        )
    if diagnosis.causes:
        yield ""
        yield "Causes, and the observation that would confirm each:"
    for cause in diagnosis.causes:
        yield f"- {cause.name}: {cause.verdict}. {cause.why}"
        if cause.observation:
            yield f"  Confirmed if: {cause.observation}"
            yield f"  Command: {cause.command}"
    if seen.assumed:
        yield ""
        yield "Assumed:"
        yield from (f"- {assumption}" for assumption in seen.assumed)
    low, high = diagnosis.rates[diagnosis.nodes]
    rate = low if high == inf else high
    a_rate = diagnosis.one_rate and diagnosis.rate_explains is not False
    if seen.gap(diagnosis.nodes) > 0 and rate != inf and a_rate and seen.model:
        yield ""
        yield (
            f"Which method would help at this rate: sgp-run plan {seen.model} "
            f"step={seen.alone:.3g}s nodes={diagnosis.nodes} devices={seen.devices} "
            f"bandwidth={rate / 1e9:.3g}Gbit/s cluster.collectives.ring_over=devices "
            "cluster.collectives.overlap=0"
        )
