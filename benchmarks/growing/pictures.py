"""The results as pictures and tables."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks import markdown, pictures
from benchmarks.growing.run import GROWN, NATIVE, REFITTED
from knothole.report import style

_LOOKS = {
    NATIVE: {"color": style.VERMILION, "marker": "s"},
    REFITTED: {"color": style.GREEN, "marker": "v"},
    GROWN: {"color": style.BLUE, "marker": "o"},
}


def insurance(results: pd.DataFrame) -> bytes:
    """Mean and standard error of the RMSE at every rate, a panel for each model."""
    with style.look():
        figure = pictures.new(10, 4.5)
        models = list(dict.fromkeys(results["model"]))
        for axes, model in zip(figure.subplots(1, len(models)), models, strict=True):
            part = results[results["model"] == model]
            for method, rows in part.groupby("method", sort=False):
                line = rows.groupby("rate")["rmse"].agg(["mean", "sem"])
                look = _LOOKS[str(method)]
                axes.plot(line.index, line["mean"], label=str(method), markersize=4.5, **look)
                low, high = line["mean"] - line["sem"], line["mean"] + line["sem"]
                axes.fill_between(line.index, low, high, color=look["color"], alpha=0.2)
            axes.set_title(f"{model}, missing values at learning and deployment")
            axes.set_xlabel("probability that an entry is missing")
            axes.set_ylabel("RMSE")
        handles, names = axes.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3)
    return pictures.png(figure)


def insurance_table(results: pd.DataFrame) -> str:
    """Mean RMSE by model and rate; the difference to refitted leaves with its standard error."""
    rows = []
    for (model, rate), part in results.groupby(["model", "rate"], sort=False):
        errors = part.pivot(index="trial", columns="method", values="rmse")
        row = {"model": model, "rate": f"{rate:.1f}"}
        row |= {method: f"{errors[method].mean():.0f}" for method in _LOOKS}
        gap = errors[GROWN] - errors[REFITTED]
        row["grown less refitted"] = f"{gap.mean():+.0f} ± {gap.sem():.0f}"
        rows.append(row)
    return markdown.table(pd.DataFrame(rows).sort_values(["model", "rate"]), 2)


def relative(results: pd.DataFrame) -> pd.DataFrame:
    """Errors as multiples of native's: geometric means over tables and splits."""
    keys = ["table", "repeat", "training", "deployment"]
    native = results[results["peer"] == "native"].set_index(keys)["error"]
    ratio = np.log(results["error"] / native.reindex(results.set_index(keys).index).to_numpy())
    mean = results.assign(ratio=ratio).groupby(["training", "deployment", "peer"], sort=False)
    found: pd.DataFrame = np.exp(mean["ratio"].mean()).unstack("peer", sort=False)
    return found


def shifts(results: pd.DataFrame) -> bytes:
    """A panel for each mechanism at learning: errors by mechanism at deployment."""
    found = relative(results)
    with style.look():
        figure = pictures.new(11, 7.5)
        trainings = list(dict.fromkeys(found.index.get_level_values(0)))
        colours = (style.SKY, style.GREEN, style.BLUE, style.VERMILION, style.ORANGE, style.FAINT)
        looks = dict(zip(found.columns, colours, strict=False))
        grid = figure.subplots(2, 2, sharey=True).ravel()
        for axes, training in zip(grid, trainings, strict=False):
            part = found.loc[training].dropna(axis=1, how="all")
            width = 0.8 / len(part.columns)
            for place, peer in enumerate(part.columns):
                x = np.arange(len(part)) + (place - (len(part.columns) - 1) / 2) * width
                axes.bar(x, part[peer], width, label=peer, color=looks[peer])
            axes.axhline(1, color=style.FAINT, linewidth=0.8)
            axes.set_xticks(np.arange(len(part)), [name.upper() for name in part.index])
            axes.set_title("complete at learning" if training == "none" else
                           f"{str(training).upper()} at learning")  # fmt: skip
            axes.set_ylabel("error, native is 1")
        handles, names = grid[1].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=6)
    return pictures.png(figure)


def shifts_table(results: pd.DataFrame) -> str:
    """Errors as multiples of native's."""
    found = relative(results)
    text = found.map(lambda value: "" if np.isnan(value) else f"{value:.3f}").reset_index()
    return markdown.table(text, 2)


def times_table(results: pd.DataFrame) -> str:
    """What drawing, training on draws, and all of it with the own model cost."""
    mean = results.groupby("estimator", sort=False)[["own", "drawing", "training"]].mean()
    ratio = mean.div(mean["own"], axis=0)
    ratio["in all"] = ratio.sum(axis=1)
    return markdown.table(ratio.drop(columns="own").map("{:.1f}".format).reset_index(), 1)
