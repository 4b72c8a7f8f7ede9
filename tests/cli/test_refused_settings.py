"""Settings that do not exist or do not fit: one sentence that names the key and the fix."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from sgp_runner.cli.main import main

BAD: list[tuple[str, str, str]] = [
    # arguments, key, and a part of the sentence
    ("nodez=4", "nodez", "Did you mean 'nodes'?"),
    ("+nodez=4", "nodez", "Did you mean 'nodes'?"),
    ("~nodez", "nodez", "Did you mean 'nodes'?"),
    ("alog=sgp", "alog", "Did you mean 'algo'?"),
    ("lr=0.1", "lr", "Did you mean 'optim.lr'?"),
    ("optim.LR=0.1", "optim.LR", "Did you mean 'optim.lr'?"),
    ("algo=osgp algo.taux=3", "algo.taux", "Did you mean 'algo.tau'?"),
    ("algo=osgp tau=3", "tau", "Did you mean 'algo.tau'?"),
    (
        "algo=ar_sgd algo.topology=ring",
        "algo.topology",
        "there is no such setting; algo has average, codec.",
    ),
    ("algo.base=osgp", "algo.base", "there is no such setting; algo has topology."),
    ("topology=ring", "topology", "write algo.topology=..."),
    ("hydra.foo=1", "hydra.foo", "Hydra has no such setting."),
    (
        "-m hydra/launcher=slurm hydra.launcher.timeout_mins=3 seed=1,2",
        "hydra.launcher.timeout_mins",
        "Did you mean 'timeout_min'?",
    ),
    ("-m hydra/sweeper=optuna seed=1,2", "hydra/sweeper", "A study with tune: {rule: tpe}"),
    ("algo=diloco algo.H=50", "algo.H", "Did you mean 'algo.period'?"),
    ("max_steps=100", "max_steps", "Did you mean 'epochs'?"),
    ("world_size=4", "world_size", "Did you mean 'nodes'?"),
    ("learning_rate=0.1", "learning_rate", "Did you mean 'optim.lr'?"),
    ("algo=local_sgd algo.H=50", "algo.H", "Did you mean 'algo.tau'?"),
    (
        "-m algo=sgp,osgp algo.tau=1",
        "algo.tau",
        "For algo=osgp alone, write algo.osgp.tau=... (Job 1 of 2: algo=sgp)",
    ),
    ("algo=sgpp", "algo", "'sgpp' is not one of a2cid2, acco, accum_adam, acp_sgd, ad_psgd, "),
    ("algo=sgpp", "algo", "Did you mean 'sgp'?"),
    ("algo=", "algo", "'' is not one of a2cid2, acco"),
    ("x@cluster=laptop", "x@cluster", "there is no group 'x'; write cluster=laptop."),
    ("~algo", "algo", "no choice is selected; use one of a2cid2, acco"),
    ("model=resnet5", "model", "Did you mean 'resnet50'?"),
    ("algo.topology=rng", "algo.topology", "Did you mean 'ring'?"),
    (
        "++algo.topology=ring",
        "algo.topology",
        "a choice cannot be forced with ++: write algo.topology=ring.",
    ),
    ("algo=slowmo algo.base=osgd", "algo.base", "Did you mean 'osgp'?"),
    ("optim.schedule=cosin", "optim.schedule", "Did you mean 'cosine'?"),
    ("cluster.compute_time=gama", "cluster.compute_time", "Did you mean 'gamma'?"),
    ("-m hydra/launcher=bsic", "hydra/launcher", "Did you mean 'basic'?"),
    *(
        (f"{override} seed=1,2 -m", key, "Hydra may call only a launcher and a sweeper")
        for override, key in [
            ("hydra.launcher._target_=os.system", "hydra.launcher._target_"),
            ("++hydra.launcher._target_=os.system", "hydra.launcher._target_"),
            ("hydra.launcher={_target_:os.system}", "hydra.launcher._target_"),
            ("hydra.sweeper={_target_:x.BasicSweeper}", "hydra.sweeper._target_"),
            ("+hydra.callbacks.a={_target_:os.system}", "hydra.callbacks.a._target_"),
        ]
    ),
    ("jobs=2", "jobs", "only a sweep runs several jobs at a time; add -m."),
    ("-m jobs=0 seed=1,2", "jobs", "'0' is not a number of runs, such as jobs=2."),
    ("-m jobs=1,2 seed=1,2", "jobs", "'1,2' is not a number of runs, such as jobs=2."),
    (
        "algo.osgp.tau=1",
        "algo.osgp.tau",
        "it is a setting of algo=osgp, but this run has a different choice",
    ),
    (
        "-m algo=sgp,ar_sgd algo.osgp.tau=1",
        "algo.osgp.tau",
        "it is a setting of algo=osgp, but no run of this sweep has this choice.",
    ),
    (
        "-m algo=sgp,osgp algo.osgp.taux=1",
        "algo.taux",
        "Did you mean 'algo.tau'? (Job 2 of 2: algo=osgp)",
    ),
    ("hydra/launcher=slurm", "hydra/launcher", "this setting is for sweeps only; add -m."),
    ("nodes=abc", "nodes", "'abc' is not a whole number."),
    ("nodes=2.5", "nodes", "2.5 is not a whole number."),
    ("nodes=true", "nodes", "true is not a whole number."),
    ("nodes=", "nodes", "'' is not a whole number."),
    ("nodes=null", "nodes", "write nodes=..."),
    ("nodes=???", "nodes", "write nodes=..."),
    ("nodes=0", "nodes", "0 must be at least 1."),
    ("epochs=nan", "epochs", "nan must be finite."),
    ("epochs=-1", "epochs", "must be positive"),
    ("optim.lr=fast", "optim.lr", "'fast' is not a number."),
    ("optim.lr=1ms", "optim.lr", "'1ms' is not a number."),
    (
        "cluster.bandwidth=1ms",
        "cluster.links.bandwidth",
        "'1ms' is not a number in bit/s (such as 100Mbit/s) or an interval such as 4..10Gbit/s.",
    ),
    (
        "network=gloo network.latency_seconds=5MB",
        "network.latency_seconds",
        "'5MB' is not a number in seconds (such as 10s or 1ms).",
    ),
    (
        "cluster.collectives.bucket_bytes=0.5B",
        "cluster.collectives.bucket_bytes",
        "0.5 is not a whole number.",
    ),
    (
        "checkpoint.every_minutes=soon",
        "checkpoint.every_minutes",
        "'soon' is not a number in minutes (such as 30min) or null.",
    ),
    ("algo=SGP", "algo", "Did you mean 'sgp'?"),
    ("algo.topology=RING", "algo.topology", "Did you mean 'ring'?"),
    (
        "algo=gap_aware algo.penalty=gapp",
        "algo.penalty",
        "'gapp' is not one of gap, staleness, none. Did you mean 'gap'?",
    ),
    (
        "algo.topology.peers={a:1}",
        "algo.topology.peers",
        "is not a whole number or a mapping such as {0: 2}.",
    ),
    (
        "algo=slowmo algo.base=osgp algo.base.tau=-1",
        "algo.base.tau",
        "-1 must be at least 0.",
    ),
    (
        "algo=slowmo algo.base=gap_aware",
        "algo.base",
        "'gap_aware' is not one of ar_sgd, d_psgd, local_sgd, osgp, sgp.",
    ),
    (
        "algo=ad_psgd algo.topology=ring nodes=3",
        "algo.topology",
        "in step 0 there is 0 -> 2; use bipartite, ring or such edges.",
    ),
    (
        "model=transformer data=digits",
        "data",
        "Use model=conv or hf or mlp or resnet18 or resnet20 or resnet50 or resnet8 or "
        "torchvision, or data=numbers_en_de.",
    ),
    ("data=wmt16_en_de", "data", "is fairseq_translation. Use model=fairseq_transformer."),
    ("data=numbers_en_de", "data", "is translation. Use model=transformer."),
    (
        "data=wmt16_en_de model=fairseq_transformer",
        "data.root",
        "get wmt16_en_de.tar.gz from https://drive.google.com/uc?export=download&id=",
    ),
    ("model=torchvision model.arch=vgg", "model.arch", "is not a torchvision classifier. Did you"),
    (
        "model=torchvision model.arch=alexnet data=digits",
        "model.arch",
        "alexnet cannot read images of 1 x 8 x 8 (",
    ),
    (
        "download",
        "download",
        "write sgp-run download cifar10|cifar100|fashion_mnist|mnist|gutenberg|help_en_de",
    ),
    ("download imagenet", "download", "unpack it with scripts/prepare_imagenet.sh."),
    ("download wmt16_en_de", "download", "and run scripts/prepare_wmt16.sh."),
    (
        "download sounds",
        "download",
        "there is no data set 'sounds'. Choose one of cifar10, cifar",
    ),
    ("download mnist url=x", "download", "write sgp-run download"),
    ("download cifar10 data.path=x", "download", "write sgp-run download"),
    ("download cifar", "download", "there is no data set 'cifar'. Did you mean 'cifar10'?"),
    ("data=grammar", "data", "is language. Use model=gpt"),
    *(
        (arguments, "optim.lr", "a sweep needs a finite list of values: write 0.1,0.2 or range")
        for arguments in ("optim.lr=interval(0.1,0.2)", "-m optim.lr=interval(0.1,0.2)")
    ),
    (
        "algo=d_psgd algo.topology=exponential",
        "algo.topology",
        "base, equi_dyn, hyper_hypercube, or edges with each edge in both directions.",
    ),
    ("+experiment=x", "experiment", "'x' is not one of ar_then_sgp, "),
    ("name=../up", "name", "'../up' is not a valid folder name"),
    ("checkpoint.every_steps=0", "checkpoint.every_steps", "0 must be at least 1, or null."),
    (
        "checkpoint.every_minutes=-1",
        "checkpoint.every_minutes",
        "-1.0 must be positive and finite, or null.",
    ),
    ("checkpoint.keep=0", "checkpoint.keep", "0 must be at least 1."),
    ("checkpoint.every=3", "checkpoint.every", "Did you mean 'checkpoint.every_steps'?"),
    ("faults.slow_nodes={99:2}", "faults.slow_nodes.99", "the run has no such rank; use 0 to 7."),
    (
        "algo=gap_aware faults.slow_nodes={8:2}",
        "faults.slow_nodes.8",
        "the run has no such rank; use 0 to 7.",
    ),
    (
        "cluster.compute.node_factors={8:2}",
        "cluster.compute.node_factors.8",
        "the run has no such rank; use 0 to 7.",
    ),
    (
        "optim.lr=${nodez}",
        "optim.lr",
        "the interpolation cannot be resolved: Interpolation key 'nodez' not found.",
    ),
    (
        "optim.schedule={_target_:os.system}",
        "optim.schedule._target_",
        "there is no such setting; optim.schedule has milestones, ",
    ),
    ("nodes", "nodes", "write key=value, for example nodes=4."),
    ("nodes==3", "nodes", "cannot read 'nodes==3'; write key=value"),
    ("nodes=[1", "nodes", "cannot read 'nodes=[1'; write key=value"),
    ("=5", "=5", "the key is missing; write key=value"),
    ("nodes=4,8", "nodes", "add -m to run all of them."),
    ("--nodes=4", "--nodes", "there is no such option; settings are written key=value"),
    ("--cgf job", "--cgf", "Did you mean '--cfg'?"),
    ("--cfg job nodez=4", "nodez", "Did you mean 'nodes'?"),
    ("--cfg", "--cfg", "its value is missing: write --cfg job."),
    ("-sc query=tcsh", "--shell-completion", "write -sc install=bash, zsh or fish."),
    ("-sc", "--shell-completion", "write -sc install=bash, zsh or fish."),
    ("--cfg jib", "--cfg", "'jib' is not one of job, hydra, all."),
    ("--package=algo", "--package", "this option changes the output of --cfg: add --cfg job."),
    ("--resolve nodes=4", "--resolve", "this option changes the output of --cfg: add --cfg job."),
    (
        "-m --cfg job nodes=2,4",
        "--cfg",
        "this option prints the settings of one run: omit --multirun.",
    ),
    ("--cfg job -p algo.nowhere", "--package", "the configuration has no 'algo.nowhere'."),
    (
        "--cfg job nodes=${nodez}",
        "nodes",
        "the interpolation cannot be resolved: Interpolation key 'nodez' not found.",
    ),
    (
        "rehearsal=${nodez}",
        "rehearsal",
        "the interpolation cannot be resolved: Interpolation key 'nodez' not found.",
    ),
    ("rehearsal=???", "rehearsal", "the value is missing; write rehearsal=..."),
    ("rehearsal=true", "rehearsal", "this preset does not support rehearsal;"),
    ("~algo.tau", "algo.tau", "there is no such setting; algo has topology."),
    ("--config-dir nowhere", "--config-dir", "there is no folder 'nowhere'."),
    ("-m nodes=4 algo=sgp,sgpp", "algo", "Did you mean 'sgp'?"),
    (
        "-m nodes=4,5 algo=d_psgd,ad_psgd algo.topology=ring",
        "algo.topology",
        "ring or such edges. (Job 4 of 4: nodes=5 algo=ad_psgd)",
    ),
    ("-m nodes=4,x", "nodes", "'x' is not a whole number. (Job 2 of 2: nodes=x)"),
    ("algo=qg_dsgdm algo.mu=1", "algo.mu", "1.0 must be in [0, 1), or null."),
    ("timed_as.num_parameters=0", "timed_as.num_parameters", "0 must be at least 1, or null."),
    (
        "timed_as.bytes_per_parameter=0",
        "timed_as.bytes_per_parameter",
        "0.0 must be positive, for example 2.",
    ),
    (
        "cluster.compute.input_seconds=9",
        "cluster.compute.input_seconds",
        "9.0 is more than the 0.05 s of a gradient of resnet8.",
    ),
    ("data=folder", "data.path", "set it to a folder with one subfolder per class."),
    ("data=folder data.image_size=0", "data.image_size", "0 must be at least 1."),
    ("data=folder data.workers=-1", "data.workers", "-1 must be at least 0, or null."),
    (
        "model=timing_only model.sample_steps=null data=text data.path=x",
        "model.sample_steps",
        "text has no known epoch length: set it.",
    ),
    ("data=hf", "data.path", "give a data set or a folder: data=hf:roneneldan/TinyStories"),
    ("data=hf:x data.tokens=1", "data.tokens", "1 do not fill a block of 64."),
    ("data=text data.tokens=1", "data.tokens", "1 do not fill a block of 64."),
    ("data=text data.valid_share=1", "data.valid_share", "must be between 0 and 1, not 1.0."),
    (
        "model=gpt data=grammar model.width=6 model.heads=4",
        "model.width",
        "6 must be a multiple of 2 * model.heads = 8.",
    ),
    ("network=gloo network.timeout_seconds=0", "network.timeout_seconds", "0.0 must be positive."),
    (
        "network=gloo on_failure=continue record=true",
        "on_failure",
        "a run that continues without lost ranks cannot be recorded: use on_failure=stop, or",
    ),
    (
        "-m jobs=2 hydra/launcher=slurm seed=1,2",
        "jobs",
        "jobs= applies to runs on this machine; omit jobs= or hydra/launcher=.",
    ),
    ("results=file/below", "results", "cannot write to file/below/runs/sgp-"),
    ("-m nodes=2,4 results=file/below", "results", "cannot write to file/below/sweeps/"),
    ("model=quadratic batch_size=9999", "batch_size", "The largest batch size that works is 512."),
]


@pytest.mark.parametrize(
    ("arguments", "key", "part"), BAD, ids=[arguments for arguments, *_ in BAD]
)
def test_bad_settings_are_one_sentence_and_nothing_is_written(
    arguments: str, key: str, part: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("file").touch()
    assert main(arguments.split()) == 2
    out, error = capfd.readouterr()
    assert out == "" and part in error
    assert re.fullmatch(rf"sgp-run: {re.escape(key)}: .+\n", error)
    assert os.listdir() == ["file"]
