"""Figures in knothole's look that belong to no window, and their PNG."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from knothole.report import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new(width: float, height: float) -> Figure:
    """An empty figure, in inches, on which text can be measured."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = style.figure(width, height)
    FigureCanvasAgg(figure)
    return figure


def png(figure: Figure) -> bytes:
    """The same bytes for the same figure."""
    file = io.BytesIO()
    with style.look():
        figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return file.getvalue()
