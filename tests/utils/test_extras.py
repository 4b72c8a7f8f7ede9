"""Optional packages: a missing one is one sentence."""

from __future__ import annotations

import pytest

from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.extras import installed, require


def test_a_missing_package_is_named_with_the_extra_that_installs_it() -> None:
    require("model", "vision", "json", "sgp_runner")
    with pytest.raises(ConfigError) as error:
        require("model", "vision", "json", "there_is_no_such_module", otherwise=", or model=mlp")
    assert str(error.value) == (
        "model: there_is_no_such_module is not installed: "
        "pip install 'sgp-runner[vision]', or model=mlp."
    )
    assert installed("json") and not installed("json", "there_is_no_such_module")
