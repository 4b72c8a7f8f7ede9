"""NCCL's rules, on logs written by hand."""

from __future__ import annotations

import pytest
from gpu_rig.nccl_order import Call, Execution, Logs, Tensor, WouldFail, check, unsuitable


def reduce(name: str, members: list[int], num_bytes: int = 4) -> Call:
    return Call(name, members, [Tensor("all_reduce", num_bytes)])


def swap(members: list[int], *peers: int, num_bytes: int = 4) -> Call:
    """To each peer a message and back."""
    verbs = [(verb, peer) for peer in peers for verb in ("send", "recv")]
    return Call("all", members, [Tensor(verb, num_bytes, peer) for verb, peer in verbs])


PAIR, FOUR = [0, 1], [0, 1, 2, 3]


def failure(logs: Logs, one_queue: bool = False) -> str:
    with pytest.raises(WouldFail) as caught:
        Execution(logs, one_queue).run()
    return str(caught.value)


def test_equal_logs_end() -> None:
    calls = [reduce("all", PAIR), reduce("other", PAIR, 8), reduce("all", PAIR, 12)]
    check({0: calls, 1: calls})
    check({0: [swap(PAIR, 1)], 1: [swap(PAIR, 0)]})
    check({0: [], 1: []})


def test_a_collective_waits_for_all_members() -> None:
    assert failure({0: [reduce("all", PAIR)], 1: []}) == (
        "stuck on one queue per communicator: "
        "process 0 waits in all_reduce of 4 bytes on all [0, 1], with 0 calls behind it"
    )


def test_collectives_of_different_sizes_or_kinds_fail() -> None:
    assert failure({0: [reduce("all", PAIR)], 1: [reduce("all", PAIR, 8)]}) == (
        "process 0: all_reduce of 4 bytes on all [0, 1]; "
        "process 1: all_reduce of 8 bytes on all [0, 1]"
    )
    assert "process 1: all_gather of 4 bytes" in failure(
        {0: [reduce("all", PAIR)], 1: [Call("all", PAIR, [Tensor("all_gather", 4)])]}
    )


def test_a_swapped_order_in_one_communicator_fails() -> None:
    """A collective waits for one that is behind a batch, and the batch for one behind it."""
    logs = {0: [reduce("all", PAIR), swap(PAIR, 1)], 1: [swap(PAIR, 0), reduce("all", PAIR)]}
    assert failure(logs) == (
        "stuck on one queue per communicator: "
        "process 0 waits in all_reduce of 4 bytes on all [0, 1], with 1 calls behind it; "
        "process 1 waits in send of 4 bytes to 0 + recv of 4 bytes from 0 on all [0, 1], "
        "with 1 calls behind it"
    )


def test_a_swapped_order_of_two_communicators_fails_on_one_queue_alone() -> None:
    logs = {
        0: [reduce("a", PAIR), reduce("b", PAIR)],
        1: [reduce("b", PAIR), reduce("a", PAIR)],
    }
    Execution(logs, one_queue=False).run()
    assert failure(logs, one_queue=True).startswith("stuck on one queue per GPU: process 0 ")


def test_a_circle_of_two_nodes_of_two_devices_fails_on_one_queue_alone() -> None:
    """As exchanges that start on some devices before the average of a gradient, on some after."""
    exchanges = {rank: swap(FOUR, (rank + 2) % 4) for rank in FOUR}
    means = {rank: reduce(f"node {rank // 2}", FOUR[rank // 2 * 2 :][:2]) for rank in FOUR}
    late = {
        rank: [means[rank], exchanges[rank]] if rank in (1, 2) else [exchanges[rank], means[rank]]
        for rank in FOUR
    }
    Execution(late, one_queue=False).run()
    assert failure(late, one_queue=True).count("waits in") == 4
    for rank in (2, 3, 0):  # one late device delays its node, and the other node
        late[rank].reverse()
    check(late)


def test_a_batch_ends_in_any_order_of_its_messages() -> None:
    check({0: [swap(PAIR, 1)], 1: [Call("all", PAIR, swap(PAIR, 0).tensors[::-1])]})
    check({rank: [swap(FOUR[:3], (rank + 1) % 3, (rank + 2) % 3)] for rank in range(3)})


def test_sends_before_receives_fail() -> None:
    pieces = {
        rank: [Call("all", PAIR, [tensor]) for tensor in swap(PAIR, 1 - rank).tensors]
        for rank in PAIR
    }
    assert failure(pieces).startswith(
        "stuck on one queue per communicator: process 0 waits in send"
    )
    pieces[1].reverse()
    check(pieces)


def test_messages_of_different_lengths_fail() -> None:
    assert failure({0: [swap(PAIR, 1)], 1: [swap(PAIR, 0, num_bytes=8)]}) == (
        "process 0: send of 4 bytes to 1 + recv of 4 bytes from 1 on all [0, 1]; "
        "process 1: send of 8 bytes to 0 + recv of 8 bytes from 0 on all [0, 1]"
    )


def test_messages_of_one_pair_keep_their_order() -> None:
    out = Call("all", PAIR, [Tensor("send", 4, 1), Tensor("send", 8, 1)])
    into = Call("all", PAIR, [Tensor("recv", 4, 0), Tensor("recv", 8, 0)])
    check({0: [out], 1: [into]})
    assert "recv of 8 bytes" in failure({0: [out], 1: [into._replace(tensors=into.tensors[::-1])]})


def test_a_batch_meets_no_batch_of_another_communicator() -> None:
    here, there = swap(PAIR, 1), swap(PAIR, 0)._replace(communicator="other")
    assert failure({0: [here], 1: [there]}).count("waits in") == 2


def test_tensors_with_gaps_or_between_words_are_unsuitable() -> None:
    gaps, between = {"contiguous": False}, {"aligned": False}
    logs = {
        0: [reduce("all", PAIR)],
        1: [Call("all", PAIR, [Tensor("all_reduce", 4, **fault)]) for fault in (gaps, between)],
    }
    assert unsuitable(logs) == ["process 1: all_reduce of 4 bytes on all [0, 1]"] * 2
