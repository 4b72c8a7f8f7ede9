"""Network interfaces of this machine, and the ones that gloo and NCCL use."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

SIOCGIFADDR = 0x8915  # of linux/sockios.h
IPV6 = Path("/proc/net/if_inet6")
INFINIBAND = Path("/sys/class/infiniband")


def interfaces() -> dict[str, str]:
    """Map every interface with an address to that address, preferably IPv4."""
    addresses = {name: address(name) for _, name in socket.if_nameindex()}
    with suppress(OSError):
        for line in IPV6.read_text(encoding="ascii").splitlines():
            number, *_, name = line.split()
            ip = ipaddress.IPv6Address(int(number, 16))
            if not ip.is_link_local:
                addresses[name] = addresses.get(name) or str(ip)
    return {name: ip for name, ip in addresses.items() if ip}


def address(name: str) -> str:
    """Return the IPv4 address of an interface; "" if it has none, or outside Linux."""
    try:
        from fcntl import ioctl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            answer = ioctl(asked, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return ""
    return socket.inet_ntoa(answer[20:24])


def is_loopback(text: str) -> bool:
    return ipaddress.ip_address(text).is_loopback


def own_address() -> str:
    """Return the address of this machine's hostname, gloo's default; "" if unknown."""
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None)[0][4][0])
    except OSError:
        return ""


def infiniband() -> list[str]:
    """Return the names of the InfiniBand and RoCE adapters."""
    return sorted(path.name for path in INFINIBAND.glob("*"))


def chooses_none(library: str, value: str, names: Collection[str]) -> bool:
    """Return whether LIBRARY_SOCKET_IFNAME with this value selects no interface.

    library: GLOO, for which whole names must all exist, or NCCL, see `matching`
    """
    if library == "GLOO":
        return not set(value.split(",")) <= set(names)
    return not matching(names, value)


def matching(names: Collection[str], chosen: str) -> list[str]:
    """Return the interfaces that a value of NCCL_SOCKET_IFNAME selects.

    Names are prefixes. A leading ``=`` demands exact matches, a leading ``^`` excludes.
    """
    excluded, exact = chosen.startswith("^"), chosen.lstrip("^").startswith("=")
    beginnings = chosen.lstrip("^=").split(",")

    def named(name: str) -> bool:
        return name in beginnings if exact else name.startswith(tuple(beginnings))

    return [name for name in names if named(name) != excluded]
