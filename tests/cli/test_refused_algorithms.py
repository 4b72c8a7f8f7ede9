"""Settings of a run, its optimizer, algorithm and topology that cannot work."""

from __future__ import annotations

import pytest
from helpers.refusals import check_refused

# The command line, the key of the error, and the beginning of its sentence.
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
    ("dtype=float16", "dtype", "'float16' is not one of float32, float64. Did you mean 'float64'?"),
    ("eval_every=0", "eval_every", "0 must be positive, for example 1 or 0.25."),
    ("log_every=0", "log_every", "0 must be at least 1."),
    ("resume=maybe", "resume", "'maybe' is not one of auto, never, resize."),
    (
        "name=a/b",
        "name",
        "'a/b' is not a valid folder name: use up to 100 letters, digits and . , = + - _, no "
        "slashes.",
    ),
    (
        "name=..",
        "name",
        "'..' is not a valid folder name: use up to 100 letters, digits and . , = + - _, no "
        "slashes.",
    ),
    (
        "name=.hidden",
        "name",
        (
            "'.hidden' is not a valid folder name: use up to 100 letters, digits and . , = + - _, "
            "no "
            "slashes."
        ),
    ),
    (
        "name='a b'",
        "name",
        "'a b' is not a valid folder name: use up to 100 letters, digits and . , = + - _, no "
        "slashes.",
    ),
    (
        "name='a\\nb'",
        "name",
        "cannot read 'name='a'; write key=value, and quote special characters: \"key='a b'\".",
    ),
    ("name=5", "name", "5 is not text or null."),
    ("results=5", "results", "5 is not text; quote it: \"results='5'\"."),
    ("results=null", "results", "the value is missing; write results=..."),
    ("results=''", "results", "'' is not a valid folder name; the current folder is results=."),
    (
        "results='a\\x00b'",
        "results",
        "'a\\x00b' is not a valid folder name; the current folder is results=.",
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
        "0 must be at least 1, or null.",
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
        "[-5.0] must be non-negative epochs.",
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
    ("algo=osgp algo.tau=-1", "algo.tau", "-1 must be at least 0."),
    ("algo=osgp algo.interval=0", "algo.interval", "0 must be at least 1."),
    (
        "algo=osgp algo.layout=best",
        "algo.layout",
        "'best' is not one of paper, released, released_2019.",
    ),
    ("algo=slowmo algo.tau=0", "algo.tau", "0 must be at least 1 step, or null as in the paper."),
    ("algo=slowmo algo.alpha=0", "algo.alpha", "0.0 must be positive and finite."),
    ("algo=slowmo algo.beta=1", "algo.beta", "1.0 must be in [0, 1)."),
    (
        "algo=slowmo algo.base=slowmo",
        "algo.base",
        "'slowmo' is not one of ar_sgd, d_psgd, local_sgd, osgp, sgp.",
    ),
    (
        "algo=slowmo algo.base=ad_psgd",
        "algo.base",
        "'ad_psgd' is not one of ar_sgd, d_psgd, local_sgd, osgp, sgp. Did you mean 'd_psgd'?",
    ),
    ("algo=hybrid algo.switch_epoch=0", "algo.switch_epoch", "0.0 must be positive and finite."),
    (
        "algo=hybrid algo.first=ad_psgd",
        "algo.first",
        "AD-PSGD cannot be part of a hybrid: use a synchronous algorithm without a server.",
    ),
    ("algo=pipe_sgd algo.depth=0", "algo.depth", "0 must be at least 1."),
    ("algo=pipe_sgd algo.clip=0", "algo.clip", "0.0 must be positive, or null for no clipping."),
    (
        "algo=pipe_sgd algo.warmup_epochs=-1",
        "algo.warmup_epochs",
        "-1.0 must be at least 0.",
    ),
    (
        "algo=pipe_sgd algo.compression=zip",
        "algo.compression",
        "'zip' is not one of none, truncate16, quantize8.",
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
        "D-PSGD needs a symmetric graph: ring, bipartite, complete, torus, tree, random_matching",
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
            "nodes with several devices cannot continue without a rank: use on_failure=stop, or "
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
    ("on_failure=go", "on_failure", "'go' is not one of stop, continue."),
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
    (
        "algo.topology=edges",
        "algo.topology.path",
        "the value is missing; write algo.topology.path=...",
    ),
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
        "graph.txt, line 1: in step 0 node 0 sends to itself; remove the edge, "
        "as a node always keeps its own share.",
    ),
]


@pytest.mark.parametrize(
    ("overrides", "key", "sentence"), SETTINGS, ids=[overrides[:99] for overrides, *_ in SETTINGS]
)
def test_settings_that_cannot_work(
    overrides: str, key: str, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    check_refused(overrides, key, sentence, capfd)
