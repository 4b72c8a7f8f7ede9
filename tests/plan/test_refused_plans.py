"""``sgp-run plan``: requests that cannot work."""

from __future__ import annotations

import pytest

from sgp_runner.cli.main import main

WORDS = "parameters=1e9 step=1s nodes=2 bandwidth=8Gbit/s latency=0"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        *(
            (arguments, "model: missing: write model=gpt2, or parameters=1e9.")
            for arguments in ("nodes=4 bandwidth=10Gbit/s", "")
        ),
        (
            "model=gpt2 nodes=4 bandwidth=10Gbit/s",
            "step: the time of a gradient of gpt2 on one node is not known: write step=0.4s, or "
            "device_flops=50e12 with step_flops= or batch_tokens=.",
        ),
        (f"{WORDS} price_per_hour=-3", "price_per_hour: -3 must be zero or positive."),
        (f"{WORDS} periods=0", "periods: H is a number of steps, at least 1, not '0'."),
        (f"{WORDS} H=0", "periods: H is a number of steps, at least 1, not '0'."),
        (
            f"{WORDS} price_per_hour=3",
            "price_per_hour: has no effect without tokens= or epochs= or steps=.",
        ),
        (f"{WORDS} steps=9 kwh_price=3", "kwh_price: has no effect without watts=."),
        (f"{WORDS} site_bandwidth=1Gbit/s", "site_bandwidth: has no effect without sites=."),
        (
            f"{WORDS} steps=9 site_price_per_gb=1",
            "site_price_per_gb: has no effect without sites=.",
        ),
        (f"{WORDS} site_window=1MB", "site_window: has no effect without sites=."),
        (
            f"{WORDS} bandwidth=1G",
            "bandwidth: '1G' is not a rate: write bandwidth=1Gbit/s, for example.",
        ),
        (
            f"{WORDS} bandwidth=4..10",
            "bandwidth: '4..10' is not a rate: write bandwidth=10Gbit/s, for example.",
        ),
        (f"{WORDS} sites=3", "sites: 2 nodes cannot be in 3 sites: use sites=2."),
        (
            f"{WORDS} sites=2",
            "site_bandwidth: missing for 2 sites; for example, write site_bandwidth=1Gbit/s.",
        ),
        (
            f"{WORDS} bandwidth=10",
            "bandwidth: 10 without a unit is 10 bit/s: did you mean 10Gbit/s? Otherwise write "
            "10bit/s.",
        ),
        (
            f"{WORDS} cluster.links.bandwidth_up=10",
            "cluster.links.bandwidth_up: 10 without a unit is 10 bit/s: did you mean 10Gbit/s? "
            "Otherwise write 10bit/s.",
        ),
        (
            f"{WORDS} latency=30",
            "latency: 30 without a unit is 30 s: did you mean 30ms? Otherwise write 30s.",
        ),
        (
            "model=gpt2 step=1s nodes=2",
            "bandwidth: the rate of a node's interface is missing: write bandwidth=10Gbit/s, or "
            "cluster= with a profile.",
        ),
        (f"{WORDS} devices=0", "devices: 0 must be positive."),
        (
            f"{WORDS} device_memory=80",
            "device_memory: 80 without a unit is 80 B: did you mean 80GB? Otherwise write 80B.",
        ),
        (f"{WORDS} shard=zero3", "shard: 'zero3' is not one of none, state, all."),
        (
            f"{WORDS} precision=fp8",
            "precision: 'fp8' is not one of fp32, mixed, bf16. Did you mean 'fp32'?",
        ),
        (f"{WORDS} nodes=1", "nodes: a single node sends no messages: use nodes=2 or more."),
        (f"{WORDS} nodes=2.5", "nodes: 2.5 must be a whole number."),
        (
            f"{WORDS} methods=dilco",
            "methods: 'dilco' is not one of a2cid2, acco, accum_adam, acp_sgd, ad_psgd, ar_sgd, "
            "async_diloco, choco_sgd, d_psgd, d_squared, demo, des_loc, diloco, ef_sign, "
            "gap_aware, gossip_pga, gradient_tracking, halos, local_sgd, noloco, onebit_adam, "
            "osgp, pipe_sgd, powersgd, ps_sgd, qg_dsgdm, relay_sgd, rennala, ringleader, "
            "ringmaster, sgp, slowmo, sparseloco, streaming_diloco, swarm_sgd, zero_one_adam. "
            "Did you mean 'diloco'?",
        ),
        (f"{WORDS} step=fast", "step: 'fast' is not a number; write for example 10s or 1ms."),
        (f"{WORDS} tokens=1e9", "batch_tokens: tokens= needs it: tokens per node and step."),
        (f"{WORDS} steps=1 tokens=1e9", "steps: the budget is given twice: leave out tokens=."),
        (
            f"{WORDS} stepz=3",
            "stepz: there is no such setting here. Did you mean 'step'? --help lists all.",
        ),
        (
            f"{WORDS} --out x",
            "--out: there is no such option; there are --json, --html, --config-dir.",
        ),
        (f"{WORDS} nodes", "nodes: this is not a setting; write key=value, for example nodes=4."),
        (f"{WORDS} --json", "--json: its value is missing, for example --json out."),
        (f"{WORDS} model=a-b", "model: 'a-b' is not a valid name: use letters, digits and _."),
        (
            "model=gpt9 nodes=2 bandwidth=1Gbit/s",
            "model: the size of 'gpt9' is not known. Did you mean 'gpt2'? Write parameters=, for "
            "example parameters=7e9.",
        ),
        (
            "parameters=1e9 device_flops=1e12 nodes=2 bandwidth=8Gbit/s",
            "device_flops: needs the FLOPs of a step: write batch_tokens= or step_flops=.",
        ),
    ],
)
def test_a_request_that_cannot_work_is_one_sentence(
    arguments: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments.split()]) == 2
    assert capsys.readouterr().err == f"sgp-run: {sentence}\n"
