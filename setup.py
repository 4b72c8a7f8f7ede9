"""The packages. All other metadata is in setup.cfg, which cannot add one to those that it finds."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["sgp_runner*"]), "sgp_runner.configs"],
    package_dir={"sgp_runner.configs": "configs"},
)
