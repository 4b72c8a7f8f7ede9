"""Facts that all processes of a `sgp_runner.jobs.pool.Pool` share: its server finds them."""

from sgp_runner.utils.provenance import environment

environment()
