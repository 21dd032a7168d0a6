"""docs/intervals.md, from the results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.intervals.run import COVERAGE

# Test rows of a pattern that is looked at by itself, and how often it must be covered.
FREQUENT, LEAST = 200, 0.88
MEAN = (0.89, 0.92)

TEXT = """# Intervals for y

Written by `python -m benchmarks.intervals` from [its results](results/intervals.csv).

`robust.calibrate(X, y).predict_interval(X, coverage=0.9)`: how often it covers, for each pattern of
holes, and how wide it is; next to both variants of CP-MDA (Zaffran et al. 2023; own small
implementation, holes filled by iterative ridge regression) and to one calibration for all patterns.
All of them have the same XGBoost model (150 trees of depth 5; "quantiles": of 5, 50 and 95 %, conformalised)
and the same rows: {sizes}. Holes: *MCAR* 20 % of the entries; *MAR* in half of the columns, by a
logistic model of the others; both in calibration and test rows alike. *Outage*: every test row lacks one
column, calibration rows are complete. Densities: GaussianMixture(8). The design was chosen on
other splits.

- **coverage** of 90 % intervals over all test rows and splits; it should be from 89 to 92 %.
- **frequent patterns**: those with at least {frequent} test rows; the smallest coverage among them, and how many
  are below 88 %, next to how many would be by chance if all were covered at 90 % exactly.
- **width**: mean, as a share of knothole's. An interval without end counts as the range of y.
- **valid**: mean coverage of at least 89 %, and no more patterns below 88 % than chance explains (5 %).

{verdict}

{tables}
"""


def write(path: Path, results: pd.DataFrame) -> None:
    """The page."""
    summary = summarised(results)
    sections = []
    for (kind, holes), part in summary.groupby(["model", "holes"], sort=False):
        sections += [
            f"## {holes}, model of {'the mean' if kind == 'mean' else kind}",
            "",
            _markdown(part),
            "",
        ]
    text = TEXT.format(
        sizes="3,000 for training, 2,000 for calibration, 3,000 to ask (concrete: 515, 257, 257)",
        frequent=FREQUENT,
        verdict=_verdict(summary),
        tables="\n".join(sections),
    )
    path.write_text(text)


def summarised(results: pd.DataFrame) -> pd.DataFrame:
    """One line a table, kind of holes, model and method."""
    lines = []
    keys = ["model", "holes", "table", "method"]
    for key, part in results.groupby(keys, sort=False):
        rows = part["rows"].sum()
        frequent = part[~part["pattern"].str.startswith("rare")]
        share = frequent["covered"] / frequent["rows"]
        below, expected, chance = by_chance(frequent["rows"].to_numpy(), int((share < LEAST).sum()))
        coverage = part["covered"].sum() / rows
        lines.append(
            dict(zip(keys, key, strict=True))
            | {
                "coverage": coverage,
                "patterns": len(frequent),
                "smallest": share.min(),
                "below": below,
                "expected": expected,
                "valid": coverage >= MEAN[0] and chance > 0.05,
                "width": part["width"].sum() / rows,
                "seconds": part["seconds"].iloc[0],
            }
        )
    return pd.DataFrame(lines)


def by_chance(rows: np.ndarray, below: int) -> tuple[int, float, float]:
    """Patterns below the least coverage: found, expected by chance, and how likely as many are."""
    draws = np.random.default_rng(0).binomial(rows, COVERAGE, size=(4000, len(rows))) / rows
    counts = (draws < LEAST).sum(axis=1)
    return below, float(counts.mean()), float((counts >= below).mean())


def _markdown(part: pd.DataFrame) -> str:
    lines = [
        "| table | method | coverage | frequent patterns: smallest | below 88 % (by chance) | width | "
        "valid | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, rows in part.groupby("table", sort=False):
        own = rows.loc[rows["method"] == "knothole", "width"].iloc[0]
        for row in rows.itertuples():
            lines.append(
                f"| {name} | {row.method} | {row.coverage:.1%} | {row.smallest:.1%} of {row.patterns} | "
                f"{row.below} ({row.expected:.1f}) | {row.width / own:.3f} | "
                f"{'yes' if row.valid else 'no'} | {row.seconds:.1f} |"
            )
    return "\n".join(lines)


def _verdict(summary: pd.DataFrame) -> str:
    """What was asked of it, and what was missed."""
    own = summary[summary["method"] == "knothole"]
    outside = own[(own["coverage"] < MEAN[0]) | (own["coverage"] > MEAN[1])]
    below = own[own["smallest"] < LEAST]
    merged = summary.merge(
        own[["model", "holes", "table", "width"]], on=["model", "holes", "table"]
    )
    rivals = merged[(merged["method"] != "knothole") & merged["valid"]]
    narrower = rivals[rivals["width_x"] < rivals["width_y"]]
    named = [
        f"{row.table} {row.holes} ({row.model}): {row.method} by {1 - row.width_x / row.width_y:.1%}"
        for row in narrower.itertuples()
    ]
    return "\n".join(
        [
            f"Of {len(own)} settings, mean coverage is outside 89 to 92 % in {len(outside)}"
            + (": " + _settings(outside, "coverage") if len(outside) else "")
            + f"; {len(own) - len(below)} have every frequent pattern at 88 % or above"
            + (", the others are " + _settings(below, "smallest") if len(below) else "")
            + f", and {int(own['valid'].sum())} no more below than chance explains.",
            f"Of {len(rivals)} comparisons with a rival that is valid, {len(rivals) - len(narrower)} have a mean "
            f"width no smaller than knothole's" + (f"; not: {'; '.join(named)}." if named else "."),
        ]
    )


def _settings(part: pd.DataFrame, what: str) -> str:
    return ", ".join(
        f"{row.table} {row.holes} ({row.model}, {getattr(row, what):.1%})"
        for row in part.itertuples()
    )
