"""The same machines with one replica per site, inside which nodes average their gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sgp_runner.config.overrides import experiment_of
from sgp_runner.plan.methods import DATA_PARALLEL
from sgp_runner.plan.request import LAW, Request, regions_word
from sgp_runner.plan.timing import Timing, time_steps

REGIONS, NODES = "cluster.links.regions=", "nodes="


@dataclass(frozen=True)
class SiteReplicas:
    """The machines of a request whose replicas are sites.

    overrides: settings of one node per site; its gradient takes as long as a data-parallel step
        inside the site
    inside: timing of that step
    share: mean number of nodes per site
    """

    overrides: tuple[str, ...]
    inside: Timing
    share: float

    def timing(self, timing: Timing) -> Timing:
        """Convert the timing of a replica to the timing of a node."""
        return replace(
            timing,
            compute=self.inside.compute,
            num_bytes=self.inside.num_bytes + timing.num_bytes / self.share,
        )


def site_replicas(request: Request) -> SiteReplicas | None:
    """Return the machines of ``request`` with one replica per site; None if sites have one node.

    All sites are assumed to be as slow as the largest site.
    """
    regions = request.cluster.links.regions
    largest = max((region.nodes for region in regions), default=1)
    if request.sites < 2 or largest == 1:
        return None
    overrides = [word for word in request.overrides if not word.startswith((REGIONS, NODES))]
    alone = [
        *overrides,
        f"{NODES}{largest}",
        f"{REGIONS}[]",
        f"{LAW}ring",
        *DATA_PARALLEL.overrides,
    ]
    run = experiment_of(alone).run
    inside = time_steps(run)
    ones = tuple(replace(region, nodes=min(1, region.nodes)) for region in regions)
    sites, name = sum(region.nodes for region in ones), run.timed_as.model or run.model.name
    overrides += [
        f"{NODES}{sites}",
        regions_word(ones),
        f"cluster.compute.step_seconds.{name}={inside.seconds}",
        "timed_as.batch_size=1",
    ]
    if name in request.cluster.compute.step_batch:
        overrides.append(f"cluster.compute.step_batch.{name}=1")
    return SiteReplicas(tuple(overrides), inside, request.nodes / sites)
