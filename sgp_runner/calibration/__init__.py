"""``sgp-run calibrate``: measure machines and write the result as a cluster profile."""
