"""Graphs that cannot work are refused before a run, by step and edge; those that can are accepted,
and large ones quickly enough.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from helpers.experiments import make_experiment
from helpers.graphs import Literal
from helpers.refusals import refusal
from helpers.tiny import run

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.ad_psgd import ADPSGD
from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.algorithms.hybrid import Hybrid
from sgp_runner.algorithms.osgp import OSGP
from sgp_runner.algorithms.sgp import SGP
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.cli.main import main
from sgp_runner.config.experiment import Experiment
from sgp_runner.core.optim import SGD, Constant
from sgp_runner.topology.from_file import KEY, Edges
from sgp_runner.topology.graphs import (
    BidirectionalExponential,
    Circulant,
    Complete,
    DirectedExponential,
    RandomMatching,
    Ring,
    StaticExponential,
    Topology,
)
from sgp_runner.topology.verify import Need, topologies, verify
from sgp_runner.utils.errors import ConfigError

OPTIM = SGD(Constant())


RING = ((1,), (2,), (0,))
BAD: dict[str, tuple[Literal, int, Need, str]] = {
    "not received": (
        Literal((RING, RING), (((2,), (0,), (1,)), ((2,), (0,), ()))),
        3,
        "columns",
        "in step 1 node 1 sends to node 2, which does not receive it.",
    ),
    "not sent": (
        Literal((((1,), ()),), (((1,), (0,)),)),
        2,
        "columns",
        "in step 0 node 0 waits for node 1, which does not send to it.",
    ),
    "received twice": (
        Literal((((1,), (0,)),), (((1, 1), (0,)),)),
        2,
        "columns",
        "in step 0 node 0 waits for node 1, which does not send to it.",
    ),
    "to itself": (
        Literal((((1, 0), (0,)),)),
        2,
        "columns",
        "in step 0 node 0 sends to itself; nodes are 0 to 1.",
    ),
    "to nobody": (
        Literal((((1,), (5,)),)),
        2,
        "columns",
        "in step 0 node 1 sends to node 5, which does not exist; nodes are 0 to 1.",
    ),
    "twice": (
        Literal((((1,), (0, 0)),)),
        2,
        "columns",
        "in step 0 the edge 1 -> 0 is listed twice.",
    ),
    "one way": (
        Literal((((1,), (2,), ()),)),
        3,
        "columns",
        "in its only step no path leads from node 1 to node 0",
    ),
    "two parts": (
        Literal((((1,), (0,), (3,), (2,)), ((), (), (3,), ()))),
        4,
        "columns",
        "over all its 2 steps no path leads from node 0 to node 2",
    ),
    "a star": (
        Literal((((1, 2), (0,), (0,)),)),
        3,
        "doubly stochastic",
        (
            "it needs a doubly stochastic mixing matrix, but in step 0 row 0 sums to 1.33: give "
            "all nodes as many peers"
        ),
    ),
    "odd with odd": (
        Literal((((1,), (0,), (3,), (2,)), ((2,), (3,), (0,), (1,)))),
        4,
        "odd with even",
        (
            "it needs edges between odd and even ranks only: in step 1 there is 0 -> 2; use "
            "bipartite, ring or such edges."
        ),
    ),
    "a one-way pair": (
        Literal((((1,), (2,), (3,), (0,)),)),
        4,
        "odd with even",
        "it needs edges in both directions: in step 0 nodes 0 and 1 have only one.",
    ),
    "a lonely odd rank": (
        Literal((((1,), (0,), (), ()), ((3,), (2,), (1,), (0,)))),
        4,
        "odd with even",
        "it needs a peer for every odd rank: in step 0 node 3 has none.",
    ),
    "unbalanced": (
        Literal((((1, 2), (2,), (0,)),)),
        3,
        "balanced",
        (
            "it needs equal numbers of sent and received messages: in step 0 node 0 sends 2 and "
            "receives 1; use network=gloo."
        ),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_graph_is_refused_by_step_and_edge(name: str) -> None:
    topology, size, needs, sentence = BAD[name]
    error = refusal(verify, topology, size, needs, "it")
    assert str(error).startswith(f"algo.topology: {sentence}")


def test_what_each_algorithm_needs() -> None:
    star = Literal((((1, 2, 3), (0,), (0,), (0,)),), symmetric=True)
    for algo in (SGP(star), OSGP(star), SlowMo(SGP(star))):
        algo.check(4, OPTIM)
    refused: list[tuple[Algorithm, str, str]] = [
        (DPSGD(star), "algo.topology", "D-PSGD needs a doubly stochastic mixing matrix"),
        (
            ADPSGD(star),
            "algo.topology",
            "AD-PSGD needs edges between odd and even ranks only: in step 0 there is 0 -> 2",
        ),
        (
            SlowMo(DPSGD(star)),
            "algo.base.topology",
            "D-PSGD needs a doubly stochastic mixing matrix",
        ),
        (
            Hybrid(SGP(Ring()), DPSGD(star), 1.0),
            "algo.then.topology",
            "D-PSGD needs a doubly stochastic mixing matrix",
        ),
        (
            Hybrid(SlowMo(DPSGD(star)), SGP(Ring()), 1.0),
            "algo.first.base.topology",
            "D-PSGD needs a doubly stochastic mixing matrix",
        ),
    ]
    for algo, key, sentence in refused:
        assert str(refusal(algo.check, 4, OPTIM)).startswith(f"{key}: {sentence}")
    assert list(topologies(Hybrid(SlowMo(DPSGD(star)), SGP(Ring()), 1.0))) == [star, Ring()]


def test_every_phase_of_a_schedule_is_proved() -> None:
    assert DirectedExponential(peers={0: 2, 30: 1}).phases(9) == [(0.0, 2), (30.0, 4)]
    verify(DirectedExponential(peers={0: 2, 30: 1}), 9, "doubly stochastic")


@pytest.mark.parametrize("topology", [DirectedExponential(), RandomMatching()])
def test_thousands_of_nodes(topology: Topology) -> None:
    verify(topology, 4096, "doubly stochastic")


# Edges from a file.


def written(folder: Path, text: str | bytes) -> str:
    path = folder / "graph.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_a_file_of_edges_is_a_graph(tmp_path: Path) -> None:
    graph = Edges(
        written(tmp_path, "# two steps\n0 0 1\n0 1 2\n\n0 2 0 # back\n1 0 2\n1 2 1\n1 1 0\n")
    )
    assert graph.phases(3) == [(0.0, 2)]
    assert [[graph.out_peers(rank, 3, step) for rank in range(3)] for step in range(3)] == [
        [(1,), (2,), (0,)],
        [(2,), (0,), (1,)],
        [(1,), (2,), (0,)],
    ]
    assert [graph.in_peers(rank, 3, 1) for rank in range(3)] == [(1,), (2,), (0,)]
    assert not graph.symmetric
    verify(graph, 3, "doubly stochastic")
    assert Edges(written(tmp_path, "0 1\n1 0\n2 1\n1 2\n")).symmetric


def test_peers_are_in_the_order_of_the_lines(tmp_path: Path) -> None:
    text = "# a comment\r\n 1 3\r\n\n1\t0 # more\n0 1\n1 2\n2 1\n3 1 "
    graph = Edges(written(tmp_path, text)).graph
    assert graph.out == ({1: (3, 0, 2), 0: (1,), 2: (1,), 3: (1,)},)
    assert graph.into == ({3: (1,), 0: (1,), 1: (0, 2, 3), 2: (1,)},)


def test_a_hundred_thousand_edges_are_read(tmp_path: Path) -> None:
    hops = [1, *range(500, 549)]
    lines = [f"{node} {(node + hop) % 2000}" for node in range(2000) for hop in hops]
    graph = Edges(written(tmp_path, "\n".join(lines)))
    verify(graph, 2000, "balanced")
    assert graph.out_peers(1999, 2000, 7) == tuple((1999 + hop) % 2000 for hop in hops)


def test_settings_are_refused_before_the_file_is_parsed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "0 1 2 3 4\n")
    overrides = ["algo.topology=edges", f"algo.topology.path={path}", "model=quadratic"]
    assert main([*overrides, "batch_size=0"]) == 2
    assert capsys.readouterr().err == "sgp-run: batch_size: 0 must be at least 1.\n"
    assert main(overrides) == 2
    assert "line 1: '0 1 2 3 4' is neither" in capsys.readouterr().err


def test_it_trains_as_the_graph_that_it_writes_down(tmp_path: Path) -> None:
    lines = [f"{step} {rank} {(rank + 2**step) % 6}" for step in range(3) for rank in range(6)]
    edges, built_in = Edges(written(tmp_path, "\n".join(lines))), DirectedExponential()
    assert np.array_equal(run(SGP(edges), 6, 7).x, run(SGP(built_in), 6, 7).x)


BAD_FILES = [
    ("", "graph.txt has no edges; write 'src dst' or 'step src dst' on each line."),
    ("# nothing\n", "has no edges"),
    ("0 1\n1 0 2 3\n", "line 2: '1 0 2 3' is neither 'src dst' nor 'step src dst'."),
    ("0\n", "line 1: '0' is neither"),
    ("0 -1\n", "line 1: '0 -1' is neither"),
    ("0 1.5\n", "line 1: '0 1.5' is neither"),
    ("0 ²\n", "line 1: '0 ²' is neither"),
    ("0 99999999999999999999\n", "line 1: '0 99999999999999999999' is neither"),
    (b"\xff\xfe0 1\n", "is neither"),
    ("0 1\n0 1 0\n", "line 2: either every line has a step or none does."),
    (
        "0 1\n1 1\n",
        "line 2: in step 0 node 1 sends to itself; remove the edge, as a node always "
        "keeps its own share.",
    ),
    ("0 1\n1 0\n0 1\n", "line 3: step 0 repeats the edge 0 -> 1 of line 1."),
    (
        "#\n\n0 1\n1 0\n2 3\n1 0\n2 3\n0 1\n",
        "line 6: step 0 repeats the edge 1 -> 0 of line 4.",
    ),
    ("0 1\r\n#\r\n2 2\r\n", "line 3: in step 0 node 2 sends to itself"),
    ("0 1\n1 0 # back\n0 1 0\n0 x\n", "line 3: either every line has a step or none does."),
    ("0 0 1\n2 1 0\n", "steps are numbered 0, 1, 2, ...; step 1 has no edge."),
    ("0 1\n1 2\n2 0\n0 4\n4 0\n", "step 0 has the edge 0 -> 4, but nodes=4 are numbered 0 to 3."),
    ("0 1\n1 2\n2 0\n", "node 3 has no edge, but each of nodes=4 needs one."),
]


@pytest.mark.parametrize(
    ("text", "sentence"), BAD_FILES, ids=[repr(text)[:30] for text, _ in BAD_FILES]
)
def test_a_bad_file_is_refused_by_line(text: str | bytes, sentence: str, tmp_path: Path) -> None:
    error = refusal(lambda: Edges(written(tmp_path, text)).check(4))
    assert error.key == KEY and sentence in error.sentence and "\n" not in error.sentence


def test_the_content_of_the_file_belongs_to_the_run(tmp_path: Path) -> None:
    def made(text: str, *overrides: str) -> Experiment:
        path = written(tmp_path, text)
        return make_experiment(
            tmp_path / text[:3],
            "nodes=3",
            "algo.topology=edges",
            f"algo.topology.path={path}",
            *overrides,
        )

    one, other = made("0 1\n1 2\n2 0\n"), made("1 2\n2 0\n0 1\n1 0\n")
    config = one.config["algo"]
    assert isinstance(config, dict)
    assert config["topology"]["sha256"] == hashlib.sha256(b"0 1\n1 2\n2 0\n").hexdigest()
    assert one.name != other.name
    with pytest.raises(
        ConfigError,
        match=r"^algo.topology.sha256: \S+/graph.txt has different contents, with the checksum ",
    ):
        made("2 0\n0 1\n1 2\n", f"algo.topology.sha256={config['topology']['sha256']}")


@pytest.mark.parametrize("size", [1, 2, 3, 8, 12, 13])
@pytest.mark.parametrize(
    "graph",
    [
        *(DirectedExponential(peers) for peers in (1, 2, 3)),
        *(BidirectionalExponential(), StaticExponential(), Ring(), Complete()),
    ],
)
def test_node_0_stands_for_all_nodes_of_a_graph_of_hops(graph: Circulant, size: int) -> None:
    for step in range(graph.phases(size)[0][1]):
        everyone = range(size)
        hops = {peer for peer in graph.out_peers(0, size, step)}
        for rank in everyone:
            out = {(peer - rank) % size for peer in graph.out_peers(rank, size, step)}
            into = {(rank - peer) % size for peer in graph.in_peers(rank, size, step)}
            assert out == into == hops


@dataclass(frozen=True)
class EvenHops(Circulant):
    """Two circles that never meet."""

    symmetric: ClassVar[bool] = False

    def hops(self, size: int, step: int) -> tuple[int, ...]:
        return (2,)


@dataclass(frozen=True)
class HeavyHops(EvenHops):
    share: float = 0.6

    def hops(self, size: int, step: int) -> tuple[int, ...]:
        return 1, 2

    def weights(self, rank: int, size: int, step: int) -> tuple[float, ...]:
        return (self.share,) * 2


@pytest.mark.parametrize(
    ("graph", "size", "how", "sentence"),
    [
        (EvenHops(), 8, {}, "in its only step no path leads from node 0 to node 1"),
        (
            HeavyHops(),
            9,
            {"weighted": True},
            "in step 0 the weights of node 0 must be positive and",
        ),
        (HeavyHops(share=0.4), 9, {}, "in step 0 the graph gives node 0 unequal ones"),
        (Ring(), 5, {"needs": "odd with even"}, "edges between odd and even ranks only: in step 0"),
    ],
)
def test_a_graph_of_hops_that_cannot_work_is_refused_like_any_other(
    graph: Circulant, size: int, how: dict[str, Any], sentence: str
) -> None:
    verify(EvenHops(), 9)
    with pytest.raises(ConfigError, match=sentence):
        verify(graph, size, **how)


def test_the_work_of_verifying_a_graph_of_hops_does_not_grow_with_its_nodes() -> None:
    asked = []

    class Counted(Circulant):
        symmetric = False

        def hops(self, size: int, step: int) -> tuple[int, ...]:
            asked.append(step)
            return (1,)

    verify(Counted(), 2)
    few = len(asked)
    verify(Counted(), 2**20)
    assert len(asked) == 2 * few
