#!/usr/bin/env python
"""Measure all-reduces of Gloo on links with delay, between network namespaces of this machine.

scripts/gloo_delay.py     needs root, ip and tc; takes minutes; prints CSV

Each host is a namespace with a TUN device, whose rate a token bucket (``tbf`` of ``tc``) limits. A
relay passes packets from one device to another after a delay. Lines without delay show what the
relay adds.
"""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import select
import statistics
import struct
import subprocess
import sys
import time
from collections import deque
from multiprocessing.connection import Connection

# Ranks, one-way delay in s, bit/s and MiB.
CASES = (
    *((2, 0.0, 100e6, 16), (2, 0.01, 100e6, 16), (2, 0.05, 100e6, 16)),
    *((2, 0.0, 200e6, 32), (2, 0.02, 200e6, 32), (2, 0.05, 200e6, 32)),
    *((4, 0.0, 100e6, 16), (4, 0.05, 100e6, 16)),
)
REPEATS = 3
MTU = 9000
NEW_NETWORK, SET_DEVICE, TUN_WITHOUT_HEADER = 0x40000000, 0x400454CA, 0x1001


def enter_host(rank: int, rate: float) -> int:
    """Move this process to a new namespace; return the file of its TUN device."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "no network namespace: run as root")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, SET_DEVICE, struct.pack("16sH22x", b"eth0", TUN_WITHOUT_HEADER))
    for command in (
        "ip link set lo up",
        f"ip address add 10.88.0.{rank + 1}/24 dev eth0",
        f"ip link set eth0 mtu {MTU} txqueuelen 5000 up",
        f"tc qdisc add dev eth0 root tbf rate {round(rate)}bit burst 64kb limit 12mb",
    ):
        subprocess.run(command.split(), check=True)
    return device


def run_rank(rank: int, case: tuple[int, float, float, int], channel: Connection) -> None:
    """Take part in all-reduces; rank 0 sends their seconds through ``channel``."""
    ranks, _, rate, mebibytes = case
    device = enter_host(rank, rate)
    multiprocessing.reduction.send_handle(channel, device, os.getppid())
    os.close(device)
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    torch.set_num_threads(1)
    channel.recv()  # the relay runs
    dist.init_process_group("gloo", "tcp://10.88.0.1:29511", rank=rank, world_size=ranks)
    values, seconds = torch.ones(mebibytes * 2**18), []
    for _ in range(REPEATS + 1):
        dist.barrier()
        begin = time.monotonic()
        dist.all_reduce(values)
        seconds.append(time.monotonic() - begin)
    channel.send(seconds[1:])  # without the first, which connects
    channel.recv()  # all ranks are done


def relay(devices: list[int], delay: float, channels: list[Connection]) -> list[list[float]]:
    """Pass packets on until all ranks have sent their seconds; return these."""
    queues: dict[int, deque[tuple[float, bytes]]] = {device: deque() for device in devices}
    found: dict[Connection, list[float]] = {}
    while len(found) < len(channels):
        wait = 0.05
        for device, queue in queues.items():
            while queue and queue[0][0] <= time.monotonic():
                os.write(device, queue.popleft()[1])
            if queue:
                wait = min(wait, max(0.0, queue[0][0] - time.monotonic()))
        ready = select.select([*devices, *(set(channels) - set(found))], [], [], wait)[0]
        for each in ready:
            if isinstance(each, Connection):
                found[each] = each.recv()
                continue
            packet = os.read(each, MTU + 64)
            target = packet[19] - 1  # last byte of the IPv4 address
            if packet[0] >> 4 == 4 and 0 <= target < len(devices):
                queues[devices[target]].append((time.monotonic() + delay, packet))
    return [found[channel] for channel in channels]


def measure(case: tuple[int, float, float, int]) -> float:
    """Return the median seconds of an all-reduce, of the slowest rank of each."""
    context, channels, ranks = multiprocessing.get_context("spawn"), [], []
    for rank in range(case[0]):
        here, there = context.Pipe()
        ranks.append(context.Process(target=run_rank, args=(rank, case, there), daemon=True))
        ranks[-1].start()
        channels.append(here)
    devices = [multiprocessing.reduction.recv_handle(channel) for channel in channels]
    for channel in channels:
        channel.send(None)
    found = relay(devices, case[1], channels)
    for channel, process in zip(channels, ranks, strict=True):
        channel.send(None)
        process.join(5)
    return statistics.median(map(max, zip(*found, strict=True)))


def main() -> int:
    print("ranks,delay_ms,mbit_per_s,mebibytes,seconds")
    for case in CASES:
        ranks, delay, rate, size = case
        print(f"{ranks},{1000 * delay:g},{rate / 1e6:g},{size},{measure(case):.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
