"""Facts determined once by the server of a `sgp_runner.jobs.pool.Pool` for all its processes."""

from sgp_runner.utils.provenance import environment

environment()
