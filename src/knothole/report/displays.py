"""Plots in scikit-learn's manner: made from results, drawn on axes of yours or of their own.

Every display has ``from_results(...)`` and ``plot(ax=None)``, which returns the display itself,
with ``ax_`` and ``figure_`` set.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np

from knothole.checks import check_choice
from knothole.report import style
from knothole.report.evaluation import Coverage, Fit, Marginal, Outage, Pair, Robustness

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Results = TypeVar("Results")

# Lines to compare with.
_DASHED: dict[str, Any] = {"color": style.FAINT, "linestyle": (0, (4, 3)), "linewidth": 1.0}


class Display(ABC, Generic[Results]):
    """Base of the displays.

    Parameters
    ----------
    results : Robustness, Outage, Coverage, Marginal, Pair or Fit
        What to draw, as an :class:`~knothole.report.evaluation.Evaluation` has it.

    Attributes
    ----------
    ax_ : matplotlib Axes
        What was drawn on last.
    figure_ : matplotlib Figure
        The figure of the axes.
    """

    ax_: Axes
    figure_: Figure
    _size = (6.4, 4.2)

    def __init__(self, results: Results) -> None:
        self.results = results

    @classmethod
    def from_results(cls, results: Results, *options: Any, **named: Any) -> Self:
        """Make a display; options are those of the class."""
        return cls(results, *options, **named)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw on axes; on new ones of pyplot's if none are given."""
        with style.look():
            if ax is None:
                from matplotlib import pyplot

                ax = pyplot.subplots(figsize=self._size, layout="constrained")[1]
            self._draw(ax)
        self.ax_ = ax
        self.figure_ = ax.figure  # type: ignore[assignment]
        return self

    def drawn(self, width: float, height: float) -> Figure:
        """Draw on a figure of its own, in inches, that belongs to no window."""
        figure = style.figure(width, height)
        with style.look():
            axes = figure.subplots()
        self.plot(axes)
        return figure

    @abstractmethod
    def _draw(self, ax: Axes) -> None:
        """Draw on these axes."""


class RobustnessDisplay(Display[Robustness]):
    """Error against the rate of missing values, a line a method: the mean in a band of the range.

    Parameters
    ----------
    results : Robustness
        From :func:`~knothole.report.evaluation.compare`.
    metric : str, optional
        Which error; by default the main one.

    Examples
    --------
    >>> import numpy as np
    >>> errors = {"knothole": np.array([[1.0], [1.2]]), "native": np.array([[1.0], [3.1]])}
    >>> results = Robustness((0.0, 0.3), {"RMSE": errors}, constant={"RMSE": 2.0}, rows=100)
    >>> display = RobustnessDisplay.from_results(results).plot()
    >>> display.ax_.get_ylabel()
    'RMSE'
    >>> import matplotlib.pyplot as plt
    >>> plt.close(display.figure_)
    """

    def __init__(self, results: Robustness, metric: str | None = None) -> None:
        super().__init__(results)
        self.metric = results.metric if metric is None else metric
        check_choice("metric", self.metric, results.errors)

    def _draw(self, ax: Axes) -> None:
        rates = 100 * np.asarray(self.results.rates)
        constant = self.results.constant[self.metric]
        ax.axhline(constant, **_DASHED, zorder=1)
        errors = self.results.errors[self.metric]
        # Drawn last to first, so that the first lie on top.
        for position, (name, error) in reversed(list(enumerate(errors.items()))):
            look = style.of_method(name, position)
            ax.plot(
                rates, error.mean(axis=1), label=style.label_of(name, self.results.labels), **look
            )
            ax.fill_between(
                rates, error.min(axis=1), error.max(axis=1), color=look["color"], alpha=0.18,
                linewidth=0, zorder=2,
            )  # fmt: skip
        self._limit(ax, constant)
        ax.annotate(
            "the best constant answer", (rates[0], constant), xytext=(2, 3),
            textcoords="offset points", color=style.FAINT, fontsize=8.5,
        )  # fmt: skip
        ax.set_xlabel("entries missing, %")
        ax.set_ylabel(self.metric)
        if self.metric == "error rate":
            ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
        self._add_legend(ax)

    def _add_legend(self, ax: Axes) -> None:
        """A legend above the plot, where no line runs."""
        handles, labels = ax.get_legend_handles_labels()
        width = ax.figure.get_figwidth()  # type: ignore[union-attr]
        ax.legend(
            handles[::-1], labels[::-1], loc="lower left", bbox_to_anchor=(-0.01, 1.0), fontsize=9,
            ncols=5 if width > 8 else 3 if width > 6 else 2, borderpad=0.2, columnspacing=1.1,
            handlelength=1.6, handletextpad=0.5,
        )  # fmt: skip

    def _limit(self, ax: Axes, constant: float) -> None:
        """Room for what is better than twice the constant; what leaves the plot is said."""
        errors = self.results.errors[self.metric]
        tops = {name: float(error.max()) for name, error in errors.items()}
        limit = min(max(*tops.values(), constant), 2 * constant)
        ax.set_ylim(0, 1.06 * limit)
        beyond = [
            f"{style.label_of(name, self.results.labels)}: {errors[name][-1].mean():.3g}"
            for name, top in tops.items()
            if top > 1.06 * limit
        ]
        if beyond:
            where = f"beyond the plot at {100 * self.results.rates[-1]:.0f} %:"
            ax.annotate(
                "\n".join([where, *beyond]), (1, 1), zorder=10,
                xycoords="axes fraction", xytext=(-4, -4), textcoords="offset points", ha="right",
                va="top", fontsize=8.5, color=style.INK,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2},
            )  # fmt: skip


class OutageDisplay(Display[Outage]):
    """Error with one column gone, for the columns that hurt most: two dots a column, tied.

    Parameters
    ----------
    results : Outage
        From :func:`~knothole.report.evaluation.outages`.
    shown : int
        How many columns.
    """

    _size = (6.4, 5.0)

    def __init__(self, results: Outage, shown: int = 12) -> None:
        super().__init__(results)
        self.shown = shown

    def _draw(self, ax: Axes) -> None:
        names = self.results.names[: self.shown]
        places = np.arange(len(names))
        errors = {name: error[: self.shown] for name, error in self.results.errors.items()}
        spans = np.array(list(errors.values()))
        ax.hlines(places, spans.min(axis=0), spans.max(axis=0), color=style.GRID, linewidth=5)
        for position, (name, error) in enumerate(errors.items()):
            look = style.of_method(name, position) | {"markersize": 7, "linestyle": "none"}
            ax.plot(error, places, label=style.label_of(name, self.results.labels), **look)
        ax.axvline(self.results.complete, label="nothing missing", zorder=1, **_DASHED)
        ax.set_yticks(places, [shortened(name) for name in names])
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        ax.set_xlabel(f"{self.results.metric} with this column gone")
        ax.legend(loc="lower right", fontsize=9, frameon=True, framealpha=0.9, edgecolor="none")


class CoverageDisplay(Display[Coverage]):
    """What intervals promise against what they keep; on the diagonal they are calibrated."""

    _size = (4.6, 4.6)

    def _draw(self, ax: Axes) -> None:
        ax.plot([0, 100], [0, 100], **_DASHED)
        colors = (style.SKY, style.BLUE, style.PURPLE, style.VERMILION)
        promised = 100 * np.asarray(self.results.levels)
        found = self.results.covered.items()
        for (rate, covered), color, marker in zip(found, colors, "ovsD", strict=False):
            ax.plot(
                promised, 100 * covered, color=color, marker=marker, markersize=4.5,
                label=f"{100 * rate:.0f} % missing",
            )  # fmt: skip
        ax.set(xlim=(0, 100), ylim=(0, 102), xlabel="interval promises, %", ylabel="covers, %")
        ax.legend(loc="lower right")


class MarginalDisplay(Display[Marginal]):
    """One variable: bars as the data have it, a line (or dots) as the density has it."""

    _size = (4.0, 2.6)

    def _draw(self, ax: Axes) -> None:
        marginal = self.results
        ax.set_title(shortened(marginal.name, 34))
        ax.set_yticks([])
        if marginal.edges is None:
            places = np.arange(len(marginal.labels))
            ax.bar(places, marginal.observed, width=0.8, color="#c9d3dc", label="data")
            ax.plot(places, marginal.modelled, "o", color=style.BLUE, label="density")
            ax.set_xticks(places, [shortened(label, 8) for label in marginal.labels], fontsize=8)
            if len(places) > 4:
                ax.tick_params(axis="x", rotation=40)
            return
        ax.stairs(marginal.observed, marginal.edges, fill=True, color="#c9d3dc", label="data")
        ax.stairs(
            marginal.modelled, marginal.edges, color=style.BLUE, linewidth=1.8, label="density",
            baseline=None,
        )  # fmt: skip
        ax.locator_params(axis="x", nbins=5)


class PairDisplay(Display[Pair]):
    """Two variables: points of the data under points drawn from the density."""

    _size = (4.0, 3.4)

    def _draw(self, ax: Axes) -> None:
        observed, modelled = self.results.observed, self.results.modelled
        for label, points, color, marker, size in (
            ("data", observed, "#8b98a5", "o", 9),
            ("density", modelled, style.BLUE, "x", 11),
        ):
            ax.scatter(
                points[:, 0], points[:, 1], s=size, color=color, marker=marker, linewidths=0.8,
                alpha=0.55, label=label,
            )  # fmt: skip
        low, high = np.quantile(observed, [0.002, 0.998], axis=0)
        room = np.where(high > low, 0.08 * (high - low), 0.5)
        ax.set(
            xlim=(low[0] - room[0], high[0] + room[0]), ylim=(low[1] - room[1], high[1] + room[1])
        )
        ax.set_xlabel(shortened(self.results.names[0], 30))
        ax.set_ylabel(shortened(self.results.names[1], 26))
        ax.locator_params(nbins=5)


class AssociationDisplay(Display[Fit]):
    """Rank correlation of every pair of numeric variables: in the data, and in the density."""

    _size = (4.2, 4.2)

    def _draw(self, ax: Axes) -> None:
        ax.plot([-1, 1], [-1, 1], **_DASHED)
        ax.scatter(
            self.results.observed, self.results.modelled, s=14, color=style.BLUE, alpha=0.5,
            linewidths=0,
        )  # fmt: skip
        lowest = float(min(self.results.observed.min(), self.results.modelled.min(), 0.0))
        low = max(-1.02, lowest - 0.05)
        ax.set(xlim=(low, 1.02), ylim=(low, 1.02), xlabel="in the data", ylabel="in the density")


def shortened(name: str, length: int = 24) -> str:
    """A name that fits beside a plot."""
    return name if len(name) <= length else f"{name[: length - 1]}…"
