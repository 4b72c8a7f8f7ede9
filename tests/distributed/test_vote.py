"""Every order of deaths, answers, decisions and reconnections of four ranks, explored on the code
that real ranks run.

A state of the model is the store and, of each rank, its `Vote` and what its main thread does:

* ``runs`` in its membership, ``votes``, has made a ``proposal``, ``connects`` to the others,
* or has ended: ``done``, ``failed``, ``evicted`` or ``dead``.

From each state every possible next one is visited. A rank dies at any time; its launching process
notices later, or a connection breaks first. Reconnecting succeeds as soon as all members have
published their addresses, even if one of them has died since.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sgp_runner.core.survivors import LossDetection
from sgp_runner.distributed import vote as vote_module
from sgp_runner.distributed.vote import DEAD, Vote
from sgp_runner.utils.errors import MembershipChanged

RANKS = range(4)
AT_WORK = ("runs", "votes", "proposal", "connects")


class Entries:
    """A store whose content can be copied."""

    def __init__(self, content: frozenset[tuple[str, str]]) -> None:
        self.content = dict(content)

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self.content for key in keys)

    def get(self, key: str) -> bytes:
        return self.content[key].encode()

    def set(self, key: str, value: str) -> None:
        self.content[key] = value

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        assert not expected
        return self.content.setdefault(key, value).encode()


@dataclass(frozen=True)
class Member:
    """One rank. ``proposal``: that it is about to make."""

    does: str = "runs"
    number: int = 0
    members: tuple[int, ...] = tuple(RANKS)
    answered: bool = False
    proposal: tuple[int, ...] = ()


State = tuple[frozenset[tuple[str, str]], tuple[Member, ...]]
START: State = (frozenset(), (Member(),) * len(RANKS))


class Step:
    """One rank's action in a state, made with its `Vote`."""

    def __init__(self, state: State, rank: int) -> None:
        self.entries, self.all, self.rank = Entries(state[0]), state[1], rank
        self.me = state[1][rank]
        self.vote = Vote(cast("Any", self.entries), rank, len(RANKS), LossDetection(5, 30))
        self.vote.number, self.vote.answered = self.me.number, self.me.answered
        self.vote.members = list(self.me.members)

    def now(self, does: str, proposal: Sequence[int] = ()) -> State:
        vote = self.vote
        me = Member(does, vote.number, tuple(vote.members), vote.answered, tuple(proposal))
        return (
            frozenset(self.entries.content.items()),
            (*self.all[: self.rank], me, *self.all[self.rank + 1 :]),
        )


def address(member: Member, rank: int) -> str:
    return f"address {member.number} {rank}"


def watch(state: State, rank: int) -> State:
    """The watchdog thread of a rank looks into the store."""
    step = Step(state, rank)
    vote, does = step.vote, step.me.does
    if vote.store.check(["failed"]):
        return step.now("failed")
    if (why := vote.suspicion(0)) is not None:
        vote.start(why)
    if rank != 0 and vote.concluded and does != "proposal":
        return step.now("done")
    if vote.answer() and does != "proposal":
        does = "votes"
    return step.now(does, step.me.proposal)


def lose_a_connection(state: State, rank: int) -> State:
    step = Step(state, rank)
    step.vote.start("a connection is lost")
    step.vote.answer()
    return step.now("votes")


def propose(state: State, rank: int) -> State:
    step = Step(state, rank)
    gone, _ = step.vote.settle(list(step.me.proposal))
    if rank in gone:
        return step.now("evicted")
    assert gone, "a vote without a loss"
    if 0 in gone:
        step.entries.set("failed", "")
        return step.now("failed")
    step.entries.set(f"address {step.vote.number} {rank}", "")
    return step.now("connects")


def die(state: State, rank: int) -> State:
    return Step(state, rank).now("dead")


def chances(state: State, deaths: int) -> Iterator[State]:
    """Yield the states after what may happen: a death, and a connection that breaks.

    deaths: how many ranks may die in all
    """
    ranks = state[1]
    for rank in RANKS:
        me = ranks[rank]
        if me.does in AT_WORK and len(names_of(ranks, "dead")) < deaths:
            yield die(state, rank)
        if me.does in ("runs", "connects") and any(left(ranks[other], me) for other in me.members):
            yield lose_a_connection(state, rank)


def next_states(state: State, slow: bool) -> Iterator[State]:
    """Yield the states after one action that is going to happen.

    slow: whether the time of a vote may end before all answers are in
    """
    entries, ranks = Entries(state[0]), state[1]
    dead = names_of(ranks, "dead")
    if dead and entries.content.get(DEAD) != json.dumps(dead):
        entries.set(DEAD, json.dumps(dead))
        yield frozenset(entries.content.items()), ranks
    for rank in RANKS:
        me = ranks[rank]
        if me.does not in AT_WORK:
            continue
        yield watch(state, rank)
        step = Step(state, rank)
        if me.does == "votes":
            if entries.check(["failed"]):
                yield step.now("failed")
            elif step.vote.concluded and not step.vote.decided:
                yield step.now("done")
            elif step.vote.complete() or slow:
                yield step.now("proposal", step.vote.present())
        elif me.does == "proposal":
            yield propose(state, rank)
        elif me.does == "connects" and entries.check(
            [address(me, member) for member in me.members]
        ):
            yield step.now("runs")
        elif me.does == "runs" and rank == 0 and all_run(ranks, me):
            step.vote.conclude()
            yield step.now("done")


def left(other: Member, me: Member) -> bool:
    """Whether ``other`` has left the connections that ``me`` has."""
    return other.does not in AT_WORK or (other.number, other.does in ("votes", "proposal")) > (
        me.number,
        False,
    )


def all_run(ranks: Sequence[Member], me: Member) -> bool:
    return all(
        (ranks[member].does, ranks[member].number) == ("runs", me.number) for member in me.members
    )


def explore(deaths: int, slow: bool) -> tuple[set[State], list[State]]:
    """Return all reachable states, and those where nothing more is going to happen."""
    seen, ends, todo = {START}, [], [START]
    while todo:
        state = todo.pop()
        after = {*next_states(state, slow)} - {state}
        if not after:
            ends.append(state)
        fresh = {*after, *chances(state, deaths)} - seen
        seen |= fresh
        todo += fresh
    return seen, ends


def names_of(ranks: Sequence[Member], *does: str) -> list[int]:
    return [rank for rank in RANKS if ranks[rank].does in does]


def decisions(entries: frozenset[tuple[str, str]]) -> list[set[int]]:
    return [set(json.loads(value)) for key, value in entries if key.endswith("present")]


@pytest.mark.parametrize(("deaths", "slow"), [(3, False), (2, True)])
def test_the_living_agree_in_every_order_of_deaths(deaths: int, slow: bool) -> None:
    seen, ends = explore(deaths, slow)
    for _, ranks in seen:
        for number in range(len(RANKS)):
            here = [rank for rank in ranks if rank.number == number]
            assert len({rank.members for rank in here if rank.does in ("runs", "connects")}) <= 1
    lost = set()
    for entries, ranks in ends:
        assert not names_of(ranks, *AT_WORK), "a rank waits for ever"
        members = {*ranks[0].members}
        if ("concluded", "") in entries:
            lost.add(frozenset(RANKS) - members)
            assert members <= {*names_of(ranks, "done", "dead")}
        else:
            assert ranks[0].does == "dead" or any(
                0 not in decision for decision in decisions(entries)
            )
        if not slow:
            assert not names_of(ranks, "evicted")
            assert members | {*names_of(ranks, "dead")} == {*RANKS}
    assert len(lost) == 8  # all subsets of ranks 1, 2 and 3


def test_a_decision_that_ignores_known_deaths_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was once: a rank that had answered and died was agreed on, and waited for."""
    monkeypatch.setattr(Vote, "dead", lambda vote: [])
    _, ends = explore(deaths=2, slow=True)
    assert any(names_of(ranks, "connects") == [0, 3] for _, ranks in ends)


def test_a_rank_without_a_heartbeat_is_suspected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 sends its last heartbeat at 10 s; others are silent for 30 s at most."""
    clock = SimpleNamespace(seconds=0.0)
    clock.monotonic = lambda: clock.seconds
    monkeypatch.setattr(vote_module, "time", clock)
    store = cast("Any", Entries(frozenset()))
    votes = [Vote(store, rank, 2, LossDetection(5, 30)) for rank in range(2)]
    found = []
    for seconds in (0, 10, 20, 41):
        clock.seconds = float(seconds)
        votes[0].heartbeat()
        if seconds <= 10:
            votes[1].heartbeat()
        found.append(votes[0].suspicion(waited=31))
    assert found == [None, None, None, "rank 1 has sent no heartbeat for 31 s"]
    assert votes[0].suspicion(waited=29) is None and votes[0].heard == {}
    votes[0].conclude()
    with pytest.raises(MembershipChanged, match="^the run has concluded$"):
        votes[1].decide()
