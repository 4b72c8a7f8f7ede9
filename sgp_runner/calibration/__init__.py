"""``sgp-run calibrate``: measurement of machines, written as a cluster profile."""
