"""What :meth:`knothole.Robust.explain` returns: values, their errors, and pictures of them."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from knothole.arrays import Floats
from knothole.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Rows that a notebook shows, and players that a picture does.
_ROWS, _PLAYERS = 10, 12
_BLUE, _RED, _GREY = "#0072B2", "#D55E00", "#B8C1CA"


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Conditional Shapley values of some rows.

    Attributes
    ----------
    values, errors : float64 (rows, players), or (rows, players, outputs) where there are several
        What each player adds, and the standard error of that; both 0 for holes. The values of a
        row and ``base`` add up to the expected output.
    base : float, or float64 (outputs,)
        The expected output where nothing is known.
    data : pandas.DataFrame
        What the players say in each row, NaN at holes.
    codes : float64 (rows, players)
        The same in numbers, for colours: positions of categories, NaN for groups.
    outputs : list
        Labels of the outputs.

    Examples
    --------
    >>> import knothole as kh
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> X = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 10)
    >>> model = DecisionTreeRegressor().fit(X, 2 * X[:, 0] + X[:, 1])
    >>> found = kh.wrap(model, X, density=kh.Factorized()).explain([[1.0, 1.0], [0.0, np.nan]])
    >>> found.base, found.values.round(6).tolist()
    (1.5, [[1.0, 0.5], [-1.0, 0.0]])
    """

    values: Floats
    errors: Floats
    base: Any
    data: pd.DataFrame
    codes: Floats
    outputs: list[Any]

    def table(self, output: Any = None) -> pd.DataFrame:
        """Values as a table, (rows, players); of one output where there are several."""
        return pd.DataFrame(
            self._one(self.values, output), index=self.data.index, columns=self.data.columns
        )

    def to_shap(self) -> Any:
        """The same as a ``shap.Explanation``, for all of shap's plots."""
        try:
            import shap
        except ImportError as error:
            raise MissingExtra("to_shap needs shap: pip install 'knothole[shap]'.") from error
        base = np.tile(self.base, (len(self.values), 1))
        return shap.Explanation(
            values=self.values,
            base_values=base[:, 0] if self.values.ndim == 2 else base,
            data=self.codes,
            display_data=self.data.to_numpy(),
            feature_names=[str(name) for name in self.data.columns],
            output_names=None if self.values.ndim == 2 else [str(name) for name in self.outputs],
            error_std=self.errors,
        )

    def bar(self, output: Any = None, ax: Axes | None = None) -> Axes:
        """Mean size of each player's values; for a single row, the values and their errors."""
        values, errors = self._one(self.values, output), self._one(self.errors, output)
        single = len(values) == 1
        height = values[0] if single else np.abs(values).mean(axis=0)
        order = np.argsort(-np.abs(height), kind="stable")[:_PLAYERS]
        names = [str(self.data.columns[j]) for j in order]
        if single:
            names = [
                f"{name} = {_text(self.data.iloc[0, j])}"
                for name, j in zip(names, order, strict=True)
            ]
        ax = _axes(ax)
        ax.barh(
            np.arange(len(order)), height[order],
            xerr=1.96 * errors[0][order] if single and errors.any() else None,
            color=np.where(height[order] < 0, _RED, _BLUE).tolist(), ecolor=_GREY,
        )  # fmt: skip
        ax.set_yticks(np.arange(len(order)), names)
        ax.invert_yaxis()
        ax.set_xlabel("value" if single else "mean size of values")
        return ax

    def beeswarm(self, output: Any = None, ax: Axes | None = None) -> Axes:
        """Every row's values, a line a player, blue where the column is low and red where high."""
        from matplotlib.colors import LinearSegmentedColormap

        values = self._one(self.values, output)
        order = np.argsort(-np.abs(values).mean(axis=0), kind="stable")[:_PLAYERS]
        ax = _axes(ax)
        colours = LinearSegmentedColormap.from_list("low to high", [_BLUE, "#C9B8C8", _RED])
        for place, j in enumerate(order):
            code = pd.Series(self.codes[:, j]).rank(pct=True).to_numpy()
            known = ~np.isnan(code)
            height = place + _jitter(values[:, j])
            ax.scatter(values[~known, j], height[~known], s=7, color=_GREY, linewidths=0)
            ax.scatter(
                values[known, j], height[known], s=7, c=code[known], cmap=colours, vmin=0, vmax=1,
                linewidths=0,
            )  # fmt: skip
        ax.axvline(0, color=_GREY, linewidth=0.8, zorder=0)
        ax.set_yticks(np.arange(len(order)), [str(self.data.columns[j]) for j in order])
        ax.invert_yaxis()
        ax.set_xlabel("value (grey: a hole or a group; blue to red: low to high)")
        return ax

    def _one(self, values: Floats, output: Any) -> Floats:
        """The values of one output."""
        if values.ndim == 2:
            return values
        if output not in self.outputs:
            raise InvalidInput(f"output must be one of {self.outputs}; got {output!r}.")
        return np.asarray(values[:, :, self.outputs.index(output)])

    def __repr__(self) -> str:
        rows, players, *_ = self.values.shape
        return f"Explanation({rows} rows, {players} players, {len(self.outputs)} outputs)"

    def _repr_html_(self) -> str:
        """What each player says and adds, for the first rows."""
        one = self.values[:_ROWS] if self.values.ndim == 2 else self.values[:_ROWS, :, -1]
        cells = [
            [f"{_text(said)}: {value:+.3g}" for said, value in zip(row, own, strict=True)]
            for row, own in zip(self.data.to_numpy().tolist(), one, strict=False)
        ]
        shown = pd.DataFrame(cells, index=self.data.index[:_ROWS], columns=self.data.columns)
        base = ", ".join(f"{value:.4g}" for value in np.atleast_1d(self.base))
        return f"<p>{escape(repr(self))}, from {escape(base)}</p>{shown.to_html()}"


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingExtra("plots need matplotlib: pip install 'knothole[plot]'.") from error
    made: Axes = pyplot.subplots(layout="constrained")[1]
    return made


def _text(said: Any) -> str:
    if said != said:
        return "?"
    return f"{said:.4g}" if isinstance(said, float) else str(said)


def _jitter(values: Floats) -> Floats:
    """Heights that keep points of nearly the same value apart, the densest the widest."""
    if np.ptp(values) == 0:
        return np.zeros(len(values))
    bins = np.floor((values - values.min()) / np.ptp(values) * 60).astype(np.intp)
    count = np.bincount(bins)
    number = pd.Series(bins).groupby(bins).cumcount().to_numpy()
    side = np.where(number % 2 == 0, 1, -1) * ((number + 1) // 2)
    return np.asarray(0.4 * side / max(1, count.max() / 2))
