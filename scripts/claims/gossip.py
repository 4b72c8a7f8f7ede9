"""Claims about the quality of models averaged by gossip.

The expected effects were written before any run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from claims.evidence import Claim, Finding, Sample
from claims.trained import ALGORITHMS, Side, compare, extra, sample, side, time_ratio
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.session.job_pool import RunJob
from sgp_runner.studies.measures import number
from sgp_runner.studies.power import SeedPlan
from sgp_runner.studies.statistics import Between, mean_of, paired
from sgp_runner.studies.study_tasks import GRAMMAR, IMAGES

FEW, MANY = 4, 32
MARGIN = 0.02  # nats, which is about one point of accuracy on images
PLAN = SeedPlan(
    matters=MARGIN,
    spread=0.0087,
    seeds=8,
    unit="nats",
    pilot="pilot: SGP less AR-SGD, 32 nodes, learning rate 0.1, seeds 201 to 204",
)
SEEDS = PLAN.numbers
BIAS = SeedPlan(
    matters=0.03,
    spread=0.026,
    seeds=9,
    unit="nats",
    pilot="pilot: biased OSGP less OSGP, 32 nodes, learning rate 0.1, seeds 201 to 203",
)


def claims(results: Path) -> Iterator[Claim]:
    yield more_epochs(results)
    yield de_biasing(results)
    yield consensus(results)
    yield hybrids(results)
    yield different_data(results)


def more_epochs(results: Path) -> Claim:
    ar = side(results, IMAGES, "ar_sgd", seeds=SEEDS)
    few = side(results, IMAGES, "sgp", nodes=FEW, seeds=SEEDS)
    many = side(results, IMAGES, "sgp", seeds=SEEDS)
    longer = side(results, IMAGES, "sgp", times=3, seeds=SEEDS)
    text_ar, text = (
        side(results, GRAMMAR, algo, nodes=16, seeds=SEEDS) for algo in ("ar_sgd", "sgp")
    )

    def find() -> Iterator[Finding]:
        yield compare("few nodes", f"SGP, {FEW} nodes, minus AR-SGD", few, ar, Between(most=MARGIN))
        for ours, theirs, nodes in ((many, ar, MANY), (text, text_ar, 16)):
            what = f"SGP minus AR-SGD, {nodes} nodes, as many epochs"
            yield compare(
                "many nodes", what, ours, theirs, Between(least=0.0), primary=ours is many
            )
        three = f"SGP with three times the epochs {{}} AR-SGD, {MANY} nodes"
        yield compare(
            "three times the epochs", three.format("minus"), longer, ar, Between(most=0.0)
        )
        yield time_ratio("in less time", three.format("over"), longer, ar, Between(most=1.0))

    every = (ar, few, many, longer, text_ar, text)
    return Claim(
        number=2,
        earlier="contradicted",
        subject="SGP against AR-SGD",
        sentence=(
            "SGP reaches AR-SGD's quality at few nodes, falls below it per epoch at many, and with "
            "three times the epochs overtakes it in less time on 10 Gbit/s Ethernet."
        ),
        answer=(
            "Yes. At 32 nodes, SGP is {1:size} nats behind AR-SGD after the same number of "
            "epochs. After three times as many epochs it is {3:size} ahead, in {4} of the "
            "time."
        ),
        source="Assran et al. 2019, authors' slides: 32 nodes, 90 and 270 epochs",
        tried=(
            f"An update has 256 images at {FEW} and at {MANY} nodes, or 64 texts, so AR-SGD is the "
            f"same at both sizes. 'Reaches' is taken as within {MARGIN:g} nats. The ratio of times "
            "follows from the cluster's model and the number of epochs; it was known. The earlier "
            "design asked for it at 16 nodes too, on text, and was contradicted there: three times "
            "the epochs took 1.08 of AR-SGD's time. The sentence is about 32."
        ),
        samples=(sample(every, find),),
        plan=PLAN,
    )


def de_biasing(results: Path) -> Claim:
    # A step takes 0.23 s, and the transfer of a message 0.16 s.
    late = ("algo.tau=4", "faults=delay", "faults.delay_seconds=0.8")
    biased = ("algo.push_sum_weight=false",)

    def osgp(label: str = "", words: Sequence[str] = ()) -> Side:
        return side(results, IMAGES, "osgp", label, words, seeds=BIAS.numbers)

    prompt, prompt_biased = osgp(), osgp("osgp_biased", biased)
    slow, slow_biased = osgp("osgp_late", late), osgp("osgp_late_biased", (*late, *biased))

    def find() -> Iterator[Finding]:
        yield compare(
            "prompt messages",
            "biased 1-OSGP minus 1-OSGP",
            prompt_biased,
            prompt,
            Between(least=0.0),
            primary=True,
        )
        yield compare(
            "late messages",
            "biased 4-OSGP minus 4-OSGP, messages 0.8 s late",
            slow_biased,
            slow,
            Between(least=0.0),
        )
        yield extra(
            "most when late",
            "how much more biased OSGP loses with late messages",
            (slow_biased, slow),
            (prompt_biased, prompt),
            Between(least=0.0),
        )

    every = (prompt, prompt_biased, slow, slow_biased)
    return Claim(
        number=4,
        earlier="contradicted",
        subject="De-biasing",
        sentence="De-biasing matters: biased OSGP is worse than OSGP, most when messages are late.",
        answer=(
            "Biased OSGP is worse by every measure. Late messages make it worse still only by "
            "the loss: the final model includes the messages in flight, which the gradients "
            "did not see, so its scale is wrong and its loss exceeds that of guessing. By "
            "accuracy and training loss, late messages add nothing measurable."
        ),
        source="Assran et al. 2019, ablation; 'most when late' is not in the paper",
        tried=(
            "The biased variant sends the same messages and never divides by the push-sum weight. "
            "Each of the four has a learning rate of its own. Messages are 0.8 s late, more than "
            "three steps, with a bound of four. In the earlier design 'most when late' was "
            "contradicted on digits and on text, with a learning rate that was not searched for "
            "each; this one is on images alone."
        ),
        samples=(sample(every, find),),
        plan=BIAS,
    )


RATES = (0.025, 0.05, 0.1)  # constant learning rates


def consensus(results: Path) -> Claim:
    """Test whether the consensus distance stays bounded at constant learning rates."""

    def jobs(algo: str, rate: float) -> tuple[RunJob, ...]:
        """Return one run for each seed."""
        words = (
            *IMAGES.settings(algo, nodes=16, times=1),
            "eval_every=1",
            "eval_workers=true",
            "optim.schedule.milestones=[]",
            f"optim.lr={rate:g}",
        )
        name = f"{IMAGES.name}-{algo}-constant{rate:g}-n16"
        return tuple(RunJob(f"{name}-s{seed}", (*words, f"seed={seed}"), results) for seed in SEEDS)

    def distances(job: RunJob) -> list[float]:
        """Return the consensus distance at the end of each epoch."""
        records = read_metrics(job.folder)
        return [each["consensus_distance"] for each in records if each["kind"] == "average"]

    def find() -> Iterator[Finding]:
        for algo in ("d_psgd", "sgp"):
            name = ALGORITHMS[algo]
            by_rate = {rate: jobs(algo, rate) for rate in RATES}
            for rate, runs in by_rate.items():
                known = {job: distances(job) for job in runs}
                growth = [math.log(known[job][-1] / known[job][-3]) for job in runs]
                yield Finding(
                    "bounded",
                    f"images: {name}, learning rate {rate:g}",
                    "logarithm of the last consensus distance over that two epochs before",
                    mean_of(growth),
                    Between(most=math.log(1.25)),
                    runs,
                )
                points = [
                    [100 * number(job, key) for job in runs] for key in ("average", "worker_mean")
                ]
                yield Finding(
                    "averaged model",
                    f"images: {name}, learning rate {rate:g}: averaged model minus mean of workers",
                    "points of accuracy",
                    paired(*points),
                    Between(least=-0.1),
                    runs,
                )
            for small, large in pairwise(RATES):
                logs = [
                    [math.log2(distances(job)[-1]) for job in by_rate[rate]]
                    for rate in (large, small)
                ]
                yield Finding(
                    "shrinks with the learning rate",
                    f"images: {name}, learning rate {large:g} against {small:g}",
                    "doublings of the last consensus distance",
                    paired(*logs),
                    Between(0.5, 1.5),
                    (*by_rate[large], *by_rate[small]),
                    primary=algo == "sgp" and large == RATES[-1],
                )

    return Claim(
        number=5,
        earlier="reproduced",
        subject="Consensus",
        sentence=(
            "D-PSGD's and SGP's consensus distance stays bounded and shrinks with the learning "
            "rate; the averaged model is at least as good as the workers' own."
        ),
        answer=(
            "Yes. The distances grow by 2 to 5 % in the last two epochs. They scale with the "
            "learning rate to the power of {15} (SGP) and {7} (D-PSGD), which is less than "
            "proportional."
        ),
        source="Lian et al. 2017 and Assran et al. 2019, theory",
        tried=(
            "Constant learning rates, 16 nodes. Theory bounds the distance by a multiple of the "
            "learning rate; in proportion, twice the rate would double it once, and half a "
            "doubling to one and a half are accepted. 'Bounded' is a growth of less than a quarter "
            "in the last two of five epochs. 'At least as good' allows for 0.1 points of accuracy."
        ),
        samples=(
            Sample(
                jobs=lambda: [
                    job for algo in ("d_psgd", "sgp") for rate in RATES for job in jobs(algo, rate)
                ],
                find=lambda: list(find()),
            ),
        ),
        plan=SeedPlan(
            matters=0.25,
            spread=0.05,
            seeds=8,
            unit="doublings",
            pilot="the earlier design: 0.01 to 0.04",
            equivalence=True,
        ),
    )


def hybrids(results: Path) -> Claim:
    third = IMAGES.epochs / 3
    ar, sgp = (side(results, IMAGES, algo, seeds=SEEDS) for algo in ("ar_sgd", "sgp"))
    first = ("algo.first=ar_sgd", "algo.then=sgp", f"algo.switch_epoch={third:.4g}")
    two = (f"algo.topology.peers={{0: 2, {math.ceil(third)}: 1}}",)
    first_ar = side(results, IMAGES, "hybrid", "ar_then_sgp", first, seeds=SEEDS)
    first_two = side(results, IMAGES, "sgp", "two_peers_then_sgp", two, seeds=SEEDS)

    def find() -> Iterator[Finding]:
        for name, hybrid in (("AR-SGD first", first_ar), ("two peers first", first_two)):
            yield compare(
                f"{name}: better than SGP",
                f"{name}, minus SGP, {MANY} nodes",
                hybrid,
                sgp,
                Between(most=0.0),
            )
            yield compare(
                f"{name}: AR-SGD's quality",
                f"{name}, minus AR-SGD, {MANY} nodes",
                hybrid,
                ar,
                Between(most=MARGIN),
                primary=hybrid is first_ar,
            )
            yield time_ratio(
                f"{name}: little time",
                f"{name}, over AR-SGD, {MANY} nodes",
                hybrid,
                ar,
                Between(most=0.6),
            )

    every = (ar, sgp, first_ar, first_two)
    return Claim(
        number=12,
        earlier="undecided",
        subject="Hybrids",
        sentence=(
            "AR-SGD, or SGP with two peers, for the first third of the epochs, and one-peer SGP "
            "afterwards, recover AR-SGD's quality at 32 nodes for little time."
        ),
        answer=(
            "AR-SGD for a third of the epochs is enough. It ends no worse than AR-SGD "
            "throughout, in {2} of the time. SGP with two peers takes {5} of the time and may "
            "lose {4} nats."
        ),
        source="Assran et al. 2019, hybrids",
        tried=(
            "Each has a learning rate of its own. 'Recover' is taken as better than SGP and within "
            f"{MARGIN:g} nats of AR-SGD, 'little time' as at most 0.6 of AR-SGD's. Two peers end "
            "after two of five epochs, the next whole one."
        ),
        samples=(sample(every, find),),
        plan=PLAN,
    )


def different_data(results: Path) -> Claim:
    unequal = ("data.partition=dirichlet_equal", "data.alpha=0.1")

    def pair(algo: str) -> tuple[Side, Side]:
        """Return the runs on different data and the runs on equal data."""
        return (
            side(results, IMAGES, algo, f"{algo}-dirichlet", unequal, nodes=16, seeds=SEEDS),
            side(results, IMAGES, algo, nodes=16, seeds=SEEDS),
        )

    pairs = {algo: pair(algo) for algo in ALGORITHMS if algo != "osgp"}

    def find() -> Iterator[Finding]:
        all_reduce = pairs["ar_sgd"]
        yield compare(
            "AR-SGD loses little",
            "AR-SGD, Dirichlet 0.1 minus equal data",
            *all_reduce,
            Between(most=MARGIN),
        )
        for algo in list(pairs)[1:]:
            name = ALGORITHMS[algo]
            yield extra(
                f"{name} loses more",
                f"{name}: what Dirichlet 0.1 changes, beyond what it changes for AR-SGD",
                pairs[algo],
                all_reduce,
                Between(least=0.0),
                primary=algo == "sgp",
            )

    every = [each for pair in pairs.values() for each in pair]
    return Claim(
        number=13,
        earlier="undecided",
        subject="Unequal data",
        sentence=(
            "When nodes see different classes (Dirichlet 0.1), AR-SGD loses little, and the "
            "algorithms that average models lose more."
        ),
        answer=(
            "Yes. AR-SGD loses {0} nats. Compared with AR-SGD, SGP loses {1} more, D-PSGD {2}, "
            "AD-PSGD {3} and local SGD {4}."
        ),
        source=(
            "Follows from the heterogeneity terms in the theorems of Lian et al. 2017 and Assran "
            "et al. 2019"
        ),
        tried=(
            "16 nodes, whose shares of the images have different classes and the same size: where "
            "sizes differ too, images of small shares count more, for AR-SGD as well. 'Little' is "
            f"taken as {MARGIN:g} nats. Learning rates are searched on each kind of data."
        ),
        samples=(sample(every, find),),
        plan=SeedPlan(
            matters=MARGIN,
            spread=0.0123,
            seeds=8,
            unit="nats",
            pilot=(
                "pilot: that of SGP less AR-SGD times the square root of 2, for a difference of "
                "differences; different shards may add to it"
            ),
        ),
    )
