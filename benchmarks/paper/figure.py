"""The paper's Figure 1 as a picture: two panels, the paper's settings above the fair ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from benchmarks import pictures
from benchmarks.paper import panels
from knothole.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOOKS: dict[str, dict[str, Any]] = {
    panels.XGBOOST: {"color": style.VERMILION, "marker": "s"},
    panels.MEDIAN: {"color": style.ORANGE, "marker": "^"},
    panels.EXPECTED: {"color": style.SKY, "marker": "D"},
    panels.REFITTED: {"color": style.BLUE, "marker": "o"},
    panels.OURS: {"color": style.GREEN, "marker": "v"},
    panels.YARDSTICK: {"color": style.FAINT, "linestyle": "dotted"},
}
_PANELS = {
    panels.LEFT: "five trees, missing values at deployment",
    panels.RIGHT: "one tree, missing values at both",
}
_SETTINGS = {
    panels.PAPER: "learning rate 0.3, base score 0.5",
    panels.FAIR: "learning rate 1, estimated base score",
}


def draw(results: pd.DataFrame) -> bytes:
    """A PNG with mean and standard deviation of the RMSE at every rate of missing values."""
    with style.look():
        figure = pictures.new(10, 7.5)
        axes = figure.subplots(len(_SETTINGS), len(_PANELS), sharex=True)
        for row, settings in zip(axes, _SETTINGS, strict=True):
            for place, panel in zip(row, _PANELS, strict=True):
                part = results[(results["panel"] == panel) & (results["settings"] == settings)]
                _panel(place, part)
                place.set_title(f"{_PANELS[panel]}\n{_SETTINGS[settings]}")
        handles = [line for line in axes[0][1].get_lines() if line.get_label() in _LOOKS]
        names = [str(line.get_label()) for line in handles]
        figure.legend(handles, names, loc="outside lower center", ncols=3)
    return pictures.png(figure)


def _panel(axes: Axes, part: pd.DataFrame) -> None:
    for method, line in panels.summary(part).groupby("method", sort=False):
        look = _LOOKS[str(method)]
        axes.plot(line["rate"], line["mean"], label=str(method), markersize=4.5, **look)
        low, high = line["mean"] - line["std"], line["mean"] + line["std"]
        axes.fill_between(line["rate"], low, high, color=look["color"], alpha=0.15, linewidth=0)
    axes.set_xlabel("probability that an entry is missing")
    axes.set_ylabel("RMSE")
