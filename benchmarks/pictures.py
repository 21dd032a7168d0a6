"""Figures in knothole's look that belong to no window, and their PNG."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from knothole.errors import MissingExtra
from knothole.report import palette

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from matplotlib.figure import Figure


def look() -> AbstractContextManager[None]:
    """A context in which everything drawn has knothole's look."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingExtra("figures need matplotlib: pip install 'knothole[plot]'.") from error
    return mpl.rc_context(palette.RC)


def new(width: float, height: float) -> Figure:
    """An empty figure, in inches; to be called in :func:`look`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def png(figure: Figure) -> bytes:
    """The same bytes for the same figure."""
    file = io.BytesIO()
    with look():
        figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return file.getvalue()
