from __future__ import annotations

import sys

import pytest

from sgp_runner.utils.network_interfaces import interfaces, is_loopback, matching


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_the_loopback_interface_has_its_address() -> None:
    assert interfaces()["lo"] == "127.0.0.1"
    addresses = ("127.0.0.1", "127.0.1.1", "::1", "10.0.0.7")
    assert [is_loopback(address) for address in addresses] == [True, True, True, False]


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ("eth", ["eth0", "eth1"]),
        ("eth1,ib", ["eth1", "ib0"]),
        ("=eth", []),
        ("=eth0,ib0", ["eth0", "ib0"]),
        ("^lo,eth", ["ib0"]),
        ("^=eth0", ["lo", "eth1", "ib0"]),
    ],
)
def test_nccl_takes_beginnings_of_names(chosen: str, names: list[str]) -> None:
    assert matching(["lo", "eth0", "eth1", "ib0"], chosen) == names
