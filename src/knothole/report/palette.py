"""Colours that everybody can tell apart, and one look for all figures."""

from __future__ import annotations

from typing import Any

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
    "svg.hashsalt": "knothole",  # the same figure, the same bytes
}
