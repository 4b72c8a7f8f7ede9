"""The claim about gossip methods for nodes with different data; expectations precede all runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from claims.evidence import Between, Claim, Finding, Sample
from claims.power import Plan
from claims.trained import IMAGES, Side, all_jobs, compare, searches, side

NODES = 16
DIFFERENT = ("data.partition=dirichlet_equal", "data.alpha=0.1")
ADAPT_FIRST = "algo.order=adapt_then_combine"
PLAIN = ("optim.momentum=0", "optim.nesterov=false")
PLAN = Plan(
    matters=0.02,
    spread=0.0123,
    seeds=8,
    unit="nats",
    pilot="assumed: that of claim 13",
)


def claims(results: Path) -> Iterator[Claim]:
    yield corrections(results)


def corrections(results: Path) -> Claim:
    def runs(algo: str, label: str = "", *words: str) -> Side:
        name, every = f"{label or algo}-dirichlet", (*DIFFERENT, *words)
        return side(results, IMAGES, algo, name, every, nodes=NODES, seeds=PLAN.numbers)

    local = runs("d_psgd", "d_psgd_adapt", ADAPT_FIRST)
    plain = runs("d_psgd", "d_psgd_plain", ADAPT_FIRST, *PLAIN)
    shared = runs("qg_dsgdm")
    corrected = {
        "gradient tracking": runs("gradient_tracking", "", *PLAIN),
        "D²": runs("d_squared", "", *PLAIN),
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
            "From seed to seed, and so with the shares of the data, differences vary more than "
            "they amount to. D² needs (W + I) / 2 on a ring of even size, D-PSGD mixes with W."
        ),
        source="Lin et al. 2021, Koloskova et al. 2021, Tang et al. 2018",
        tried=(
            f"A ring of {NODES} nodes, whose shares of the images have different classes and the "
            "same size. D-PSGD steps before it mixes, as the others do. The papers of gradient "
            "tracking and D² have no momentum, so they and D-PSGD are compared without. Learning "
            "rates are searched for each."
        ),
        samples=(Sample(lambda: all_jobs(every), lambda: list(find()), searches(every)),),
        plan=PLAN,
    )
