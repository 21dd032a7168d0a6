"""The benchmark as pictures: mean ranks, error against time, wins and losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from benchmarks import pictures
from benchmarks.markdown import percent
from benchmarks.suite.analysis import Ranking
from benchmarks.suite.peers.roster import OWN
from knothole.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

# What the picture of errors by dataset shows: scenarios, and methods that users would pick.
PANELS = {
    "MCAR 30 %": "30 % of the entries missing",
    "outage of column 1": "the most important column lost",
}
_RIVALS: dict[str, dict[str, Any]] = {
    "native": {"color": style.VERMILION, "marker": "s"},
    "median": {"color": style.ORANGE, "marker": "^"},
    "MICE x20": {"color": style.GREEN, "marker": "v"},
    "retrained x8": {"color": style.INK, "marker": "x"},
}
_OUTCOMES = {"win": style.BLUE, "tie": "#c9d3dc", "loss": style.VERMILION}
# Where a label may stand beside its point, in points: near first, then farther with a line.
_PLACES = [
    (reach * x, reach * y)
    for reach in (7, 14, 22, 32, 44, 58)
    for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
]
_NEAR = 8.0
_RELATIVE_ERRORS = [1, 1.05, 1.1, 1.2, 1.3, 1.5, 2, 3, 5, 10, 20, 50, 100]


def ranks(ranking: Ranking, title: str) -> Figure:
    """Demsar's diagram: mean ranks on a line, bars over those that cannot be told apart."""
    names = [str(name) for name in ranking.mean_rank.index]
    bars = _rows_of(ranking)
    height = 0.5 * len(bars)
    half = (len(names) + 1) // 2
    depth = height + half
    with style.look():
        figure = pictures.new(9, 0.9 + 0.27 * (depth + 2.8))
        axes = figure.subplots()
        low, high = 1.0, float(max(2, len(names)))
        for place, name in enumerate(names):
            left = place < half
            row = height + 0.8 + (place if left else len(names) - 1 - place)
            _elbow(axes, name, float(ranking.mean_rank[name]), row, low if left else high, left)
        for row, intervals in enumerate(bars):
            for first, last in intervals:
                ends = [first - 0.04, last + 0.04]
                axes.plot(ends, [0.5 * row + 0.45] * 2, color=style.INK, linewidth=4)
        _scale(axes, ranking.critical_difference, low, high)
        axes.set_xlim(low, high)
        axes.set_ylim(depth + 0.2, -3.0)
        axes.set_title(title, pad=10)
        axes.set_axis_off()
    return figure


def _rows_of(ranking: Ranking) -> list[list[tuple[float, float]]]:
    """The bars of a diagram in as few rows as hold them apart."""
    rows: list[list[tuple[float, float]]] = []
    for ends in ranking.alike():
        first, last = (float(ranking.mean_rank[end]) for end in ends)
        free = [row for row in rows if row[-1][1] + 0.3 < first]
        if free:
            free[0].append((first, last))
        else:
            rows.append([(first, last)])
    return rows


def _elbow(axes: Axes, name: str, rank: float, row: float, side: float, left: bool) -> None:
    look = _look(name)
    axes.plot([rank, rank, side], [0, row, row], color=look["color"], linewidth=1.2, clip_on=False)
    axes.annotate(
        f"{name}  {rank:.2f}" if left else f"{rank:.2f}  {name}",
        (side, row),
        xytext=(-5 if left else 5, 0),
        textcoords="offset points",
        ha="right" if left else "left",
        va="center",
        **look,
    )


def _scale(axes: Axes, critical_difference: float, low: float, high: float) -> None:
    """The line of ranks, and how far apart they must be."""
    axes.plot([low, high], [0, 0], color=style.INK, linewidth=1.2, clip_on=False)
    for tick in range(int(low), int(high) + 1):
        axes.plot([tick, tick], [0, -0.25], color=style.INK, linewidth=1.2, clip_on=False)
        axes.text(tick, -0.4, str(tick), ha="center", va="bottom", color=style.FAINT)
    shown = min(critical_difference, high - low)
    axes.plot([low, low + shown], [-1.7] * 2, color=style.FAINT, linewidth=2, marker="|")
    axes.annotate(
        f"critical difference {critical_difference:.2f}",
        (low, -1.7),
        xytext=(0, 5),
        textcoords="offset points",
        va="bottom",
        color=style.FAINT,
    )


def times(overview: pd.DataFrame, title: str) -> Figure:
    """Error over that of the best, against the seconds a table takes; both logarithmic.

    Peers without an error or a time (they failed everywhere) are not drawn.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    shown = overview[["predict_seconds", "relative_error"]].replace(np.inf, np.nan).dropna()
    with style.look():
        figure = pictures.new(8.5, 5.5)
        axes = figure.subplots()
        for name, row in shown.iterrows():
            look = _look(str(name))
            axes.plot(
                row["predict_seconds"], row["relative_error"], color=look["color"],
                marker="o" if name in OWN else "s", markersize=8 if name in OWN else 5.5,
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.margins(0.14)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_locator(FixedLocator(_RELATIVE_ERRORS))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("seconds to predict the test rows of a dataset (median, one thread)")
        axes.set_ylabel("error / error of the best in the cell")
        axes.set_title(title)
        _label(figure, axes, shown)
    return figure


def _label(figure: Figure, axes: Axes, shown: pd.DataFrame) -> None:
    """Name every point so that no name covers another name or point."""
    figure.draw_without_rendering()  # settles the layout, so that places in pixels are final
    figure.set_layout_engine("none")
    points = axes.transData.transform(shown.to_numpy())
    taken: list[Bbox] = []
    for name, place in zip(shown.index, shown.to_numpy(), strict=True):
        label = axes.annotate(
            str(name), tuple(place), (0, 0), textcoords="offset points", **_look(str(name))
        )
        taken.append(_settle(label, taken, points, axes.get_window_extent()))


def _settle(label: Annotation, taken: Sequence[Bbox], points: Any, inside: Bbox) -> Bbox:
    """Move a label to the first place that is free; returns where it is."""
    for x, y in _PLACES:
        label.set_position((x, y))
        label.set_horizontalalignment("left" if x > 0 else "right" if x < 0 else "center")
        label.set_verticalalignment("bottom" if y > 0 else "top" if y < 0 else "center")
        box = label.get_window_extent()
        free = not any(box.overlaps(other) for other in taken)
        if free and not box.padded(3).count_contains(points) and _within(box, inside):
            break
    if np.hypot(x, y) > _NEAR * np.sqrt(2):
        line = {"arrowstyle": "-", "color": style.FAINT, "linewidth": 0.6, "shrinkB": 4}
        label.axes.annotate(  # type: ignore[union-attr]
            "", label.xy, (x, y), textcoords="offset points", arrowprops=line
        )
    return label.get_window_extent()


def _within(box: Bbox, frame: Bbox) -> bool:
    return bool(frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and
                box.y1 <= frame.y1)  # fmt: skip


def tables(errors: pd.DataFrame, title: str) -> Figure:
    """Other methods' errors over ours, a row a dataset: left of the line they are better.

    Parameters
    ----------
    errors : DataFrame
        From :func:`benchmarks.suite.analysis.error_table`.
    title : str
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    finite = errors.replace(np.inf, np.nan)  # who failed is not drawn
    over_ours = finite.div(finite[OWN[0]], axis=0)
    scenarios = [name for name in PANELS if name in over_ours.index.unique("scenario")]
    rivals = {name: look for name, look in _RIVALS.items() if name in over_ours.columns}
    order = over_ours["native"].groupby("dataset").mean().sort_values().index
    with style.look():
        figure = pictures.new(8.5, 1.5 + 0.25 * len(order))
        panels = figure.subplots(1, len(scenarios), sharey=True, squeeze=False)[0]
        for axes, scenario in zip(panels, scenarios, strict=True):
            shown = over_ours.xs(scenario, level="scenario").loc[order]
            axes.axvline(1, color=style.BLUE, linewidth=2.6, label="knothole")
            for name, look in rivals.items():
                axes.plot(shown[name], order, linestyle="none", markersize=6, label=name, **look)
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(FixedLocator([0.7, 1, 1.5, 2, 3, 5, 10, 20]))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.set_xlabel("error / error of knothole")
            axes.set_title(PANELS[scenario])
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(handles))
        figure.suptitle(title, fontweight="bold", fontsize=10.5, x=0.01, ha="left")
    return figure


def duels(tallies: Mapping[str, pd.DataFrame], title: str, goal: float | None = None) -> Figure:
    """Cells won, tied and lost, a bar for each method; a panel for each peer of ours.

    Parameters
    ----------
    tallies : mapping
        From our peers to what :func:`benchmarks.suite.analysis.tally` says of them.
    title : str
    goal : float, optional
        Share of cells that should be no loss, drawn as a line.
    """
    rivals = list(next(iter(tallies.values())).index)
    with style.look():
        figure = pictures.new(1.5 + 5.5 * len(tallies), 1.3 + 0.3 * len(rivals))
        panels = figure.subplots(1, len(tallies), sharey=True, squeeze=False)[0]
        for axes, (name, tally) in zip(panels, tallies.items(), strict=True):
            _bars(axes, tally.loc[rivals])
            axes.set_title(name, color=style.BLUE)
            if goal is not None:  # behind the bars, so that it crosses no number
                axes.axvline(100 * goal, color=style.INK, linewidth=1.2, zorder=0.5)
                axes.text(100 * goal - 1, len(rivals) - 0.4, f"goal {percent(goal)}", ha="right")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        figure.suptitle(title, fontweight="bold", fontsize=10.5, x=0.01, ha="left")
    return figure


def _bars(axes: Axes, tally: pd.DataFrame) -> None:
    cells = tally[list(_OUTCOMES)].sum(axis=1)
    start = np.zeros(len(tally))
    for outcome, color in _OUTCOMES.items():
        width = (100 * tally[outcome] / cells).to_numpy()
        bars = axes.barh(
            list(tally.index), width, left=start, height=0.72, color=color, label=outcome
        )
        counts = [str(count) if part > 4 else "" for count, part in
                  zip(tally[outcome], width, strict=True)]  # fmt: skip
        ink = style.INK if outcome == "tie" else "white"
        axes.bar_label(bars, counts, label_type="center", color=ink, fontsize=8.5)
        start += width
    shares = [f" {percent(share)}" for share in tally["win_or_tie"]]
    axes.bar_label(bars, shares, color=style.INK, fontsize=8.5)
    axes.set_xlim(0, 109)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("% of cells; at the right, those without a loss")
    axes.grid(visible=False)


def _look(name: str) -> dict[str, Any]:
    """Ours stand out, and so does the model's own way."""
    if name in OWN:
        return {"color": style.BLUE, "fontweight": "bold"}
    return {"color": style.INK if name != "native" else style.VERMILION}
