"""The page of ``make reproduce``, written from the results files and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.paper import figure, panels, published
from benchmarks.paper.panels import FAIR, LEFT, PAPER, RIGHT
from knothole.errors import InvalidInput

_PANELS = {
    LEFT: "Left panel: five trees, missing values at deployment only",
    RIGHT: "Right panel: one tree, missing values at learning and deployment",
}
_SETTINGS = {
    PAPER: "the paper's settings (learning rate 0.3, base score 0.5)",
    FAIR: "the fair version (learning rate 1, estimated base score)",
}

_YARDSTICK = """\
*Conditioned on the target* is `robust.refit_leaves(X, y)`: missing values of training rows are
drawn knowing y, and leaves move on towards the least error of deployed predictions. *Leaves of
complete rows* is a yardstick, not a method: the same tree, its leaves learned from the training
rows before they had missing values. The error of a method above this yardstick is due to missing
values in training, the rest to the tree and to missing values in test rows.
"""


def write(folder: Path) -> Path:
    """Write ``reproduce.md`` and its figure beside the results of a run."""
    results = folder / "results"
    if not (results / "reproduce.json").exists():
        raise InvalidInput(
            f"{os.fspath(folder)!r} has no results/reproduce.json, which a run writes when it ends."
        )
    about = json.loads((results / "reproduce.json").read_text())
    figure1 = pd.read_csv(results / "figure1.csv")
    (results / "figure1.png").write_bytes(figure.draw(figure1))
    parts = [_head(about), _figure(figure1)]
    if (results / "figure1_rule.csv").exists():
        parts.append(_by_the_rule(pd.read_csv(results / "figure1_rule.csv")))
    if (results / "published.csv").exists():
        parts.append(_published(results, about["published"]))
    else:
        parts.append(f"## The published masks\n\nLeft out: {about['published']['skipped']}\n")
    if (results / "forests.csv").exists():
        parts.append(_forests(pd.read_csv(results / "forests.csv")))
        parts.append(_mechanisms(pd.read_csv(results / "mechanisms.csv")))
    page = folder / "reproduce.md"
    page.write_text("\n".join([*parts, _foot(about)]))
    return page


def _head(about: dict[str, Any]) -> str:
    return f"""# The paper's figure

Written by `make reproduce`; every number is from a file in `docs/results`. Insurance in the
authors' encoding (36 dummies, their split; test rows are validation and test rows merged). RMSE,
mean and standard deviation over {about["trials"]} trials. XGBoost with depth 5, lambda 1, squared
error. Every dummy goes missing by itself. Densities take the dummies of a one-hot group as one
variable: if all other dummies of a one-hot group are known, they may determine a missing one.
"""


def _by_the_rule(results: pd.DataFrame) -> str:
    """The figure with knothole's own preprocessing of the raw table."""
    text = [
        "## Figure 1 by the paper's binning rule\n",
        "The same rows of the raw table, encoded here by the rule in the paper: bins by penalised\n"
        "likelihood, ten of equal width where more than ten would be best. A column that is best\n"
        "left in one bin carries no information then.\n",
        *_tables(results),
    ]
    for settings, name in _SETTINGS.items():
        found = panels.departures(results, settings)
        text.append(_verdict(f"The ordering of the figure, with {name}", found))
    return "\n".join(text)


def _tables(results: pd.DataFrame) -> list[str]:
    text = []
    for panel, title in _PANELS.items():
        text.append(f"### {title}\n")
        for settings, name in _SETTINGS.items():
            part = results[(results["panel"] == panel) & (results["settings"] == settings)]
            text += [f"With {name}:\n", _spread(part, "rate"), ""]
    return text


def _figure(results: pd.DataFrame) -> str:
    text = ["## Figure 1\n", "![Figure 1](results/figure1.png)\n", *_tables(results), _YARDSTICK]
    text.append("### Does the ordering of the paper's figure hold?\n")
    text.append(
        "Expected prediction should be the best of the paper's methods on the left, expected loss\n"
        "+ expected prediction on the right, at every rate.\n"
    )
    for settings, name in _SETTINGS.items():
        found = panels.departures(results, settings)
        text.append(_verdict(f"With {name}", found))
    text.append(_against_xgboost(results))
    limits = ", ".join(f"{limit:.0f} at {rate:.1f}" for rate, limit in panels.TARGETS.items())
    text.append(_verdict(f"It is at most {limits}", panels.above_target(results)))
    return "\n".join(text)


def _against_xgboost(results: pd.DataFrame) -> str:
    """Whether ours is below XGBoost on the right, with the fair settings."""
    part = results[(results["panel"] == RIGHT) & (results["settings"] == FAIR)]
    table = part.pivot_table(index="rate", columns="method", values="rmse")
    worse = table.index[table[panels.OURS] >= table[panels.XGBOOST]]
    found = [f"rate {rate:.1f}." for rate in worse]
    return _verdict("Conditioned on the target, below XGBoost's own with the fair settings", found)


def _published(results: Path, choices: dict[str, Any]) -> str:
    errors = pd.read_csv(results / "published_errors.csv").set_index("missing")
    model, density = choices["model"][0], choices["density"]
    numbers = errors.map(lambda value: "" if pd.isna(value) else f"{value:.0f}")
    scores = ", ".join(f"{one['density']} {one['valid_log_p']:.2f}" for one in density)
    below = published.not_below(errors)
    above = published.above_target(errors)
    return f"""## The published masks

The authors' own masks of their test rows (ten for each number of missing values). The model was
chosen on training and validation rows only: XGBoost with depth {model["max_depth"]}, learning rate
{model["learning_rate"]}, {model["n_estimators"]} trees (validation RMSE {model["valid_rmse"]:.0f}).
So was the density, by log p of the validation rows: {scores}. Mean RMSE:

{_markdown(numbers)}

Other columns are the published errors, of another model: at 0 missing values the difference is the
model's. At 36 missing values nothing is observed, and every method predicts a constant.

{_verdict("Below every published method at every number of missing values", below)}
{
        _verdict(
            "At most 4700 / 5200 / 5900 / 6700 / 7650 at 3 / 7 / 10 / 14 / 18 missing values", above
        )
    }"""


def _forests(results: pd.DataFrame) -> str:
    text = [
        "## Left open by the paper: bagging and random forests\n",
        "Ten trees of depth 5, missing values at learning and deployment; each tree is refitted "
        "by itself,\n"
        "under a mixture of 4. "
        f"{results['trial'].nunique()} trials.\n",
    ]
    for name, part in results.groupby("model", sort=False):
        text += [f"{str(name).capitalize()}:\n", _spread(part, "rate"), ""]
    return "\n".join(text)


def _mechanisms(results: pd.DataFrame) -> str:
    pairs = results.assign(pair=results["learning"] + " / " + results["deployment"])
    return "\n".join(
        [
            "## Left open by the paper: mechanisms that differ\n",
            "One tree with the fair settings; missing values by one mechanism at learning, by "
            "another at\n"
            f"deployment. {results['trial'].nunique()} trials.\n",
            _spread(pairs, "pair", "learning / deployment"),
            "",
        ]
    )


def _foot(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    seconds = ", ".join(f"{name} {number:.0f}" for name, number in about["seconds"].items())
    densities = ", ".join(f"{rate} {name}" for rate, name in about["densities"].items())
    return f"""## How it was run

- Versions: Python {about["python"]}, {versions}.
- Seeds: {about["seeds"]}.
- Densities, by held-out log p of training rows of the first trial (by rate): {densities}.
- Seconds, {about["workers"]} processes on {about["cores"]} cores: {seconds};
  {sum(about["seconds"].values()):.0f} in all.
"""


def _verdict(claim: str, exceptions: list[str]) -> str:
    if not exceptions:
        return f"- {claim}: **yes**.\n"
    return "\n".join(
        [f"- {claim}: **not everywhere**:\n", *(f"  - {one}" for one in exceptions), ""]
    )


def _spread(part: pd.DataFrame, index: str, title: str | None = None) -> str:
    """Mean ± standard deviation; the smallest mean of a row, but for the yardstick, is bold."""
    order = list(dict.fromkeys(part["method"]))
    groups = part.groupby([index, "method"], sort=False)["rmse"]
    mean = groups.mean().unstack()[order]
    spread = groups.std().unstack()[order]
    text = mean.map(lambda value: f"{value:.0f}") + " ± " + spread.map(lambda value: f"{value:.0f}")
    best = mean.eq(mean.drop(columns=panels.YARDSTICK, errors="ignore").min(axis=1), axis=0)
    return _markdown(text.where(~best, "**" + text + "**").rename_axis(index=title or index))


def _markdown(table: pd.DataFrame) -> str:
    """A table of texts with its index as the first column."""
    header = [str(table.index.name), *map(str, table.columns)]
    lines = [header, ["---:"] * len(header)]
    lines += [[str(name), *row] for name, row in zip(table.index, table.to_numpy(), strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
