"""One look for all plots: colours that everybody can tell apart, markers for those in print.

matplotlib is imported when a plot is first drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from knothole.errors import MissingExtra
from knothole.report.methods import DRAWS, ITERATIVE, KNOTHOLE, LABELS, MEDIAN, NATIVE
from knothole.report.palette import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    RC,
    SKY,
    VERMILION,
    YELLOW,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_METHODS: dict[str, dict[str, Any]] = {
    KNOTHOLE: {"color": BLUE, "marker": "o", "linewidth": 2.6, "zorder": 5},
    NATIVE: {"color": VERMILION, "marker": "s", "linewidth": 1.8, "zorder": 4},
    MEDIAN: {"color": ORANGE, "marker": "^", "linewidth": 1.5},
    ITERATIVE: {"color": PURPLE, "marker": "D", "linewidth": 1.5},
    DRAWS: {"color": GREEN, "marker": "v", "linewidth": 1.5},
}
# For methods that have no style of their own, in turn.
_OTHERS = (SKY, BLACK, YELLOW)


def of_method(name: str, position: int = 0) -> dict[str, Any]:
    """How the line of a method is drawn."""
    other = {"color": _OTHERS[position % len(_OTHERS)], "marker": "x", "linewidth": 1.5}
    return {"markersize": 4.5, "zorder": 3, **_METHODS.get(name, other)}


def label_of(name: str, labels: dict[str, str]) -> str:
    """What a method is called."""
    return labels.get(name, LABELS.get(name, name))


def look() -> AbstractContextManager[None]:
    """A context in which everything drawn has one look; or what to install."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtra("plots need matplotlib: pip install 'knothole[plot]'.") from error
    return matplotlib.rc_context(RC)


def axes(ax: Axes | None, width: float, height: float) -> Axes:
    """The axes given, or new ones in a figure of pyplot's; to be called in :func:`look`."""
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]


def figure(width: float, height: float) -> Figure:
    """A figure that belongs to no window."""
    with look():
        from matplotlib.figure import Figure

        return Figure(figsize=(width, height), layout="constrained")
