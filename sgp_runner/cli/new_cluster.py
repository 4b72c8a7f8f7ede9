"""``sgp-run new cluster``: a cluster of regions from measured rates and round trips."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.files import checksum
from sgp_runner.utils.reading import read_text
from sgp_runner.utils.units import counted

USAGE = (
    "write sgp-run new cluster NAME rates=FILE round_trips=FILE regions=REGION,REGION, for "
    "example: sgp-run new cluster clouds rates=throughput.csv round_trips=rtt.csv "
    "regions=aws:us-east-1,gcp:europe-west3-a."
)
# Columns of the files, of which the first one there counts.
ENDS = ("source", "src"), ("destination", "dst")
RATE, ROUND_TRIPS, PRICE = ("mbit_per_s",), ("min_rtt_ms", "mean_rtt_ms"), ("price_per_gb", "cost")
INTERNET = "internet"  # the destination of prices outside of a cloud
Pairs = dict[tuple[str, str], float]


def write_cluster(argv: Sequence[str]) -> str:
    """Write NAME.yaml and return a sentence about it. Raises ConfigError if data is missing.

    argv: the name, then rates=, round_trips=, regions= and, optionally, prices=, nodes= (of each
        region, 1) and base=, the cluster that provides compute times and all other links
        (ethernet_10g)
    """
    name, *settings = argv or [""]
    keys = {key: value for key, _, value in (word.partition("=") for word in settings)}
    wanted = {"rates", "round_trips", "regions"}
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or not wanted <= keys.keys():
        raise ConfigError("new", USAGE)
    if unknown := sorted(keys.keys() - wanted - {"prices", "nodes", "base"}):
        raise ConfigError("new", f"'{unknown[0]}' is not a key; {USAGE}")
    regions, nodes = keys["regions"].split(","), keys.get("nodes", "1")
    if not re.fullmatch(r"[1-9]\d{0,5}", nodes):
        raise ConfigError("nodes", f"'{nodes}' is not a number of nodes per region, such as 1.")
    if len(set(regions)) != len(regions) or len(regions) < 2:
        raise ConfigError("regions", "write two or more different regions.")
    files: dict[str, Path] = {
        key: Path(keys[key]) for key in ("rates", "round_trips", "prices") if key in keys
    }
    rates = pairs_in("rates", files["rates"], RATE)
    trips = pairs_in("round_trips", files["round_trips"], ROUND_TRIPS)
    prices = pairs_in("prices", files["prices"], PRICE, free=True) if "prices" in files else {}
    base = keys.get("base", "ethernet_10g")
    text = text_of(name, regions, int(nodes), base, rates, trips, prices, files)
    path = Path(f"{name}.yaml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError("new", f"'{path}' already exists in this folder.") from None
    except OSError as error:
        raise ConfigError("new", f"cannot write to {path}: {error.strerror}.") from error
    return (
        f"{path}: {counted(len(regions), 'region')}; run it with\n"
        f"  sgp-run cluster=./{path} nodes={len(regions) * int(nodes)}"
    )


def pairs_in(key: str, path: Path, columns: Sequence[str], free: bool = False) -> Pairs:
    """Return the value of each pair (source, destination), from the first of ``columns`` found.

    Raises ConfigError for a file without these columns, or with a value that is not positive.

    free: whether zero is allowed
    """
    try:
        reader = csv.DictReader(read_text(path).splitlines())
    except OSError as error:
        raise ConfigError(key, f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigError(key, f"{path} is not a text file: {error}.") from error
    there = [
        next((name for name in names if name in (reader.fieldnames or ())), None)
        for names in (*ENDS, columns)
    ]
    if None in there:
        listed = ", ".join(" or ".join(names) for names in (*ENDS, columns))
        raise ConfigError(key, f"{path} must have the columns {listed}.")
    source, destination, column = map(str, there)
    least = "zero or a positive" if free else "a positive"
    pairs: Pairs = {}
    for row in reader:
        try:
            value = float(row[column])
        except (TypeError, ValueError):
            value = -1.0
        if not 0 <= value < float("inf") or not (value or free):
            raise ConfigError(
                key, f"line {reader.line_num} of {path}: {column} must be {least} number."
            )
        pairs[row[source], row[destination]] = value
    return pairs


def priced_pair(here: str, there: str, prices: Pairs) -> tuple[str, str]:
    """Return the source and destination under which the table ``prices`` lists a pair.

    The table of a single cloud omits the cloud's name; places outside the cloud are ``internet``.
    """
    if any(":" in region for pair in prices for region in pair):
        return here, there
    (cloud, _, source), (other, _, destination) = here.partition(":"), there.partition(":")
    return source, destination if cloud == other else INTERNET


def text_of(
    name: str,
    regions: Sequence[str],
    nodes: int,
    base: str,
    rates: Pairs,
    trips: Pairs,
    prices: Pairs,
    files: Mapping[str, Path],
) -> str:
    """Return the contents of the cluster's YAML file.

    A round trip holds for both directions if only one was measured; a rate does not.
    """

    def number(key: str, pairs: Pairs, ends: tuple[str, str]) -> float:
        if ends in pairs:
            return pairs[ends]
        known = {region for pair in pairs for region in pair}
        missing = next((region for region in ends if region not in known), None)
        what = f"has no region {missing}" if missing else f"has no row from {ends[0]} to {ends[1]}"
        raise ConfigError(key, f"{files[key]} {what}: add it, or omit the region.")

    def price(here: str, there: str) -> float:
        return number("prices", prices, priced_pair(here, there, prices))

    measured = "rates, round trips and prices" if prices else "rates and round trips"
    lines = [
        f"# {counted(len(regions), 'region')} with measured {measured}, of",
        *(f"# {path.name}, SHA-256 {checksum(path)}" for path in files.values()),
        f"# Compute times, and links inside a region, are those of {base}.",
        "defaults:",
        f"  - {base}",
        "",
        f"name: {name}",
        "links:",
        "  window_bytes: 0  # the rates are those that connections achieved",
        "  regions:",
    ]
    both = {(there, here): trip for (here, there), trip in trips.items()} | trips
    for here in regions:
        others = [region for region in regions if region != here]
        up = {there: 1e6 * number("rates", rates, (here, there)) for there in others}
        down = max(1e6 * number("rates", rates, (there, here)) for there in others)
        late = {there: number("round_trips", both, (here, there)) / 2000 for there in others}
        # The entries of the region itself have no effect.
        rate = ", ".join(f"{up.get(there, down):.4e}" for there in regions)
        seconds = ", ".join(f"{late.get(there, 0):.5f}" for there in regions)
        lines += [
            f"    # {here}",
            f"    - nodes: {nodes}",
            f"      bandwidth_up: [{rate}]",
            f"      bandwidth_down: {down:.4e}",
            f"      latency_seconds: [{seconds}]",
        ]
        if prices:
            left = (0 if here == there else price(here, there) for there in regions)
            lines.append(f"      price_per_gb: [{', '.join(f'{value:g}' for value in left)}]")
    return "\n".join(lines) + "\n"
