"""The keys of ``sgp-run plan``."""

from __future__ import annotations

from collections.abc import Mapping

from sgp_runner.plan.words import Key

KEYS: Mapping[str, Key] = {
    "model": Key("text", "a model of known size, or a name for parameters= and step="),
    "parameters": Key("count", "number of parameters"),
    "step": Key("seconds", "time of a gradient of one node with all its devices"),
    "device_flops": Key("number", "FLOP/s that a device reaches; instead of step="),
    "step_flops": Key("number", "FLOPs of a gradient of one node; with device_flops="),
    "bytes_per_parameter": Key("number", "bytes of a parameter in a message; default 4"),
    "batch": Key("count", "samples per node and step"),
    "batch_tokens": Key("count", "tokens per node and step"),
    "nodes": Key("count", "number of nodes; default 2"),
    "devices": Key("count", "devices of a node"),
    "bandwidth": Key("rate", "rate of a node's interface in each direction"),
    "latency": Key("seconds", "one way, half of a ping", zero=True),
    "sites": Key("count", "number of sites among which the nodes are divided"),
    "site_bandwidth": Key("rate", "rate of a site's link, which its nodes share"),
    "site_latency": Key("seconds", "one way between two sites", zero=True),
    "site_window": Key(
        "bytes",
        "bytes in flight from a node to another site, over all its connections; default 10.5MB; "
        "0: no limit",
        zero=True,
    ),
    "device_memory": Key("bytes", "memory of a device, such as 80GB; without it all methods fit"),
    "precision": Key(
        "text",
        "fp32, bf16, or mixed: parameters and gradients in bfloat16, a copy of the parameters and "
        "all state in float32; default fp32",
    ),
    "shard": Key(
        "text",
        "state: the devices of a node divide the state of optimizer and method; all: also "
        "parameters and gradients; default none",
    ),
    "tokens": Key("count", "budget: tokens of all nodes"),
    "epochs": Key("number", "budget: passes over samples="),
    "samples": Key("count", "samples of an epoch"),
    "steps": Key("count", "budget: steps of a node"),
    "price_per_hour": Key("number", "price of a node", zero=True),
    "site_price_per_gb": Key("number", "price of a GB that leaves a site", zero=True),
    "watts": Key("number", "power of a node"),
    "kwh_price": Key("number", "price of a kWh", zero=True),
    "methods": Key("text", "algorithms to compare, such as diloco,sgp; default: all"),
    "quality": Key("text", "folder or study.zip of a study, whose losses are shown by H"),
    "periods": Key(
        "text", "steps H between exchanges of DiLoCo and Streaming DiLoCo, such as 50,200"
    ),
}
BUDGETS = ("tokens", "epochs", "steps")
# Keys without an effect unless one of the others is there.
NEEDED = {
    "site_bandwidth": ("sites",),
    "site_latency": ("sites",),
    "site_window": ("sites",),
    "samples": ("epochs",),
    "step_flops": ("device_flops",),
    "price_per_hour": BUDGETS,
    "site_price_per_gb": ("sites",),
    "watts": BUDGETS,
    "kwh_price": ("watts",),
}
ALIASES = {
    "H": "periods",
    "step_seconds": "step",
    "gpus_per_node": "devices",
    "batch_size": "batch",
    "price_per_node_hour": "price_per_hour",
    "cluster.bandwidth": "bandwidth",
    "cluster.links.bandwidth": "bandwidth",
    "cluster.latency_seconds": "latency",
    "cluster.links.latency_seconds": "latency",
    "cluster.devices_per_node": "devices",
}
