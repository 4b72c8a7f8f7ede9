"""Jobs and sweeps on a real Slurm cluster of four nodes, which is this machine four times."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from helpers.paths import ROOT
from helpers.processes import hear_interrupts, hears, wait_until
from helpers.slurm_cluster import missing_programs, say, slurm_cluster

from sgp_runner.recording.recorder import read_metrics
from sgp_runner.utils.units import percent

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(9000)]
SCRIPTS = ROOT / "slurm"
RUN = ("model=mlp", "network=gloo", "logger=jsonl")
LONG = (*RUN, "epochs=100000")
SHOTS = int(os.environ.get("SHOTS_FIRED", "100"))
TOO_BIG = 10**15  # elements, more than any address space holds


@dataclass(frozen=True)
class Cluster:
    """Commands in a folder that all nodes share. environment: makes Slurm's commands talk to the
    cluster.
    """

    environment: dict[str, str]
    folder: Path

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
            preexec_fn=hear_interrupts,
        )

    def run(self, *command: str) -> tuple[int, str, str]:
        with self.start(*command) as process:
            out, error = process.communicate()
        return process.returncode, out, error

    def submit(self, *arguments: str) -> str:
        """The number of the job."""
        code, out, error = self.run("sbatch", "--parsable", *arguments)
        assert code == 0, error
        return out.strip()

    def complete(self, *arguments: str) -> str:
        """The number of a job, which has ended without an error."""
        number = self.submit(*arguments)
        assert self.end_of(number) == "COMPLETED", self.output(number)
        return number

    def end_of(self, number: str) -> str:
        """The state in which the job ends."""
        ends = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        wait_until(lambda: self.job(number)["JobState"] in ends, f"job {number} to end", 400)
        return self.job(number)["JobState"]

    def job(self, number: str) -> dict[str, str]:
        """What Slurm says of a job."""
        return dict(
            re.findall(
                r"(\w+)=(\S*)",
                say(self.environment, "scontrol", "show", "job", "--oneliner", number),
            )
        )

    def records(self) -> list[str]:
        """The lines that the first rank of the only run has written."""
        return [
            line
            for path in self.folder.glob("results/runs/*/metrics.jsonl")
            for line in path.read_text().splitlines()
        ]

    def output(self, number: str) -> str:
        return (self.folder / f"results/slurm/sgp-run-{number}.out").read_text()

    @property
    def runs(self) -> list[Path]:
        return sorted(self.folder.glob("results/runs/*"))

    @property
    def summary(self) -> dict[str, Any]:
        """That of the only run."""
        (run,) = self.runs
        return dict(json.loads((run / "summary.json").read_text()))

    def wait_for_jobs(self) -> None:
        """Slurm learns some time after a job's result is there that it has ended."""
        wait_until(lambda: not say(self.environment, "squeue", "--noheader"), "the jobs to end")

    def ranks(self) -> list[int]:
        """Process ids of the ranks on all nodes; they work in the folder."""
        return [
            int(entry.name)
            for entry in Path("/proc").glob("[0-9]*")
            if self.works_here(entry, "cmdline", b"logger=jsonl")
        ]

    def rank(self, number: int) -> int:
        """The process id of one of them."""
        (rank,) = (
            int(entry.name)
            for entry in Path("/proc").glob("[0-9]*")
            if self.works_here(entry, "environ", f"SLURM_PROCID={number}".encode())
            and b"python" in (entry / "exe").readlink().name.encode()
        )
        return rank

    def works_here(self, process: Path, file: str, word: bytes) -> bool:
        """Whether a process works in the folder, with a word in its file of words."""
        try:
            return (process / "cwd").readlink() == self.folder and word in (
                process / file
            ).read_bytes().split(b"\0")
        except OSError:
            return False


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if missing := missing_programs():
        sentence = f"needs {', '.join(missing)}; on Debian: apt-get install slurm-wlm munge"
        if "CI" in os.environ:
            pytest.fail(sentence)
        pytest.skip(sentence)
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as found:
        path = f"{Path(sys.executable).parent}:{found['PATH']}"
        yield {**found, "PATH": path, "OMP_NUM_THREADS": "1", "SGP_INTERFACE": "lo"}


@pytest.fixture
def cluster(environment: dict[str, str], tmp_path: Path) -> Cluster:
    (tmp_path / "results/slurm").mkdir(parents=True)
    found = Cluster(environment, tmp_path)
    found.wait_for_jobs()
    return found


def test_a_job_trains_on_four_nodes(cluster: Cluster) -> None:
    number = cluster.complete(
        "--nodes=4", f"{SCRIPTS}/run.sbatch", "algo=sgp", *RUN, "nodes=4", "epochs=1"
    )
    assert cluster.job(number)["NodeList"] == "127.0.0.[1-4]"
    assert cluster.output(number).count("4 nodes · gloo") == 2  # when it starts, and over the table
    assert cluster.summary["nodes"] == 4
    metrics = read_metrics(cluster.runs[0])
    assert {record["rank"] for record in metrics if record["kind"] == "train"} == {0, 1, 2, 3}


def test_a_node_of_two_devices_has_two_tasks(cluster: Cluster) -> None:
    cluster.complete(
        "--nodes=2", f"{SCRIPTS}/run.sbatch", *RUN, "nodes=2", "gpus_per_node=2", "epochs=1"
    )
    assert cluster.summary["nodes"] == 2


def show_places(cluster: Cluster) -> None:
    """Write a set-up file by which every rank leaves a file with its place."""
    line = 'touch "at-$SLURM_PROCID-${SLURMD_NODENAME##*.}-$SLURM_LOCALID-$CUDA_VISIBLE_DEVICES"\n'
    (cluster.folder / "setup.sh").write_text(f"[[ -z ${{SLURM_STEP_ID:-}} ]] || {line}")


def places(cluster: Cluster) -> list[str]:
    """The rank, machine, rank on it and visible GPUs of every process."""
    return sorted(path.name for path in cluster.folder.glob("at-*"))


def test_nodes_of_one_gpu_share_a_machine(cluster: Cluster) -> None:
    show_places(cluster)
    number = cluster.complete(
        *("--nodes=1", "--ntasks=4", "--gpus-per-node=4", "--export=ALL,SGP_SETUP=setup.sh"),
        *(f"{SCRIPTS}/run.sbatch", "algo=sgp", *RUN, "nodes=4", "epochs=1"),
    )
    assert places(cluster) == [f"at-{rank}-1-{rank}-0,1,2,3" for rank in range(4)]
    assert "srun: " not in cluster.output(number)
    assert cluster.summary["nodes"] == 4


def test_the_devices_of_a_node_are_on_one_machine(cluster: Cluster) -> None:
    show_places(cluster)
    number = cluster.complete(
        *("--nodes=2", "--ntasks=6", "--gpus-per-node=4", "--export=ALL,SGP_SETUP=setup.sh"),
        *(f"{SCRIPTS}/run.sbatch", *RUN, "nodes=3", "gpus_per_node=2", "epochs=1"),
        "batch_size=32",
    )
    assert places(cluster) == [
        f"at-{rank}-{machine}-{local}-0,1,2,3"
        for rank, (machine, local) in enumerate([(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1)])
    ]
    assert "srun: " not in cluster.output(number)


def test_a_job_that_shares_its_nodes_reads_its_setup_on_each(cluster: Cluster) -> None:
    (cluster.folder / "setup.sh").write_text('touch "set-up-${SLURM_PROCID:-none}"\n')
    number = cluster.complete(
        *("--nodes=2", "--oversubscribe", "--cpus-per-task=1", "--export=ALL,SGP_SETUP=setup.sh"),
        *(f"{SCRIPTS}/run.sbatch", "algo=sgp", *RUN, "nodes=2", "epochs=1"),
    )
    assert cluster.job(number)["OverSubscribe"] != "NO"
    assert {"set-up-0", "set-up-1"} <= {path.name for path in cluster.folder.glob("set-up-*")}


@pytest.mark.parametrize(("network", "nodes"), [("sim", 1), ("gloo", 4)])
def test_a_requeued_job_goes_on_where_it_was(network: str, nodes: int, cluster: Cluster) -> None:
    overrides = ["algo=sgp", *RUN, f"network={network}", "nodes=4", "epochs=50", "eval_every=25"]
    number = cluster.submit(f"--nodes={nodes}", f"{SCRIPTS}/run.sbatch", *overrides)
    wait_until(lambda: len(cluster.records()) > 20, "some steps")
    before = cluster.records()[:20]
    # As Slurm does before the time is up.
    say(cluster.environment, "scancel", "--signal=USR1", number)
    assert cluster.end_of(number) == "COMPLETED", cluster.output(number)
    assert cluster.job(number)["Restarts"] == "1"
    assert cluster.output(number).count("the job is requeued") == 1
    assert cluster.records()[:20] == before
    for rank in range(4):  # nothing is done twice
        steps = [
            record["step"]
            for record in read_metrics(cluster.runs[0])
            if record["kind"] == "train" and record["rank"] == rank
        ]
        assert steps[:-1] == sorted(set(steps))  # the last one is recorded again at the end


def test_a_job_of_which_a_rank_is_killed_is_requeued_and_goes_on(cluster: Cluster) -> None:
    overrides = [
        "algo=ar_sgd",
        *RUN,
        "nodes=4",
        "epochs=30",
        "eval_every=1000",
        "checkpoint.every_steps=100",
    ]
    number = cluster.submit("--nodes=4", f"{SCRIPTS}/run.sbatch", *overrides)
    wait_until(
        lambda: list(cluster.folder.glob("results/runs/*/checkpoints/step-*")), "a checkpoint", 180
    )
    os.kill(max(cluster.ranks()), signal.SIGKILL)
    assert cluster.end_of(number) == "COMPLETED", cluster.output(number)
    assert cluster.job(number)["Restarts"] == "1"
    assert cluster.output(number).count("a rank was killed; the job is requeued") == 1
    assert "This run resumes from step" in cluster.output(number)
    assert cluster.summary["steps"] == 30 * 44


@pytest.mark.parametrize("what", ["rank", "node"])
def test_the_others_finish_a_job_of_which_one_is_killed(what: str, cluster: Cluster) -> None:
    """A rank, or everything that there is of the job on its node, Slurm's own process first."""
    overrides = ["algo=sgp", *RUN, "nodes=4", "epochs=30", "eval_every=1000", "on_failure=continue"]
    number = cluster.submit("--nodes=4", "--no-kill", f"{SCRIPTS}/run.sbatch", *overrides)
    wait_until(lambda: len(cluster.records()) > 20, "some steps", 400)
    rank = cluster.rank(2)
    for victim in [parent(parent(rank)), parent(rank), rank] if what == "node" else [rank]:
        os.kill(victim, signal.SIGKILL)
    assert cluster.end_of(number) == "COMPLETED", cluster.output(number)
    assert cluster.job(number)["Restarts"] == "0"
    assert cluster.summary["lost"] == [2] and cluster.summary["average"] > 0.9
    assert not list(cluster.folder.glob("results/slurm/.*"))


def test_a_sweep_has_the_results_of_a_job_of_which_a_rank_is_killed(cluster: Cluster) -> None:
    overrides = [
        "algo=sgp",
        "network=gloo",
        "model=mlp",
        "nodes=3",
        "epochs=30",
        "eval_every=1000",
        "on_failure=continue",
    ]
    with cluster.start(*sweep(*overrides, "hydra.launcher.nodes=3")) as process:
        wait_until(lambda: len(cluster.records()) > 20, "some steps", 400)
        os.kill(cluster.rank(2), signal.SIGKILL)
        _, error = process.communicate()
    assert process.returncode == 0, error
    ((row,),) = comparisons(cluster).values()
    assert (row["failed"], row["lost"]) == ("", "[2]")


@pytest.mark.parametrize(("network", "nodes"), [("sim", 1), ("gloo", 4)])
def test_a_cancelled_job_leaves_no_process(network: str, nodes: int, cluster: Cluster) -> None:
    number = cluster.submit(
        f"--nodes={nodes}", f"{SCRIPTS}/run.sbatch", *LONG, f"network={network}", "nodes=4"
    )
    wait_until(
        lambda: len(list(cluster.folder.glob("results/runs/*/metrics*.jsonl"))) == nodes,
        "the ranks",
    )
    assert len(cluster.ranks()) >= nodes
    say(cluster.environment, "scancel", number)
    wait_until(lambda: not cluster.ranks(), "the ranks to end")
    assert cluster.end_of(number) == "CANCELLED"


def test_a_command_in_a_batch_script_starts_its_own_ranks(cluster: Cluster) -> None:
    number = cluster.submit(
        *("--nodes=4", "--ntasks=4", "--output=%j.txt"),
        f"--wrap={' '.join(('sgp-run', *RUN, 'nodes=2', 'epochs=1'))}",
    )
    assert cluster.end_of(number) == "COMPLETED"
    assert "2 nodes · gloo" in (cluster.folder / f"{number}.txt").read_text()


def test_what_is_wrong_is_said_once(cluster: Cluster) -> None:
    code, out, error = cluster.run("srun", "--nodes=4", "sgp-run", *RUN, "nodes=3")
    assert (code, out) == (2, "")
    assert (
        error.count("sgp-run: nodes: 3 nodes need 3 processes, but the launcher started 4.")
        == error.count("sgp-run:")
        == 1
    )
    assert cluster.runs == []


def comparisons(cluster: Cluster) -> dict[str, list[dict[str, str]]]:
    """The rows of every sweep; those that have results are compared with the summaries on disk."""
    found = {}
    for path in cluster.folder.glob("results/sweeps/*/comparison.csv"):
        with path.open() as file:
            found[path.parent.name] = rows = list(csv.DictReader(file))
        for row in rows:
            if not row["failed"]:
                summary = json.loads((cluster.folder / row["run_dir"] / "summary.json").read_text())
                assert {key: row[key] for key in summary} == {
                    key: "" if value is None else str(value) for key, value in summary.items()
                }
    return found


def sweep(*overrides: str) -> list[str]:
    return [
        "sgp-run",
        "-m",
        "hydra/launcher=slurm",
        "hydra.sweep.dir=${results}/sweeps/here",
        "logger=jsonl",
        *overrides,
    ]


def test_modules_of_the_present_folder_do_not_run(cluster: Cluster) -> None:
    for name in ("torch", "random", "queue", "sgp_runner"):
        (cluster.folder / f"{name}.py").write_text('open(__file__ + ".ran", "w")')
    code, _, error = cluster.run(*sweep("model=mlp", "epochs=1", "nodes=2", "network=sim,gloo"))
    assert code == 0, error
    cluster.complete(f"{SCRIPTS}/run.sbatch", *RUN, "nodes=1", "epochs=1")
    assert list(cluster.folder.glob("*.ran")) == []


def test_a_sweep_of_four_jobs(cluster: Cluster) -> None:
    command = sweep("model=mlp", "epochs=1", "nodes=2", "algo=sgp,ar_sgd", "network=sim,gloo")
    code, out, error = cluster.run(*command)
    assert code == 0, error
    (rows,) = comparisons(cluster).values()
    assert [row["job"] for row in rows] == [
        f"algo={algo} network={network}"
        for algo in ("sgp", "ar_sgd")
        for network in ("sim", "gloo")
    ]
    assert len({row["run_dir"] for row in rows}) == 4 and not any(row["failed"] for row in rows)
    table = out[out.index("Simulated time to") :]
    assert all(percent(float(row["worker_mean"])) in table for row in rows)

    before = {path: path.stat().st_mtime_ns for path in cluster.folder.glob("results/runs/*/*")}
    code, out, error = cluster.run(*command)
    assert (code, comparisons(cluster)) == (0, {"here": rows}), error
    assert {
        path: path.stat().st_mtime_ns for path in cluster.folder.glob("results/runs/*/*")
    } == before


def test_the_runs_of_a_study_are_arrays_of_jobs(cluster: Cluster) -> None:
    (cluster.folder / "two.yaml").write_text(
        "model: mlp\nnodes: 2\nepochs: 1\narms: {SGP: algo=sgp, AR-SGD: algo=ar_sgd}\nseeds: 2\n"
        "clusters: [laptop, laptop bandwidth=1Gbit/s]\n"
    )
    code, _, error = cluster.run("sgp-run", "study", "two.yaml", "--sbatch", "algo=sgp")
    assert code == 2 and "--sbatch takes settings of the launcher" in error
    command = ("sgp-run", "study", "two.yaml", "--sbatch", "hydra.launcher.timeout_min=10")
    code, out, error = cluster.run(*command)
    assert code == 0, error
    folder = cluster.folder / "results/studies/two"
    assert len(list(folder.glob("runs/*/summary.json"))) == 4
    assert len(list(folder.glob("slurm/slurm/*/*_submitted.pkl"))) == 4
    assert (folder / "study.zip").exists() and "[4/4]" in out


@pytest.mark.parametrize(("network", "machines"), [("sim", 1), ("gloo", 1), ("gloo", 2)])
def test_a_job_of_a_sweep_is_requeued_before_its_time_is_up(
    network: str, machines: int, cluster: Cluster
) -> None:
    overrides = [
        f"network={network}",
        "model=mlp",
        "nodes=2",
        "epochs=50",
        "eval_every=25",
        f"hydra.launcher.nodes={machines}",
    ]
    with cluster.start(*sweep(*overrides)) as process:
        wait_until(lambda: len(cluster.records()) > 20, "some steps")
        before = cluster.records()[:20]
        (number,) = known_jobs(cluster, "--states=RUNNING")
        say(cluster.environment, "scancel", "--signal=USR2", number)
        _, error = process.communicate()
    assert process.returncode == 0, error
    assert cluster.job(number)["Restarts"] == "1"
    assert cluster.records()[:20] == before
    ((row,),) = comparisons(cluster).values()
    assert row["failed"] == ""


def test_a_job_that_fails_and_one_that_is_lost_are_rows(cluster: Cluster) -> None:
    assert (
        cluster.run(*sweep("model=quadratic", "nodes=2", "data.dimension=2"))[0] == 0
    )  # its jobs are not those of the next one
    cluster.wait_for_jobs()
    command = sweep(
        "model=quadratic",
        "nodes=2",
        f"data.dimension=4,{TOO_BIG}",
        "epochs=100000000,1",
        "hydra.launcher.array_parallelism=1",
    )
    with cluster.start(*command) as process:
        wait_until(lambda: len(cluster.runs) == 2, "the first job")
        (first,) = known_jobs(cluster, "--states=RUNNING", "--array")
        say(cluster.environment, "scancel", first)
        out, error = process.communicate()
    assert process.returncode == 1, error
    (rows,) = comparisons(cluster).values()
    assert [row["job"] for row in rows] == [
        f"data.dimension={n} epochs={e}" for n in (4, TOO_BIG) for e in (100000000, 1)
    ]
    assert rows[0]["failed"] == (
        f"Slurm job {first} ended without a result; its log is in "
        f"{cluster.folder}/results/sweeps/here/slurm/{first}"
    )
    assert f"data.dimension=4 epochs=100000000 failed: Slurm job {first} ended" in " ".join(
        out.split()
    )
    assert rows[1]["failed"] == "" and float(rows[1]["average"]) > 0
    assert all(
        row["failed"].startswith("data.dimension: the data set needs at least ") for row in rows[2:]
    )


def test_ctrl_c_cancels_a_sweep(cluster: Cluster) -> None:
    with cluster.start(*sweep(*LONG, "nodes=2", "algo=sgp,ar_sgd")) as process:
        wait_until(
            lambda: len(list(cluster.folder.glob("results/runs/*/metrics*.jsonl"))) == 4,
            "four ranks",
        )
        process.send_signal(signal.SIGINT)
        _, error = process.communicate()
    assert (process.returncode, error.splitlines()[-1]) == (130, "sgp-run: interrupted")
    wait_until(lambda: not cluster.ranks(), "the ranks to end")


def test_a_sweep_per_number_of_nodes(cluster: Cluster) -> None:
    code, _, error = cluster.run(f"{SCRIPTS}/sweep.sh", "2,4", *RUN, "epochs=1", "algo=sgp,ar_sgd")
    assert code == 0, error
    found = comparisons(cluster)
    assert sorted(name.rpartition("-")[2] for name in found) == ["n2", "n4"]
    for name, rows in found.items():
        assert [row["algorithm"] for row in rows] == ["SGP", "AR-SGD"]
        assert {f"n{row['nodes']}" for row in rows} == {name.rpartition("-")[2]}
        for row in rows:
            metrics = read_metrics(cluster.folder / row["run_dir"])
            ranks = {record["rank"] for record in metrics if record["kind"] == "train"}
            assert len(ranks) == int(row["nodes"])


@pytest.mark.parametrize(
    ("overrides", "gpus"),
    [
        (["network=nccl"], "gres:gpu:1"),
        (["network=gloo,nccl", "gpus_per_node=2"], "gres:gpu:2"),
        (["network=gloo"], None),
    ],
)
def test_a_sweep_requests_the_gpus_that_it_uses(
    overrides: list[str], gpus: str | None, cluster: Cluster
) -> None:
    before = set(known_jobs(cluster, "--states=all"))
    cluster.run(f"{SCRIPTS}/sweep.sh", "1", "model=mlp", "epochs=1", *overrides)
    after = set(known_jobs(cluster, "--states=all"))
    (number,) = {job.partition("_")[0] for job in after - before}
    assert cluster.job(number).get("TresPerNode") == gpus


def known_jobs(cluster: Cluster, *options: str) -> list[str]:
    return say(cluster.environment, "squeue", "--noheader", "--format=%i", *options).split()


def python_ranks(cluster: Cluster) -> list[int]:
    """Process ids of the ranks that hear signals, without srun, whose words are the same."""
    return sorted(
        rank
        for rank in cluster.ranks()
        if hears(rank) and b"python" in Path(f"/proc/{rank}/exe").readlink().name.encode()
    )


@pytest.mark.slow
def test_signals_at_random_moments_of_a_step(cluster: Cluster) -> None:
    """Slurm signals all ranks; one alone has the others stopped."""
    dice = Random(1)
    for number in range(SHOTS):
        overrides = (*RUN, "nodes=2", "epochs=2", f"name=run{number}")
        command = ("srun", "--ntasks=2", sys.executable, "-m", "sgp_runner", *overrides)
        name = dice.choice((signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2))
        with cluster.start(*command) as process:
            wait_until(lambda: len(python_ranks(cluster)) == 2, "two ranks")
            time.sleep(dice.random() * 4)
            ranks = python_ranks(cluster)
            for rank in ranks if dice.random() < 0.5 else dice.sample(ranks, len(ranks) and 1):
                with suppress(ProcessLookupError):
                    os.kill(rank, name)
            _, error = process.communicate()
        said = re.findall("^sgp-run: ", error, re.MULTILINE)
        ended = (cluster.folder / f"results/runs/run{number}/summary.json").exists()
        expected = 130 if name == signal.SIGINT else 75
        assert process.returncode == expected or (ended and process.returncode == 0), error
        assert len(said) == (process.returncode != 0) or ended, error
        assert "Traceback" not in error


def test_the_loss_of_rank_0_is_reported_with_the_checkpoint(cluster: Cluster) -> None:
    overrides = (
        *LONG,
        "nodes=2",
        "name=run",
        "checkpoint.every_steps=50",
        "checkpoint.keep=1000000",
    )
    command = ("srun", "--ntasks=2", sys.executable, "-m", "sgp_runner", *overrides)
    with cluster.start(*command) as process:
        saved = cluster.folder / "results/runs/run/checkpoints"
        wait_until((saved / "step-50").exists, "a checkpoint")
        os.kill(cluster.rank(0), signal.SIGKILL)
        _, error = process.communicate()
    assert error.count("sgp-run: ") == 1, error
    assert re.search(
        r"^sgp-run: rank 0, which hosts the store and the records of the run, is lost. "
        r"Run the same command again to resume from results/runs/run/checkpoints/step-\d+\.$",
        error,
        re.MULTILINE,
    )
