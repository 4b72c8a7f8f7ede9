"""Settings of models, data, networks, clusters, faults and loggers that cannot work."""

from __future__ import annotations

import pytest
from helpers.refusals import check_refused

# The command line, the key of the error, and the beginning of its sentence.
SETTINGS: list[tuple[str, str, str]] = [
    ("model=mlp model.hidden=[0]", "model.hidden", "widths must be at least 1, not [0]. Use [64]."),
    ("model=mlp model.hidden=wide", "model.hidden", "'wide' is not a list such as [1,2]."),
    (
        "model=mlp model.dropout=1",
        "model.dropout",
        "must be in [0, 1), not 1.0. Use model.dropout=0.1.",
    ),
    (
        "model=transformer nodes=1 model.heads=7",
        "model.width",
        "64 must be even and a multiple of model.heads=7.",
    ),
    ("model=transformer model.width=0", "model.width", "0 must be at least 1."),
    (
        "model=timing_only network=gloo",
        "network",
        "model=timing_only only runs in simulated time: use network=sim.",
    ),
    ("model=quadratic data.dimension=0", "data.dimension", "0 must be at least 1."),
    ("model=quadratic data.samples=0", "data.samples", "0 must be at least 1."),
    ("model=quadratic data.groups=0", "data.groups", "0 must be at least 1."),
    ("model=quadratic data.condition=0.5", "data.condition", "0.5 must be at least 1."),
    ("model=quadratic data.noise=-1", "data.noise", "-1.0 must be at least 0."),
    (
        "model=quadratic data.samples=4 nodes=8",
        "batch_size",
        "4 training samples do not fill one batch of 8 on each of 8 nodes. Use at most 4 nodes.",
    ),
    (
        "model=quadratic data.alpha=0 data.partition=dirichlet",
        "data.alpha",
        "0.0 must be above 0. Use data.alpha=0.1.",
    ),
    (
        "model=quadratic data.partition=even",
        "data.partition",
        "'even' is not one of iid, dirichlet, dirichlet_equal.",
    ),
    ("model=quadratic data.problem_seed=a", "data.problem_seed", "'a' is not a whole number."),
    (
        "model=quadratic data=digits",
        "data",
        "model=quadratic reads regression data; data=digits is classification. Use model=conv or",
    ),
    (
        "model=resnet8 data=numbers_en_de",
        "data",
        (
            "model=resnet8 reads classification data; data=numbers_en_de is translation. Use "
            "model=transformer."
        ),
    ),
    (
        "data.label_smoothing=1",
        "data.label_smoothing",
        "must be in [0, 1), not 1.0. Use data.label_smoothing=0.1.",
    ),
    ("data=synthetic data.image_size=0", "data.image_size", "0 must be at least 1."),
    (
        "network=gloo faults=crash",
        "faults",
        "only the simulator supports crash: use network=sim; real runs "
        "support slow_node and pause.",
    ),
    (
        "network=gloo faults=slow_link",
        "faults",
        "only the simulator supports slow_link: use network=sim; real runs "
        "support slow_node and pause.",
    ),
    (
        "network=gloo faults=drop",
        "faults",
        (
            "only the simulator supports drop_probability: use network=sim; real runs support "
            "slow_node and pause."
        ),
    ),
    (
        "network=gloo faults.slow_nodes={9:2}",
        "faults.slow_nodes.9",
        "the run has no such rank; use 0 to 7.",
    ),
    (
        "network=gloo faults.events=[{what:pause,ranks:[1]}]",
        "faults.events[0]",
        "only the simulator supports a pause that never ends: use network=sim.",
    ),
    (
        "network=gloo algo=gap_aware faults.events=[{what:pause,ranks:[8],end:3}]",
        "faults.events[0]",
        "only the simulator supports a pause of a server: use network=sim.",
    ),
    (
        "experiment=sgp_sgp_90 model=timing_only faults=pause",
        "faults.events",
        (
            "a timing study repeats a sample of its steps, but events occur at set times: use "
            "model.sample_steps=null, or faults that last for the whole run."
        ),
    ),
    (
        "network=nccl faults=slow_node",
        "faults",
        (
            "gradients on a GPU cannot be slowed artificially: use network=sim or gloo, or "
            "faults=none."
        ),
    ),
    (
        "faults.drop_probability=0.1 faults.resend_seconds=null",
        "faults.resend_seconds",
        (
            "no algorithm tolerates a message that is lost permanently: all wait for it, "
            "and push-sum would lose mass; use a time, such as 0.2."
        ),
    ),
    (
        "record=true",
        "record",
        (
            "a simulation needs no recording: the same command repeats it. Use record=false, or "
            "network=gloo."
        ),
    ),
    (
        "record=true network=nccl",
        "record",
        "a GPU's results cannot be repeated to the last bit: use network=gloo or mpi on CPUs, or",
    ),
    (
        "network=gloo record=true nodes=4 algo=a2cid2",
        "record",
        "the steps of A2CiD2 depend on the time of events, which a replay cannot repeat",
    ),
    (
        "record=true network=gloo gpus_per_node=2",
        "record",
        "nodes of several devices cannot be recorded: use gpus_per_node=1, or",
    ),
    (
        "record=true network=gloo checkpoint.every_steps=5",
        "checkpoint.every_steps",
        "a recorded run cannot save checkpoints: use",
    ),
    (
        "network=gloo network.gossip=all",
        "network.gossip",
        "'all' is not one of auto, shards, leader.",
    ),
    (
        "network=gloo network.autocast=fp8",
        "network.autocast",
        "'fp8' is not one of auto, none, bf16, fp16. Did you mean 'fp16'?",
    ),
    (
        "network=gloo network.channels_last=maybe",
        "network.channels_last",
        "'maybe' is not true or false or auto.",
    ),
    (
        "network=gloo network.autocast=bf16 dtype=float64",
        "network.autocast",
        "applies only to float32: use dtype=float32, or network.autocast=none with dtype=float64.",
    ),
    ("network=gloo network.bandwidth=0", "network.bandwidth", "0.0 must be positive and finite."),
    (
        "network=gloo network.latency_seconds=-1",
        "network.latency_seconds",
        "-1.0 must be zero or positive, and finite.",
    ),
    (
        "network=gloo network.bandwidth=1e8 gpus_per_node=2",
        "network.bandwidth",
        "slow links can only be imitated for nodes of one device: use gpus_per_node=1.",
    ),
    (
        "network=mpi gpus_per_node=2",
        "gpus_per_node",
        "network=mpi runs one process per node: use gpus_per_node=1, or network=gloo.",
    ),
    (
        "network=sim network.engine=fast",
        "network.engine",
        "'fast' is not one of auto, loop, vmap. Did you mean 'auto'?",
    ),
    ("network=sim network.vmap_width=0", "network.vmap_width", "0 must be at least 1."),
    ("cluster.bandwidth=0", "cluster.links.bandwidth", "0.0 must be positive and finite."),
    (
        "cluster.latency_seconds=-1",
        "cluster.links.latency_seconds",
        "-1.0 must be zero or positive, and finite.",
    ),
    ("cluster.collectives.overlap=1", "cluster.collectives.overlap", "1.0 must be in [0, 1)."),
    ("cluster.links.duplex=double", "cluster.links.duplex", "'double' is not one of full, half."),
    (
        "cluster.collectives.algorithm=magic",
        "cluster.collectives.algorithm",
        "'magic' is not one of ring, recursive_doubling, halving_doubling, tree, hierarchical.",
    ),
    (
        "cluster.collectives.bucket_bytes=0",
        "cluster.collectives.bucket_bytes",
        "0 must be at least 1.",
    ),
    (
        "cluster.step_seconds.default=0",
        "cluster.compute.step_seconds.default",
        "0.0 must be positive and finite.",
    ),
    (
        "cluster.compute.node_factors={0:0}",
        "cluster.compute.node_factors.0",
        "0.0 must be positive and finite.",
    ),
    (
        "cluster.compute.node_factors={-1:2}",
        "cluster.compute.node_factors.-1",
        "the run has no such rank; use 0 to 7.",
    ),
    (
        "cluster.compute_time=log_normal cluster.compute_time.cv=nan",
        "cluster.compute_time.cv",
        "nan must be finite.",
    ),
    ("faults.slow_nodes={0:0.5}", "faults.slow_nodes.0", "0.5 must be at least 1 and finite."),
    ("faults.slow_links={0:nan}", "faults.slow_links.0", "nan must be finite."),
    ("faults.slow_links=[1]", "faults.slow_links", "[1] is not a mapping such as {0: 2}."),
    (
        "checkpoint.every_minutes=0",
        "checkpoint.every_minutes",
        "0.0 must be positive and finite, or null.",
    ),
    ("checkpoint=null", "checkpoint", "null is not a set of settings."),
    (
        "logger.mode=sometimes",
        "logger.mode",
        "'sometimes' is not a mode; use one of auto, online, offline, disabled.",
    ),
]


@pytest.mark.parametrize(
    ("overrides", "key", "sentence"), SETTINGS, ids=[overrides[:99] for overrides, *_ in SETTINGS]
)
def test_settings_that_cannot_work(
    overrides: str, key: str, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    check_refused(overrides, key, sentence, capfd)
