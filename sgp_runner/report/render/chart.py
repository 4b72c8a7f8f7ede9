"""A drawn plot, which notebooks show."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Chart(Figure):
    """A figure without a window."""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=100)
        return out.getvalue()
