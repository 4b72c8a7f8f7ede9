"""``sgp-run calibrate``: measure machines, and write them down as a cluster profile that the
simulator takes.
"""
