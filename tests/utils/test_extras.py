"""Optional packages: a missing one is one sentence."""

from __future__ import annotations

import torch
from helpers.refusals import refusal

from sgp_runner.utils.extras import install, installed, require

TORCH = torch.__version__.partition("+")[0]  # of 2.13.0+cpu: 2.13.0


def test_extras_with_packages_for_one_torch_keep_the_installed_one() -> None:
    assert [install("fairseq"), install("hf")] == [
        f"pip install 'sgp-runner[fairseq]' torch=={TORCH}",
        "pip install 'sgp-runner[hf]'",
    ]


def test_a_missing_package_is_named_with_the_extra_that_installs_it() -> None:
    require("model", "vision", "json", "sgp_runner")
    assert str(
        refusal(
            require,
            "model",
            "vision",
            "json",
            "there_is_no_such_module",
            otherwise=", or model=mlp",
        )
    ) == (
        "model: there_is_no_such_module is not installed: "
        f"pip install 'sgp-runner[vision]' torch=={TORCH}, or model=mlp."
    )
    assert installed("json") and not installed("json", "there_is_no_such_module")
