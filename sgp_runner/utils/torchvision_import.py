"""Import of torchvision, with a workaround for some machines."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

from sgp_runner.utils.extras import require

#: Schemas declared by ``import_torchvision``; global, since collecting the object removes them.
_declared: list[torch.library.Library] = []


def import_torchvision(key: str) -> ModuleType:
    """Import torchvision, even if its CUDA wheel is installed with a CPU-only torch.

    The default wheel for Linux is built against CUDA. With a CPU-only torch its compiled operators
    cannot be loaded, and the import stops at "operator torchvision::nms does not exist", because
    Python code registers shape functions for operators that were never declared. Declaring the two
    operators is enough for models and transforms; ``nms`` itself stays unusable. Nothing is
    declared if the plain import works or fails for another reason.

    Raises ConfigError, for ``key``, if torchvision is not installed.
    """
    require(key, "vision", "torchvision")
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error) or torch.version.cuda is not None:
            raise
    for name in [m for m in sys.modules if m == "torchvision" or m.startswith("torchvision.")]:
        del sys.modules[name]  # left half imported by the failure
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    _declared.append(library)
    return importlib.import_module("torchvision")
