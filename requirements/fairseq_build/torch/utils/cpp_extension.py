"""The part of torch that fairseq's setup.py imports, to compile what training needs and no more.

Training needs the two extensions of ``fairseq.data``. The three that include torch's headers take
three quarters of the time to compile; they serve other kinds of models.
"""

from setuptools import Extension
from setuptools.command.build_ext import build_ext

CppExtension = Extension


class BuildExtension(build_ext):
    """Compiles the extensions of ``fairseq.data``."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.extensions = [each for each in self.extensions if each.name.startswith("fairseq.data")]
