"""Whatever is typed, or lies in the way: one sentence that names the key, exit code 2, and nothing
half-written.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sgp_runner.cli.main import main
from sgp_runner.utils.files import checksum

TINY = [
    "model=quadratic",
    "data.samples=64",
    "data.dimension=4",
    "nodes=2",
    "epochs=2",
    "logger=jsonl",
    "name=mine",
    "log_every=1",
]
RUN = Path("results/runs/mine")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "SGP_RUN_TRACEBACK", "HYDRA_FULL_ERROR", "NOWHERE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


# What is typed, the key that is named, and how the sentence begins; words are split at spaces
# unless there is a quotation.
TOO_LONG = "a whole number has at most 20 digits: use a smaller one."
SETTINGS: list[tuple[str, str, str]] = [
    ("nodes=2.5", "nodes", "2.5 is not a whole number."),
    ("nodes=99999999999999999999", "nodes", "99999999999999999999 must be at most 65536."),
    ("nodes={a:1}", "nodes", "{'a': 1} is not a whole number."),
    ("gpus_per_node=0", "gpus_per_node", "0 must be at least 1."),
    (
        "gpus_per_node=3 network=gloo batch_size=32",
        "batch_size",
        "32 samples per node do not divide among 3 devices: use batch_size=30, or another",
    ),
    ("epochs=0", "epochs", "0.0 must be positive and finite."),
    ("epochs=inf", "epochs", "inf must be finite."),
    ("batch_size=0", "batch_size", "0 must be at least 1."),
    ("seed=-1", "seed", "-1 must be between 0 and 2**63 - 1."),
    ("seed=9223372036854775808", "seed", "9223372036854775808 must be between 0 and 2**63 - 1."),
    ("dtype=float16", "dtype", "'float16' is none of float32, float64. Did you mean 'float64'?"),
    ("eval_every=0", "eval_every", "0 must be positive, for example 1 or 0.25."),
    ("log_every=0", "log_every", "0 must be at least 1."),
    ("resume=maybe", "resume", "'maybe' is none of auto, never."),
    (
        "name=a/b",
        "name",
        "'a/b' cannot name a folder: use up to 100 letters, digits and . , = + - _, no slashes.",
    ),
    (
        "name=..",
        "name",
        "'..' cannot name a folder: use up to 100 letters, digits and . , = + - _, no slashes.",
    ),
    (
        "name=.hidden",
        "name",
        (
            "'.hidden' cannot name a folder: use up to 100 letters, digits and . , = + - _, no "
            "slashes."
        ),
    ),
    (
        "name='a b'",
        "name",
        "'a b' cannot name a folder: use up to 100 letters, digits and . , = + - _, no slashes.",
    ),
    (
        "name='a\\nb'",
        "name",
        "cannot read 'name='a'; write key=value, and quote special characters: \"key='a b'\".",
    ),
    ("name=5", "name", "5 is not text or null."),
    ("results=5", "results", "5 is not text; quote it: \"results='5'\"."),
    ("results=null", "results", "it has no value; write results=..."),
    ("results=''", "results", "'' cannot name a folder; the present one is results=."),
    (
        "results='a\\x00b'",
        "results",
        "'a\\x00b' cannot name a folder; the present one is results=.",
    ),
    ("optim.lr=nan", "optim.lr", "nan must be finite."),
    ("optim.lr=inf", "optim.lr", "inf must be finite."),
    ("optim.lr=-0.1", "optim.lr", "-0.1 must be positive and finite."),
    ("optim.lr=true", "optim.lr", "true is not a number."),
    ("optim.momentum=1", "optim.momentum", "1.0 must be in [0, 1)."),
    ("optim.momentum=nan", "optim.momentum", "nan must be finite."),
    ("optim.weight_decay=inf", "optim.weight_decay", "inf must be finite."),
    (
        "optim.lr_reference_batch=0",
        "optim.lr_reference_batch",
        "0 must be at least 1 sample, or null.",
    ),
    ("optim.nesterov=2", "optim.nesterov", "2 is not true or false."),
    ("optim=adam optim.beta1=1", "optim.beta1", "1.0 must be in [0, 1)."),
    ("optim=adam optim.eps=0", "optim.eps", "0.0 must be positive and finite."),
    (
        "optim=adam algo=gap_aware",
        "optim",
        "Gap-Aware takes its momentum step on the server and needs optim=sgd, not adam.",
    ),
    (
        "optim.schedule=steps optim.schedule.milestones=[a]",
        "optim.schedule.milestones[0]",
        "'a' is not a number.",
    ),
    (
        "optim.schedule=steps optim.schedule.milestones=[-5]",
        "optim.schedule.milestones",
        "[-5.0] must be zero or positive epochs.",
    ),
    (
        "optim.schedule=steps optim.schedule.decay=nan",
        "optim.schedule.decay",
        "nan must be finite.",
    ),
    (
        "optim.schedule=steps optim.schedule.reference_epochs=0",
        "optim.schedule.reference_epochs",
        "0.0 must be positive and finite.",
    ),
    (
        "optim.schedule=steps optim.schedule.warmup_epochs=-1",
        "optim.schedule.warmup_epochs",
        "-1.0 must be zero or positive, and finite.",
    ),
    (
        "optim.schedule=inverse_sqrt optim.schedule.warmup_steps=0",
        "optim.schedule.warmup_steps",
        "0 must be positive and finite.",
    ),
    ("algo=osgp algo.tau=-1", "algo.tau", "must not be negative, but is -1."),
    ("algo=osgp algo.interval=0", "algo.interval", "must be at least 1, not 0."),
    (
        "algo=osgp algo.layout=best",
        "algo.layout",
        "'best' is none of paper, released, released_2019.",
    ),
    ("algo=slowmo algo.tau=0", "algo.tau", "0 must be at least 1 step, or null for the paper's."),
    ("algo=slowmo algo.alpha=0", "algo.alpha", "0.0 must be positive and finite."),
    ("algo=slowmo algo.beta=1", "algo.beta", "1.0 must be in [0, 1)."),
    (
        "algo=slowmo algo.base=slowmo",
        "algo.base",
        "'slowmo' is none of ar_sgd, d_psgd, local_sgd, osgp, sgp.",
    ),
    (
        "algo=slowmo algo.base=ad_psgd",
        "algo.base",
        "'ad_psgd' is none of ar_sgd, d_psgd, local_sgd, osgp, sgp. Did you mean 'd_psgd'?",
    ),
    ("algo=hybrid algo.switch_epoch=0", "algo.switch_epoch", "0.0 must be positive and finite."),
    (
        "algo=hybrid algo.first=ad_psgd",
        "algo.first",
        "AD-PSGD cannot be part of a hybrid: use a synchronous algorithm without a server.",
    ),
    ("algo=pipe_sgd algo.depth=0", "algo.depth", "must be at least 1, not 0."),
    ("algo=pipe_sgd algo.clip=0", "algo.clip", "0.0 must be positive, or null for no clipping."),
    (
        "algo=pipe_sgd algo.warmup_epochs=-1",
        "algo.warmup_epochs",
        "must not be negative, but is -1.0.",
    ),
    (
        "algo=pipe_sgd algo.compression=zip",
        "algo.compression",
        "'zip' is none of none, truncate16, quantize8.",
    ),
    (
        "algo=local_sgd algo.tau=0",
        "algo.tau",
        "0 must be at least 1 step, or null to never average.",
    ),
    (
        "algo=ad_psgd algo.averages_per_gradient=0",
        "algo.averages_per_gradient",
        "0.0 must be positive and finite.",
    ),
    (
        "algo=ad_psgd algo.topology=complete",
        "algo.topology",
        "AD-PSGD needs edges between odd and even ranks only: in step 0 there is 0 -> 2; use",
    ),
    (
        "algo=ad_psgd algo.topology=ring nodes=3",
        "algo.topology",
        "AD-PSGD needs edges between odd and even ranks only: in step 0 there is 0 -> 2; use",
    ),
    (
        "algo=d_psgd algo.topology=exponential",
        "algo.topology",
        "D-PSGD needs a symmetric graph: ring, bipartite, complete, torus, random_matching, base",
    ),
    (
        "algo=ar_sgd on_failure=continue",
        "on_failure",
        (
            "AR-SGD needs all of its ranks in its all-reduce: use on_failure=stop and resume with "
            "the same command, or use a gossip algorithm."
        ),
    ),
    (
        "algo=hybrid algo.switch_epoch=1 on_failure=continue",
        "on_failure",
        "AR-SGD, then SGP needs all of its ranks in its all-reduce: use on_failure=stop and resume",
    ),
    (
        "network=mpi on_failure=continue",
        "on_failure",
        "network=mpi cannot continue without a rank: use on_failure=stop, or network=gloo.",
    ),
    (
        "network=gloo gpus_per_node=2 on_failure=continue",
        "on_failure",
        (
            "nodes of several devices cannot continue without one: use on_failure=stop, or "
            "gpus_per_node=1."
        ),
    ),
    (
        "nodes=1 on_failure=continue",
        "on_failure",
        "on_failure=continue needs at least 2 nodes: use on_failure=stop, or nodes=2.",
    ),
    (
        "algo=ad_psgd algo.topology=ring nodes=4 on_failure=continue",
        "on_failure",
        (
            "the run is invalid without one of its 4 nodes (AD-PSGD needs edges between odd and "
            "even ranks only: in step 0 there is 0 -> 2; use"
        ),
    ),
    ("on_failure=go", "on_failure", "'go' is none of stop, continue."),
    (
        "algo=sgp algo.topology.peers=8",
        "algo.topology.peers",
        "8 peers need at least 9 nodes; nodes=8.",
    ),
    (
        "algo=sgp algo.topology.peers=0",
        "algo.topology.peers",
        "0 must be at least 1 and, as a schedule, start at epoch 0.",
    ),
    (
        "algo=sgp algo.topology.peers={1:1}",
        "algo.topology.peers",
        "{1: 1} must be at least 1 and, as a schedule, start at epoch 0.",
    ),
    (
        "algo=sgp algo.topology.peers={0:99}",
        "algo.topology.peers",
        "99 peers need at least 100 nodes; nodes=8.",
    ),
    (
        "algo=sgp algo.topology=random_matching algo.topology.seed=a",
        "algo.topology.seed",
        "'a' is not a whole number.",
    ),
    ("algo.topology=edges", "algo.topology.path", "it has no value; write algo.topology.path=..."),
    (
        "algo.topology=edges algo.topology.path=nowhere.txt",
        "algo.topology.path",
        "cannot read 'nowhere.txt': No such file or directory.",
    ),
    (
        "algo.topology=edges algo.topology.path=/",
        "algo.topology.path",
        "cannot read '/': Is a directory.",
    ),
    (
        "algo.topology=edges algo.topology.path=/dev/zero",
        "algo.topology.path",
        "cannot read '/dev/zero': Not a regular file.",
    ),
    (
        "algo.topology=edges algo.topology.path=''",
        "algo.topology.path",
        "cannot read '': Is a directory.",
    ),
    (
        "algo.topology=edges algo.topology.path=graph.txt",
        "algo.topology.path",
        "graph.txt, line 1: in step 0 node 0 sends to itself; it keeps its own share anyway.",
    ),
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
    ("model=transformer model.width=0", "model.width", "must be at least 1, not 0."),
    (
        "model=timing_only network=gloo",
        "network",
        "model=timing_only only runs in simulated time: use network=sim.",
    ),
    ("model=quadratic data.dimension=0", "data.dimension", "must be at least 1, not 0."),
    ("model=quadratic data.samples=0", "data.samples", "must be at least 1, not 0."),
    ("model=quadratic data.groups=0", "data.groups", "must be at least 1, not 0."),
    ("model=quadratic data.condition=0.5", "data.condition", "must be at least 1, not 0.5."),
    ("model=quadratic data.noise=-1", "data.noise", "must not be negative, but is -1.0."),
    (
        "model=quadratic data.samples=4 nodes=8",
        "batch_size",
        "4 training samples do not fill one batch of 8 on each of 8 nodes. Use at most 4 nodes.",
    ),
    (
        "model=quadratic data.alpha=0 data.partition=dirichlet",
        "data.alpha",
        "the concentration must be above 0, not 0.0. Use data.alpha=0.1.",
    ),
    (
        "model=quadratic data.partition=even",
        "data.partition",
        "'even' is none of iid, dirichlet, dirichlet_equal.",
    ),
    ("model=quadratic data.problem_seed=a", "data.problem_seed", "'a' is not a whole number."),
    (
        "model=quadratic data=digits",
        "data",
        "model=quadratic reads regression data; data=digits is classification. Use model=mlp or",
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
    ("data=synthetic data.image_size=0", "data.image_size", "must be at least 1, not 0."),
    (
        "network=gloo faults=crash",
        "faults",
        "only the simulator has crash: use network=sim; real runs have slow_node and pause.",
    ),
    (
        "network=gloo faults=slow_link",
        "faults",
        "only the simulator has slow_link: use network=sim; real runs have slow_node and pause.",
    ),
    (
        "network=gloo faults=drop",
        "faults",
        (
            "only the simulator has drop_probability: use network=sim; real runs have slow_node "
            "and pause."
        ),
    ),
    (
        "network=gloo faults.slow_nodes={9:2}",
        "faults.slow_nodes.9",
        "there is no such rank here; use 0 to 7.",
    ),
    (
        "network=gloo faults.events=[{what:pause,ranks:[1]}]",
        "faults.events[0]",
        "only the simulator has a pause that never ends: use network=sim.",
    ),
    (
        "network=gloo algo=gap_aware faults.events=[{what:pause,ranks:[8],end:3}]",
        "faults.events[0]",
        "only the simulator has a pause of a server: use network=sim.",
    ),
    (
        "experiment=sgp_sgp_90 model=timing_only faults=pause",
        "faults.events",
        (
            "a timing study repeats its sample of the schedule, and events have a time: use "
            "model.sample_steps=null, or faults that last for the whole run."
        ),
    ),
    (
        "network=nccl faults=slow_node",
        "faults",
        (
            "gradients on a GPU cannot be slowed from outside: use network=sim or gloo, or "
            "faults=none."
        ),
    ),
    (
        "faults.drop_probability=0.1 faults.resend_seconds=null",
        "faults.resend_seconds",
        (
            "no algorithm here survives a message that is lost permanently: each waits for it, "
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
        "a GPU's results cannot be repeated to the last bit: use network=gloo or mpi, or",
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
    ("network=gloo network.gossip=all", "network.gossip", "'all' is none of auto, shards, leader."),
    (
        "network=gloo network.autocast=fp8",
        "network.autocast",
        "'fp8' is none of none, bf16, fp16. Did you mean 'fp16'?",
    ),
    (
        "network=gloo network.autocast=bf16 dtype=float64",
        "network.autocast",
        "only float32 is cast: use dtype=float32, or network.autocast=none with dtype=float64.",
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
        "slow links are imitated for nodes of one device: use gpus_per_node=1.",
    ),
    (
        "network=mpi gpus_per_node=2",
        "gpus_per_node",
        "network=mpi runs one process per node: use gpus_per_node=1, or network=gloo.",
    ),
    (
        "network=sim network.engine=fast",
        "network.engine",
        "'fast' is none of auto, loop, vmap. Did you mean 'auto'?",
    ),
    ("network=sim network.vmap_width=0", "network.vmap_width", "0 must be at least 1."),
    ("cluster.bandwidth=0", "cluster.bandwidth", "0.0 must be positive and finite."),
    (
        "cluster.latency_seconds=-1",
        "cluster.latency_seconds",
        "-1.0 must be zero or positive, and finite.",
    ),
    ("cluster.overlap=1", "cluster.overlap", "1.0 must be in [0, 1)."),
    ("cluster.duplex=double", "cluster.duplex", "'double' is none of full, half."),
    (
        "cluster.collective=magic",
        "cluster.collective",
        "'magic' is none of ring, recursive_doubling, halving_doubling, tree.",
    ),
    ("cluster.bucket_bytes=0", "cluster.bucket_bytes", "0 must be at least 1."),
    (
        "cluster.step_seconds.default=0",
        "cluster.step_seconds.default",
        "0.0 must be positive and finite.",
    ),
    ("cluster.node_factors={0:0}", "cluster.node_factors.0", "0.0 must be positive and finite."),
    (
        "cluster.node_factors={-1:2}",
        "cluster.node_factors.-1",
        "there is no such rank here; use 0 to 7.",
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
    (
        "logger._target_=os.system",
        "logger._target_",
        "there is no such setting; logger has project, entity, group, mode.",
    ),
    (
        "algo._target_=sgp_runner.config.run.Run",
        "algo._target_",
        "there is no such setting; algo has topology.",
    ),
    (
        "_target_=sgp_runner.cluster.faults.Faults",
        "_target_",
        "there is no such setting; a run has nodes, gpus_per_node,",
    ),
    ("+algo._args_=[1]", "algo._args_", "there is no such setting; algo has topology."),
    ("algo.name=os.system", "algo", "'os.system' is none of ad_psgd, "),
    ("algo.name={a:1}", "algo", "{'a': 1} is none of ad_psgd, "),
    ("algo.topology.name=sgp", "algo.topology", "'sgp' is none of base, bipartite, "),
    (
        "algo.topology.name=edges",
        "algo.topology.path",
        "it has no value; write algo.topology.path=...",
    ),
    (
        "model=quadratic data.dimension=1000000000",
        "data.dimension",
        "the data set needs at least 65.7 TB of memory (data.dimension=1000000000, "
        "data.samples=4096, data.groups=16), but this machine has ",
    ),
    (
        f"model=quadratic data.samples=1{19 * '0'}",
        "data.samples",
        "the data set needs at least 1.03e+07 PB of memory (data.dimension=64, "
        "data.samples=about 1e19, data.groups=16), but this machine has ",
    ),
    (f"log_every=1{20 * '0'}", "log_every", TOO_LONG),
    (f"log_every=1{5000 * '0'}", "log_every", TOO_LONG),
    (f"checkpoint.keep=-1{20 * '0'}", "checkpoint.keep", TOO_LONG),
    (f"cluster.bucket_bytes=1{8 * '0'}TB", "cluster.bucket_bytes", TOO_LONG),
    (f"network.vmap_width=1{20 * '0'}", "network.vmap_width", TOO_LONG),
    (f"optim.schedule.reference_batch=1{20 * '0'}", "optim.schedule.reference_batch", TOO_LONG),
    (
        "model=quadratic network=gloo nodes=2 data.dimension=100000000",
        "data.dimension",
        "the data set needs at least 6.57 TB of memory (data.dimension=100000000, ",
    ),
    (
        "model=resnet50 nodes=65536",
        "nodes",
        "resnet50, with 23,000,640 parameters or more, needs at least 12.1 TB of memory "
        "(nodes=65536), but this machine has ",
    ),
    (
        "model=mlp model.hidden=[1000000,1000000]",
        "model.hidden",
        "mlp, with 1,000,076,000,010 parameters or more, needs at least 68 TB of memory "
        "(model.hidden=1000000, nodes=8), but this machine has ",
    ),
    ("model=transformer model.encoder_layers=1000000000", "model.encoder_layers", "transformer, "),
    ("model=transformer model.width=100000000", "model.width", "transformer, with 240,000,204,800"),
    ("model=timing_only model.grain=1000000000000", "model.grain", "timing_only, with 1,000,000,"),
    ("data=shapes data.train_size=1000000000000", "data.train_size", "the data set needs at "),
    ("data=synthetic data.size=1000000000000000", "data.size", "the data set needs at least 8 PB"),
    ("data=synthetic data.num_classes=1000000000000", "data.num_classes", "resnet8, with 64,000"),
    ("model=mlp data=teacher data.width=100000000000", "data.width", "the data set needs at least"),
    ("epochs=1e308", "epochs", "1e+308 must be less than 1e+18."),
    ("model=timing_only epochs=1e308", "epochs", "1e+308 must be less than 1e+18."),
    (
        "timed_as.num_parameters=9223372036854775808",
        "timed_as.num_parameters",
        "9223372036854775808 must be less than 2**63.",
    ),
    (
        "cluster.latency_seconds=1e308",
        "cluster.latency_seconds",
        "1e+308 is out of range: simulated time is not finite after 1e+308 s; use a smaller ",
    ),
    (
        "algo=ar_sgd cluster.latency_seconds=1e308",
        "cluster.latency_seconds",
        "1e+308 is out of range: simulated time is not finite after ",
    ),
    ("faults.delay_seconds=1e308", "faults.delay_seconds", "1e+308 is out of range: simulated"),
    (
        "faults.slow_nodes={0:1e200} faults.events=[{what:slow_node,ranks:[0],factor:1e200}]",
        "faults.slow_nodes.0",
        "1e+200 is out of range (with faults.events[0].factor=1e+200): simulated time is not ",
    ),
    ("cluster.bandwidth=1e-307", "cluster.bandwidth", "1e-307 is out of range: simulated time is"),
    (
        "cluster.compute_time=log_normal cluster.compute_time.cv=1e200",
        "cluster.compute_time.cv",
        "1e+200 is too large: times would not be finite.",
    ),
    (
        "cluster.heterogeneity=1e-200",
        "cluster.heterogeneity",
        "1e-200 is too small: times would not be finite.",
    ),
    ("model.name=digits", "model", "'digits' is none of fairseq_transformer, "),
    ("optim.name=null", "optim", "nothing is chosen; use one of adam, adamw, muon, sgd."),
    ("checkpoint.name=faults", "checkpoint.name", "there is no such setting. Did you mean 'name'?"),
    ("faults.name=none", "faults.name", "there is no such setting. Did you mean 'name'?"),
    (
        "optim.lr=${oc.env:NOWHERE}",
        "optim.lr",
        'it cannot be resolved: KeyError raised while resolving interpolation: "Environment',
    ),
    ("optim.lr=${oc.decode:x}", "optim.lr", "'x' is not a number."),
    (
        "optim.lr=${optim.lr}",
        "optim.lr",
        "it cannot be resolved: Recursive interpolation detected.",
    ),
    ("+secret=1", "secret", "there is no such setting. Did you mean 'seed'?"),
    ("algo=ALGO", "algo", "'ALGO' is none of "),
    ("algo=../../etc/passwd", "algo", "'../../etc/passwd' is none of "),
    ("model=../config", "model", "'../config' is none of "),
    ("experiment=nowhere", "experiment", "'nowhere' is none of "),
    (
        "é=1",
        "é",
        "cannot read 'é=1'; write key=value, and quote special characters: \"key='a b'\".",
    ),
    (
        "nodes=４",
        "nodes",
        "cannot read 'nodes=４'; write key=value, and quote special characters: \"key='a b'\".",
    ),
    ("nodes=4 nodes=0", "nodes", "0 must be at least 1."),
    (
        "name=名前/x",
        "name",
        "cannot read 'name=名前/x'; write key=value, and quote special characters: \"key='a b'\".",
    ),
    ("--", "--", "there is no such option; settings are written key=value, for example nodes=4."),
    ("-x", "-x", "there is no such option; settings are written key=value, for example nodes=4."),
]
LONG = "x" * 300


def typed(words: str) -> list[str]:
    return (
        [words]
        if "'a b'" in words
        else words.encode().decode("unicode_escape").split()
        if "\\" in words
        else words.split()
    )


def refused(words: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """Return the error of a refused command, after checking that it has written nothing."""
    before = sorted(str(path) for path in Path().rglob("*"))
    assert main(words) == 2
    out, error = capfd.readouterr()
    assert "Traceback" not in out + error and error.count("\n") == 1
    assert sorted(str(path) for path in Path().rglob("*")) == before
    return error


@pytest.mark.parametrize(
    ("words", "key", "sentence"), SETTINGS, ids=[words[:99] for words, *_ in SETTINGS]
)
def test_settings_that_cannot_work(
    words: str, key: str, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("graph.txt").write_text("0 0\n")
    assert refused(typed(words), capfd).startswith(f"sgp-run: {key}: {sentence}")


def test_the_table_is_long_and_repeats_nothing() -> None:
    assert len({words for words, *_ in SETTINGS}) == len(SETTINGS) >= 100


@pytest.mark.parametrize(
    ("word", "key", "sentence"),
    [
        (f"results={LONG}", "results", "File name too long."),
        (f"name={LONG}", "name", "use up to 100 letters"),
        (f"algo={LONG}", "algo", "is none of ad_psgd"),
        (f"{LONG}=1", LONG, "there is no such setting"),
        ("results=/proc/nowhere", "results", "cannot write to /proc/nowhere/runs/"),
        ("results=file", "results", "cannot write to file/runs/"),
        ("results='名前\x00'", "results", "cannot name a folder"),
    ],
    ids=lambda value: value[:20],
)
def test_names_of_folders_that_cannot_be(
    word: str, key: str, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("file").touch()
    error = refused([word, "logger=jsonl"], capfd)
    assert error.startswith(f"sgp-run: {key}: ") and sentence in error


def test_unicode_is_welcome_where_it_can_be(capfd: pytest.CaptureFixture[str]) -> None:
    words = [*TINY, "results='Ergebnisse für τ=1 名前'", "name='σ_名前'"]
    assert main(words) == 0 and main(words) == 0
    assert "finished already" in capfd.readouterr().out


class Malice:
    """Its pickle makes a file when it is read."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch harm",)


CIFAR = [
    f"root/cifar-10-batches-py/{name}"
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")
]
DATA: dict[str, tuple[str, dict[str, bytes], str]] = {
    # data set, its files, and a part of the sentence
    "no folder": (
        "cifar10",
        {},
        "root/cifar-10-batches-py is missing; get it with: sgp-run download cifar10 data.root=root",
    ),
    "a file for a folder": ("cifar10", {"root": b""}, "root/cifar-10-batches-py is missing"),
    "files that run code": (
        "cifar10",
        dict.fromkeys(CIFAR, pickle.dumps(Malice())),
        "root/cifar-10-batches-py/data_batch_1 is damaged: its checksum is not the published one",
    ),
    "no images": (
        "imagenet",
        {},
        "there is no ImageNet at root, whose images are in train/<class>/",
    ),
    "images in a file": ("imagenet", {"root": b""}, "there is no ImageNet at root"),
    "an empty class": (
        "imagenet",
        {"root/train/a/x.txt": b"", "root/val/a/0.jpg": b""},
        "a class has no images",
    ),
    "nothing to validate": (
        "imagenet",
        {"root/train/a/0.jpg": b"", "root/val/a/x.txt": b""},
        "the classes in root/val have no images.",
    ),
    "no validation": ("imagenet", {"root/train/a/0.jpg": b""}, "whose images are in val/<class>/"),
    "another class": (
        "imagenet",
        {"root/train/a/0.jpg": b"", "root/val/b/0.jpg": b""},
        "root/val has the class b, which root/train does not",
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_data_that_are_not_what_they_should_be(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    data, files, sentence = DATA[name]
    for path, content in files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)
    error = refused(
        ["logger=jsonl", "model=resnet8", "nodes=2", f"data={data}", "data.root=root"], capfd
    )
    assert error.startswith("sgp-run: data.root: ") and sentence in error


def test_an_image_that_is_none_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(8):
        path = Path(f"root/{'train' if number else 'val'}/a/{number}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no image")
    words = [
        "logger=jsonl",
        "model=resnet8",
        "nodes=1",
        "batch_size=4",
        "data=imagenet",
        "data.root=root",
        "data.workers=0",
    ]
    assert main(words) == 1
    assert re.fullmatch(
        r"sgp-run: .*root/train/a/\d.jpg cannot be read as an image \(.*\n", capfd.readouterr().err
    )


# What lies in the way, in a run that was cut off after a checkpoint.
CUT_OFF = ["checkpoint.every_steps=2", "checkpoint.keep=1", "optim.lr=30", "epochs=40"]


def cut_off() -> Path:
    """The folder of a run that stopped before its end; its latest checkpoint."""
    assert main([*TINY, *CUT_OFF]) == 3
    (RUN / "diverged.json").unlink()
    return max((RUN / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))


def malicious(place: Path) -> None:
    torch.save({"now": Malice()}, place / "run.pt")
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["files"]["run.pt"] = checksum(place / "run.pt")
    (place / "manifest.json").write_text(json.dumps(manifest))


def no_state(place: Path) -> None:
    torch.save([1, 2], place / "run.pt")
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["files"]["run.pt"] = checksum(place / "run.pt")
    (place / "manifest.json").write_text(json.dumps(manifest))


def replaced(path: Path) -> Callable[[Path], None]:
    """A folder stands where a file should be."""

    def replace(place: Path) -> None:
        path.unlink()
        path.mkdir()
        (path / "something").touch()

    return replace


def pipe(path: Path) -> Callable[[Path], None]:
    """A named pipe stands where a file should be."""

    def replace(place: Path) -> None:
        path.unlink()
        os.mkfifo(path)

    return replace


IN_THE_WAY: dict[str, tuple[Callable[[Path], None], str]] = {
    "a checkpoint that runs code": (
        malicious,
        "resume: results/runs/mine/checkpoints/step-{} is not",
    ),
    "a checkpoint without a state": (no_state, "is not a checkpoint of sgp-run"),
    "a folder for a configuration": (
        replaced(RUN / "config.yaml"),
        "name: results/runs/mine/config.yaml cannot be read",
    ),
    "a folder for metrics": (
        replaced(RUN / "metrics.jsonl"),
        "results: cannot write to results/runs/mine/metrics.jsonl: Is a directory.",
    ),
    "a folder for the environment": (
        replaced(RUN / "environment.json"),
        "results: cannot write results/runs/mine/environment.json: Is a directory",
    ),
    "a binary configuration": (
        lambda place: (RUN / "config.yaml").write_bytes(b"\xff\x00"),
        "config.yaml cannot be read; choose another name",
    ),
    "an empty configuration": (
        lambda place: (RUN / "config.yaml").write_text(""),
        "config.yaml cannot be read; choose another name",
    ),
    "a list for a configuration": (
        lambda place: (RUN / "config.yaml").write_text("[1]"),
        "config.yaml cannot be read; choose another name",
    ),
    "metrics that are gone": (
        lambda place: os.truncate(RUN / "metrics.jsonl", 0),
        "resume: results/runs/mine/metrics.jsonl has 0 bytes",
    ),
    "a pipe for metrics": (
        pipe(RUN / "metrics.jsonl"),
        "results: cannot write to results/runs/mine/metrics.jsonl: Not a regular file.",
    ),
    "a pipe for a configuration": (
        pipe(RUN / "config.yaml"),
        "config.yaml cannot be read; choose another name",
    ),
    "a deep configuration": (
        lambda place: (RUN / "config.yaml").write_text("[" * 100_000),
        "config.yaml cannot be read; choose another name",
    ),
    "a configuration in itself": (
        lambda place: (RUN / "config.yaml").write_text("&a {format: 2, a: *a}"),
        "config.yaml cannot be read; choose another name",
    ),
}


@pytest.mark.parametrize("name", IN_THE_WAY)
def test_what_lies_in_the_way(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    spoil, sentence = IN_THE_WAY[name]
    place = cut_off()
    spoil(place)
    capfd.readouterr()
    before = {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()}
    assert main([*TINY, *CUT_OFF]) == 2
    *warnings, error = capfd.readouterr().err.splitlines()
    assert sentence.partition("{")[0] in error and error.startswith("sgp-run: ")
    refused = [f"warning: the checkpoint {place} is not used: it does not fit this run"]
    assert [warning.partition(" (")[0] for warning in warnings] == refused * ("checkpoint" in name)
    assert {
        path: path.read_bytes()
        for path in RUN.rglob("*")
        if path.is_file() and path.name != "environment.json"
    } == {path: content for path, content in before.items() if path.name != "environment.json"}
    assert not Path("harm").exists()


def test_presets_without_end_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    Path("mine/experiment").mkdir(parents=True)
    Path("mine/experiment/bomb.yaml").write_text("a: &a [*a]\n")
    Path("mine/experiment/odd.yaml").write_text("a: [\n")
    error = refused([*TINY, "--config-dir", "mine", "experiment=bomb"], capfd)
    assert error == (
        "sgp-run: --config-dir: mine/experiment/bomb.yaml cannot be read: *a contains itself or "
        "is not defined.\n"
    )


def test_a_damaged_summary_is_none(capfd: pytest.CaptureFixture[str]) -> None:
    for text in ("[1]", "{", "\x00"):
        assert main([*TINY, "resume=never"]) == 0
        (RUN / "summary.json").write_text(text)
        assert main(TINY) == 0
        assert "finished already" not in capfd.readouterr().out
        assert json.loads((RUN / "summary.json").read_text())["algorithm"] == "SGP"


def test_a_folder_where_wandb_cannot_write_is_a_warning(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    RUN.mkdir(parents=True)
    (RUN / "wandb_id").mkdir()
    assert main([*TINY, "logger=wandb"]) == 0
    error = capfd.readouterr().err
    assert re.fullmatch(
        r"warning: W&B failed to start, so this run is in metrics.jsonl only \(.*\)\n", error
    )
    wandb.teardown()


# The same, as commands of their own.

COMMANDS = [
    ["nodes=0"],
    ["optim.lr=nan"],
    ["algo=ad_psgd", "algo.topology=ring", "nodes=5"],
    ["algo._target_=os.system"],
    ["optim.schedule.name=sgp_runner.config.run.Run"],
    ["name=../../up"],
    ["algo.topology=edges", "algo.topology.path=nowhere"],
    ["results=/dev/null"],
    ["model=mlp", "nodes=5000"],
    ["network=gloo", "model=mlp", "nodes=2", "batch_size=5000"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_as_a_process(words: list[str], in_an_empty_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sgp_runner", "logger=jsonl", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and done.stdout in (
        "",
        next(iter(done.stdout.splitlines(keepends=True)), ""),
    )
    assert re.fullmatch(r"sgp-run: [\w.]+: .+\n", done.stderr)
    assert list(in_an_empty_folder.iterdir()) == []
