from __future__ import annotations

import sys

import pytest

from sgp_runner.utils.network_interfaces import interfaces, is_loopback, matching


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_the_loopback_interface_has_its_address() -> None:
    found = interfaces()
    assert found["lo"] == "127.0.0.1"
    assert is_loopback(found["lo"]) and is_loopback("127.0.1.1") and is_loopback("::1")
    assert not is_loopback("10.0.0.7")


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
