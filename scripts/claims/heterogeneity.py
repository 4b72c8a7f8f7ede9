"""Claims about gossip methods for nodes with different data.

The expected effects were written before any run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from claims.evidence import Claim, Finding
from claims.trained import Side, compare, one_comparison, sample, side
from sgp_runner.studies.power import SeedPlan
from sgp_runner.studies.statistics import Between
from sgp_runner.studies.study_tasks import IMAGES

NODES = 16
DIFFERENT = ("data.partition=dirichlet_equal", "data.alpha=0.1")
ADAPT_FIRST = "algo.order=adapt_then_combine"
PLAIN = ("optim.momentum=0", "optim.nesterov=false")
PLAN = SeedPlan(
    matters=0.02,
    spread=0.0123,
    seeds=8,
    unit="nats",
    pilot="assumed: that of claim 13",
)


# A ring with edges to the next two nodes on either side; its smallest eigenvalue is -0.236.
TWO_HOPS = ("algo.topology=edges", "algo.topology.path=scripts/claims/two_hops.txt")
HALF = 0.058  # nats, half of the loss that D² added on the ring
TWO_HOPS_PLAN = SeedPlan(
    matters=HALF,
    spread=0.0765,
    seeds=16,
    unit="nats",
    pilot="that on the ring",
)


def claims(results: Path) -> Iterator[Claim]:
    yield corrections(results)
    yield equal_mixing(results)


def runs(
    results: Path, algo: str, label: str, *words: str, seeds: Sequence[int] = PLAN.numbers
) -> Side:
    every = (*DIFFERENT, *words)
    return side(results, IMAGES, algo, f"{label}-dirichlet", every, nodes=NODES, seeds=seeds)


def corrections(results: Path) -> Claim:
    local = runs(results, "d_psgd", "d_psgd_adapt", ADAPT_FIRST)
    plain = runs(results, "d_psgd", "d_psgd_plain", ADAPT_FIRST, *PLAIN)
    shared = runs(results, "qg_dsgdm", "qg_dsgdm")
    corrected = {
        "gradient tracking": runs(results, "gradient_tracking", "gradient_tracking", *PLAIN),
        "D²": runs(results, "d_squared", "d_squared", *PLAIN),
    }

    def find() -> Iterator[Finding]:
        yield compare(
            "quasi-global momentum",
            "QG-DSGDm minus D-PSGD with local momentum",
            shared,
            local,
            Between(most=0.0),
            primary=True,
        )
        for name, ours in corrected.items():
            what = f"{name} minus D-PSGD, both without momentum"
            yield compare(name, what, ours, plain, Between(most=0.0))

    every = (local, plain, shared, *corrected.values())
    return Claim(
        number=17,
        subject="Methods for unequal data",
        sentence=(
            "When nodes see different classes (Dirichlet 0.1), gossip with quasi-global momentum "
            "is better than with local momentum; gradient tracking and D² are better than D-PSGD."
        ),
        answer=(
            "The spread between seeds, which also change how the data is divided, is larger "
            "than the effects. D² needs the mixing matrix (W + I) / 2 on a ring of even size, "
            "whereas D-PSGD mixes with W. With the same matrix, D² loses far less, but is not "
            "better than D-PSGD (claim 23)."
        ),
        source="Lin et al. 2021, Koloskova et al. 2021, Tang et al. 2018",
        tried=(
            f"A ring of {NODES} nodes, whose shares of the images have different classes and the "
            "same size. D-PSGD steps before it mixes, as the others do. The papers of gradient "
            "tracking and D² have no momentum, so they and D-PSGD are compared without. Learning "
            "rates are searched for each."
        ),
        samples=(sample(every, find),),
        plan=PLAN,
    )


def equal_mixing(results: Path) -> Claim:
    words, seeds = (*TWO_HOPS, *PLAIN), TWO_HOPS_PLAN.numbers
    label = "d_squared_two_hops"
    corrected = runs(results, "d_squared", label, "algo.lazy=false", *words, seeds=seeds)
    plain = runs(results, "d_psgd", "d_psgd_two_hops", ADAPT_FIRST, *words, seeds=seeds)
    return Claim(
        number=23,
        explains=17,
        subject="D², with D-PSGD's mixing",
        answer=("Yes. With the same matrix, D² loses {0} nats. It is not better than D-PSGD."),
        sentence=(
            "What D² loses to D-PSGD in claim 17 is due to its mixing half as much on a ring: "
            "where both mix with the same matrix it loses half as much at most."
        ),
        tried=(
            f"{NODES} nodes on a ring with edges to the next two on either side. All eigenvalues "
            "of that matrix are above -1/3, so D² may use it as it is, while on the ring it mixes "
            "with (W + I) / 2. Otherwise as in claim 17; both learning rates are searched here."
        ),
        samples=(
            one_comparison(
                "at most half as far",
                "two hops: D² minus D-PSGD, both without momentum",
                corrected,
                plain,
                Between(most=HALF),
            ),
        ),
        plan=TWO_HOPS_PLAN,
    )
