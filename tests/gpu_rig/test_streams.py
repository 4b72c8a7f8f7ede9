"""No race on the streams of pretend GPUs; every seeded race is found."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from gpu_rig import judged
from gpu_rig.judged import CUDA, pretend_cuda, running
from gpu_rig.pretend_gpu import Log
from gpu_rig.pretend_network import Work
from gpu_rig.stream_runs import STEPS, run_on_pretend_gpus
from gpu_rig.streams import Gpu

from sgp_runner.core.prefetch import Prefetcher
from sgp_runner.core.worker import Worker
from sgp_runner.distributed.gloo_transport import GlooTransport
from sgp_runner.distributed.gradients import Gradients
from sgp_runner.distributed.nccl_transport import NcclTransport, TransferBatch
from sgp_runner.distributed.torch_collectives import TorchCollectives
from sgp_runner.distributed.torch_world import TorchWorld
from sgp_runner.utils.errors import RankFailed

FOUR = ("nodes=4",)
SHARDS = ("nodes=2", "gpus_per_node=2")
PARTS = (*SHARDS, "network.shard=state")
LEADERS = (*SHARDS, "network.gossip=leader")
PINNED = ("network=gloo", "network.device=cuda", "network.shared_memory=false", *FOUR)
SHARED = ("network=gloo", "network.device=cuda", *FOUR)
FAST = {
    "sgp": FOUR,
    "osgp tau 2": (*FOUR, "algo.tau=2"),
    "pipe_sgd": FOUR,
    "slowmo": (*FOUR, "algo.tau=3"),
    "ar_sgd": FOUR,
    "ad_psgd": FOUR,
    "async_diloco": ("nodes=3", "algo.period=2"),
    "sgp over pinned memory": PINNED,
    "osgp in shards": SHARDS,
    "osgp in parts": PARTS,
    "sgp over shared memory": SHARED,
    "hybrid over shared memory": (*SHARED, "algo.switch_epoch=0.5"),
    "ad_psgd by leaders": SHARDS,
}
SLOW = {
    "sgp complete": (*FOUR, "topology@algo.topology=complete"),
    "osgp": FOUR,
    "osgp released": (*FOUR, "algo.layout=released"),
    "d_psgd": FOUR,
    "diloco": (*FOUR, "algo.period=3"),
    "diloco eager": (*FOUR, "algo.period=2", "algo.overlap=eager"),
    "streaming_diloco": (*FOUR, "algo.period=4", "algo.delay=2"),
    "pipe_sgd quantize8": (*FOUR, "algo.compression=quantize8"),
    "noloco": (*FOUR, "algo.period=2"),
    "gradient_tracking": FOUR,
    "gossip_pga": (*FOUR, "algo.period=3"),
    "powersgd": (*FOUR, "algo.start=1"),
    "acp_sgd": FOUR,
    "des_loc": (*FOUR, "algo.period=2"),
    "onebit_adam": (*FOUR, "algo.warmup_epochs=0.1"),
    "zero_one_adam": (*FOUR, "algo.freeze_epochs=0.2", "algo.kappa=1"),
    "ef_sign": FOUR,
    "acco": FOUR,
    "accum_adam": (*FOUR, "algo.accumulate=2"),
    "qg_dsgdm": FOUR,
    "d_squared": FOUR,
    "choco_sgd bf16": (*FOUR, "algo.codec=bf16"),
    "local_sgd": (*FOUR, "algo.tau=3"),
    "hybrid": (*FOUR, "algo.switch_epoch=0.5"),
    "a2cid2": FOUR,
    "gap_aware": ("nodes=3",),
    "halos": ("nodes=3", "algo.regions=2", "algo.period=2", "algo.arrivals=1"),
    "rennala": ("nodes=3",),
    "ringleader": ("nodes=3",),
    "ringmaster stop": ("nodes=3", "algo.stop=true"),
    "relay_sgd": FOUR,
    "swarm_sgd": FOUR,
    "ps_sgd": ("nodes=3",),
    "osgp over pinned memory": PINNED,
    "pipe_sgd over pinned memory": PINNED,
    "slowmo over pinned memory": (*PINNED, "algo.tau=3"),
    "choco_sgd over pinned memory": (*PINNED, "algo.codec=bf16"),
    "sgp in parts": PARTS,
    "pipe_sgd in parts": (*PARTS, "algo.clip=0.1"),
    "slowmo in parts": (*PARTS, "algo.tau=3"),
    "ar_sgd in parts": PARTS,
    "streaming_diloco in parts": (*PARTS, "algo.period=4", "algo.delay=2", "algo.codec=int8"),
    "sgp in shards": SHARDS,
    "pipe_sgd in shards": SHARDS,
    "slowmo in shards": (*SHARDS, "algo.tau=3"),
    "ar_sgd in shards": SHARDS,
    "noloco in shards": (*SHARDS, "algo.period=2"),
    "osgp over shared memory": SHARED,
    "sgp with weights over shared memory": (*SHARED, "nodes=5", "algo.topology=base"),
    "d_psgd over shared memory": SHARED,
    "ad_psgd over shared memory": SHARED,
    "gradient_tracking over shared memory": SHARED,
    "sgp by leaders": LEADERS,
    "ar_sgd by leaders": LEADERS,
    "gap_aware by leaders": SHARDS,
    "async_diloco by leaders": (*SHARDS, "algo.period=2"),
}
CASES = {**FAST, **SLOW}


def words(name: str) -> tuple[str, ...]:
    return (f"algo={name.split(maxsplit=1)[0]}", *CASES[name])


@pytest.mark.parametrize(
    "more",
    ["slowmo algo.tau=3", "streaming_diloco algo.period=4 algo.delay=2 algo.codec=int8"],
)
def test_collectives_of_gloo_copy_through_pinned_memory(
    more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host waits for an event before gloo reads a copy, and for no copy back."""
    log = Log()
    monkeypatch.setattr(judged, "Log", lambda: log)
    assert run_on_pretend_gpus(*PINNED, *f"algo={more}".split()).races == {}
    assert not any("torch_collectives.py" in where for why, where in log.syncs if "copy" in why)
    assert any("torch_collectives.py" in place for place in log.launches)


@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_no_algorithm_has_a_race(name: str) -> None:
    outcome = run_on_pretend_gpus(*words(name))
    assert outcome.races == {}
    assert outcome.accesses.keys() & {"exchange", "all-reduce", "host send"}
    if "shared memory" in name:  # to which the host copies what the device has copied to it
        assert outcome.accesses["host aten.copy_.default"] >= STEPS
    one = outcome.parameters[0]
    assert one is not None and one.isfinite().all()
    if "gpus_per_node=2" in CASES[name] and (other := outcome.parameters[1]) is not None:
        assert torch.equal(one, other)


def seeded(owner: type, name: str, line: str, instead: str) -> Any:
    """Replace a line of a method."""
    method = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(method))
    assert source.count(line) == 1, f"{owner.__name__}.{name} has no line {line}: seed another bug"
    code = compile(
        source.replace(line, instead),
        inspect.getsourcefile(method) or "",
        "exec",
        __future__.annotations.compiler_flag,
    )
    names: dict[str, Any] = {}
    exec(code, method.__globals__, names)
    return mock.patch.object(owner, name, names[name])


async def late_message(worker: Worker) -> None:
    """Free a message before the start of an exchange whose messages were written before."""
    x, other = worker.params, 1 - worker.rank
    worker.comm.send(other, x.clone())
    message = await worker.comm.recv(other)
    worker.comm.send(other, x.clone())
    x += message
    del message
    x += await worker.comm.recv(other)


async def late_gradient(worker: Worker) -> None:
    """Free a gradient before the start of one whose parameters were written before."""
    gradients: Gradients = worker.runtime.gradients  # type: ignore[attr-defined]
    x = worker.params
    g, _ = gradients.local_async(x, 0)()
    compute = gradients.local_async(x.clone(), 1)
    x += g
    del g
    compute()


# A line of a method, what replaces it, the run, and the accesses that are then without order.
SEEDED = {
    "messages not written": (
        (NcclTransport, "side_stream", "self.stream.wait_event(exchange.written)", "pass"),
        "sgp",
        "aten.copy_.default at core/gossip.py split, then "
        "exchange at distributed/nccl_transport.py start",
    ),
    "messages not received": (
        (TransferBatch, "finish", "work.wait()", "pass"),
        "sgp",
        "exchange at distributed/nccl_transport.py start, then "
        "aten.add_.Tensor at algorithms/sgp.py run",
    ),
    "a group that does not wait for its caller": (
        (Work, "__init__", "group.stream.wait_event(HERE.stream.record_event())", "pass"),
        "sgp",
        "aten.copy_.default at core/gossip.py split, then "
        "exchange at distributed/nccl_transport.py start",
    ),
    "a message's stream not recorded": (
        (NcclTransport, "convert", "message.record_stream(", "print("),
        late_message,
        "aten.add_.Tensor at core/scheduler.py settle, then "
        "reuse of its memory at distributed/nccl_transport.py start",
    ),
    "messages not received before a checkpoint": (
        (NcclTransport, "quiesce", "self.convert(message)", "pass"),
        "osgp tau 2",
        "exchange at distributed/nccl_transport.py start, then "
        "aten.sum.default at core/step_hooks.py start_of_step",
    ),
    "a collective not awaited": (
        (TorchCollectives, "awaited", "wait()", "pass"),
        "pipe_sgd",
        "all-reduce at distributed/torch_collectives.py all_reduce, then "
        "aten.div_.Tensor at distributed/torch_collectives.py <lambda>",
    ),
    "a pinned copy read before its event": (
        (GlooTransport, "start_to_send", "copied.synchronize()", "pass"),
        "ad_psgd",
        "aten._to_copy.default at distributed/gloo_transport.py send, then "
        "host send at distributed/gloo_transport.py <lambda>",
    ),
    "parameters not written": (
        (Gradients, "local_async", "stream.wait_event(written)", "pass"),
        "ad_psgd",
        "aten.clone.default at algorithms/ad_psgd.py run, then "
        "aten.mul.Tensor at distributed/gradients.py scaled",
    ),
    "a gradient not awaited": (
        (Gradients, "local_async", "stream.synchronize()", "pass"),
        "ad_psgd",
        "aten.pow.Tensor_Scalar at distributed/gradients.py scaled, then "
        "aten.add_.Tensor at core/optim/sgd.py direction",
    ),
    "a gradient's stream not recorded": (
        (Gradients, "local_async", "value.record_stream(here)", "pass"),
        late_gradient,
        "aten.add_.Tensor at core/scheduler.py settle, then "
        "reuse of its memory at distributed/gradients.py scaled",
    ),
    "a batch not copied": (
        (Prefetcher, "batch", "here.wait_event(copied)", "pass"),
        "sgp",
        "aten._to_copy.default at core/flat.py to_device, then "
        "aten.lerp_.Scalar at distributed/gradients.py scaled",
    ),
    "a batch's stream not recorded": (
        (Prefetcher, "batch", "t.record_stream(here)", "pass"),
        "sgp",
        "aten.sum.default at distributed/gradients.py scaled, then "
        "reuse of its memory at core/flat.py to_device",
    ),
    "a prefetched batch not copied for a gradient beside messages": (
        (Prefetcher, "batch", "here.wait_event(copied)", "pass"),
        "ad_psgd",
        "aten._to_copy.default at core/flat.py to_device, then "
        "aten.lerp_.Scalar at distributed/gradients.py scaled",
    ),
}


@pytest.mark.parametrize("bug", SEEDED)
def test_a_seeded_race_is_found(bug: str) -> None:
    change, what, race = SEEDED[bug]

    def run() -> dict[str, int]:
        if isinstance(what, str):
            return run_on_pretend_gpus(*words(what)).races
        return run_on_pretend_gpus("algo=sgp", "nodes=2", body=what).races

    with seeded(*change):
        assert race in run()
    if not isinstance(what, str):
        assert run() == {}


def test_a_group_of_nccl_that_begins_with_messages_is_found() -> None:
    line = 'if self.backend != "gloo" and self.process_rank in processes:'
    with (
        seeded(TorchWorld, "group", line, "if False:"),
        pytest.raises(RankFailed, match=": an exchange is the first call of its group$"),
    ):
        run_on_pretend_gpus(*words("sgp"))


def test_ranks_with_one_gpu_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gpu, "uuid", property(lambda gpu: f"GPU-{min(gpu.process, 2)}"))
    with pytest.raises(
        RankFailed,
        match="^ranks 2 and 3 share GPU GPU-2, but NCCL needs one GPU per rank: let the launcher ",
    ):
        run_on_pretend_gpus(*words("sgp"))


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    device = Gpu(0)
    with pretend_cuda(), running(device):
        yield device


def test_a_host_may_write_pinned_memory_again_once_it_was_copied(gpu: Gpu) -> None:
    batch = torch.ones(4).pin_memory()
    batch.to(CUDA, non_blocking=True)
    torch.cuda.current_stream().record_event().synchronize()
    batch.zero_()
    assert gpu.races == {}
    batch.to(CUDA, non_blocking=True)
    batch.zero_()
    assert gpu.races == {"aten._to_copy.default, then host aten.zero_.default": 1}


def test_a_copy_that_blocks_orders_the_host(gpu: Gpu) -> None:
    pinned, x = torch.ones(4).pin_memory(), torch.ones(4, device=CUDA)
    x.copy_(pinned)
    pinned.zero_()
    pinned.copy_(x)
    assert pinned.sum() == x.cpu().sum() == 4
    assert gpu.races == {}


def test_memory_is_reused_by_the_stream_that_allocated_it(gpu: Gpu) -> None:
    side = torch.cuda.Stream(CUDA)
    race = {"aten.mul.Tensor, then reuse of its memory": 1}
    for expected, record, waits in (({}, True, False), ({}, False, True), (race, False, False)):
        with torch.cuda.stream(side):
            x = torch.ones(4, device=CUDA)
        gpu.default.wait_stream(side)
        x * 2
        if record:
            x.record_stream(gpu.default)
        del x
        torch.ones(4, device=CUDA)  # of another stream, which does not get the memory
        if waits:
            side.wait_stream(gpu.default)
        assert gpu.races == {}
        with torch.cuda.stream(side):
            torch.ones(4, device=CUDA)
        assert gpu.races == expected
