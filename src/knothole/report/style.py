"""One look for all plots: colours that everybody can tell apart, markers for those in print.

matplotlib is imported when a plot is first drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from knothole.errors import MissingExtra
from knothole.report.methods import DRAWS, ITERATIVE, KNOTHOLE, LABELS, MEDIAN, NATIVE

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from matplotlib.figure import Figure

# Okabe and Ito's palette, made for colour-blind readers.
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
INK, FAINT, GRID = "#1f2933", "#667380", "#e3e8ed"

RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10.0,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "text.color": INK,
    "legend.frameon": False,
    "text.parse_math": False,  # a column may be called $10k_to_$20k
    "svg.hashsalt": "knothole",  # the same figure, the same bytes
}

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


def figure(width: float, height: float) -> Figure:
    """A figure that belongs to no window."""
    with look():
        from matplotlib.figure import Figure

        return Figure(figsize=(width, height), layout="constrained")
