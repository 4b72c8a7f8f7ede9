"""The packages. All other metadata is in pyproject.toml, which cannot add one to those it finds."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["sgp_runner*"]), "sgp_runner.configs"],
    package_dir={"sgp_runner.configs": "configs"},
)
