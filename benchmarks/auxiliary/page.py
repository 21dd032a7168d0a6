"""docs/auxiliary.md: what auxiliary columns are worth, from the files in docs/results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.auxiliary.run import MAX_ROWS, REPEATS, SCENARIOS, TAKEN, WITH, WITHOUT
from benchmarks.markdown import table
from benchmarks.suite.analysis import duels

#: What the geometric mean over tables is to be at most, and what a prediction may cost.
GOAL, COST = 0.97, 1.2
FILE, TIMES = "auxiliary.csv", "auxiliary_times.csv"
COLUMNS = ["dataset", "task", "repeat", "scenario", "peer", "rmse", "log_loss", "groups", "failure"]


def keep(folder: Path, results: pd.DataFrame) -> None:
    """Write what was found of every draw."""
    groups = results["groups"].map(lambda losses: json.dumps([float(f"{x:.6g}") for x in losses]))
    out = results[COLUMNS].assign(groups=groups)
    out.to_csv(folder / FILE, index=False, float_format="%.6g")


def kept(folder: Path) -> pd.DataFrame:
    """What was found of every draw."""
    found = pd.read_csv(folder / FILE, keep_default_na=True)
    return found.assign(groups=found["groups"].map(json.loads), failure="")


def ratios(results: pd.DataFrame) -> pd.DataFrame:
    """Errors with auxiliary columns over those without: by table and scenario, and the verdict.

    ``ratio`` is the geometric mean over draws; ``error`` the standard error of its logarithm over
    draws. Whether it is a win or a loss says a paired t-test over groups of test rows.
    """
    error = results["rmse"].fillna(results["log_loss"])
    wide = results.assign(error=error).pivot_table(
        index=["dataset", "scenario", "repeat"], columns="peer", values="error", sort=False
    )
    log = np.log(wide[WITH] / wide[WITHOUT]).groupby(["dataset", "scenario"], sort=False)
    found = pd.DataFrame({"ratio": np.exp(log.mean()), "error": log.sem(), "draws": log.count()})
    judged = duels(results, WITH).set_index(["dataset", "scenario"])
    return found.join(judged[["p_value", "outcome"]]).reset_index()


def overall(found: pd.DataFrame, scenario: str) -> tuple[float, float]:
    """The geometric mean over tables, and the p-value that it is not below 1 (Wilcoxon)."""
    log = np.log(found.loc[found["scenario"] == scenario, "ratio"].to_numpy())
    p_value = float(stats.wilcoxon(log, alternative="less").pvalue) if log.any() else 1.0
    return float(np.exp(log.mean())), p_value


def write(output: Path) -> Path:
    """The page."""
    results = output / "results"
    parts = [
        "<!-- Written by python -m benchmarks.auxiliary; do not edit. -->\n# Auxiliary columns",
        f"Of each table of the suite {TAKEN} features, drawn at random, are taken from the model "
        f"(XGBoost, the suite's settings) and passed as auxiliary columns, or not at all; at most "
        f"{MAX_ROWS:,} rows, of which a quarter are tested on. The features have the same missing "
        f"values in both arms; of the auxiliary columns as many are missing, where "
        f"{SCENARIOS[1]}. Figures are errors (RMSE, log loss) with auxiliary columns over those "
        f"without: geometric means over the draws, ± standard errors over them; `+` and `-` where "
        f"a paired t-test over groups of test rows finds the error smaller or larger (p < 0.05). "
        f"Written by `python -m benchmarks.auxiliary`.",
    ]
    if (results / FILE).exists():
        found = ratios(kept(results))
        parts += [_table(found), *_verdicts(found)]
        if found["draws"].min() < len(REPEATS):
            parts.append(
                f"Not all of the {len(REPEATS)} draws have been made yet: the verdicts are "
                f"preliminary. The command goes on where it stopped."
            )
    if (results / TIMES).exists():
        parts += ["## Time of predictions", *_times(pd.read_csv(results / TIMES))]
    page = output / "auxiliary.md"
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return page


def _table(found: pd.DataFrame) -> str:
    rows = []
    marks = {"win": " +", "loss": " -", "tie": ""}
    for name, part in found.groupby("dataset", sort=False):
        own = part.set_index("scenario")
        texts = {
            scenario: f"{row.ratio:.3f}{_spread(row.error)}{marks[row.outcome]}"
            for scenario, row in own.iterrows()
        }
        rows.append({"table": name, "draws": int(own["draws"].max()), **texts})
    means = {scenario: f"**{overall(found, scenario)[0]:.3f}**" for scenario in SCENARIOS}
    rows.append({"table": "geometric mean", "draws": "", **means})
    return table(pd.DataFrame(rows))


def _spread(error: float) -> str:
    return "" if np.isnan(error) else f" ± {error:.3f}"


def _verdicts(found: pd.DataFrame) -> list[str]:
    lines = []
    for scenario in SCENARIOS[1:]:
        mean, p_value = overall(found, scenario)
        holds = "yes" if mean <= GOAL else "no"
        lines.append(
            f"Geometric mean at most {GOAL} with {scenario}: **{holds}** ({mean:.3f}; Wilcoxon "
            f"over tables, one-sided, p {p_value:.4f})."
        )
    behind = found[found["outcome"] == "loss"]
    told = ", ".join(f"{row.dataset} with {row.scenario}" for row in behind.itertuples())
    lines.append(
        f"No table significantly above 1.00: **{'no' if told else 'yes'}** ({told or 'none'})."
    )
    return lines


def _times(times: pd.DataFrame) -> list[str]:
    ratio = times["auxiliary"] / times["features"]
    shown = pd.DataFrame(
        {
            "table": times["dataset"],
            "density": times["density"],
            "auxiliary, ms": (1000 * times["auxiliary"]).map("{:.1f}".format),
            "features, ms": (1000 * times["features"]).map("{:.1f}".format),
            "ratio": ratio.map("{:.2f}".format),
        }
    )
    parts = [
        f"The test rows with {SCENARIOS[1]} under a mixture of 16 components over all columns and, "
        f"where all are numeric, a Gaussian mixture of 4; CPU time of one thread, the best of "
        f"several runs: where three columns are auxiliary, and where they are features that the "
        f"same trees do not split on.",
        table(shown),
    ]
    for density, part in np.log(ratio).groupby(times["density"], sort=False):
        mean, most = np.exp([part.mean(), part.max()])
        parts.append(
            f"At most {COST}x under a {density}: **{'yes' if mean <= COST else 'no'}** (geometric "
            f"mean {mean:.2f}, largest {most:.2f})."
        )
    return parts
