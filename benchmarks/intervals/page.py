"""docs/intervals.md and what it says, from all runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm

from benchmarks.intervals.peers import NESTED
from benchmarks.intervals.run import LEVEL, OWN
from benchmarks.intervals.tables import SIZES
from knothole.arrays import Floats

SETTING = ["model", "missing", "table"]
#: Test rows, over all splits, of a pattern that is looked at by itself.
FREQUENT = 200
#: How often such a pattern must be covered, and the mean over all rows.
LEAST, MEAN = 0.88, (0.89, 0.92)

TEXT = """# Intervals for y

Written by `python -m benchmarks.intervals` (`make intervals`) from {runs:,} runs; its results are
in [intervals.csv](results/intervals.csv) and
[intervals_patterns.csv](results/intervals_patterns.csv).

`robust.conformalize(X, y).predict_interval(X, confidence_level=0.9)`: how often it covers y, for
each pattern of missing values, and how wide it is. It is compared with both variants of CP-MDA
(Zaffran et al. 2023, in a small implementation of our own) and with one calibration for all
patterns, each on the same *expected* predictions as knothole and, as in their paper, on
the model with *imputed* missing values (iterative ridge regression).
All share one XGBoost model (150 trees of depth 5) and the rows of a split:
{sizes} for training, calibration and test (concrete: 515, 257 and 257).
The density is GaussianMixture(8), learned from the training rows. Splits:
{splits}.

Missing values are in calibration and test rows alike. *MCAR*: 20 % of the entries of half of the
columns ("linear", the setting of that paper: of all ten). *MAR*: 30 % in half of the columns, by a
logistic model of the others. *Outage*: every test row lacks one column, calibration rows are
complete. The design was chosen on splits with seeds from 100. The results here are of other
splits, and nothing was changed after they had been seen.

- **coverage** of 90 % intervals over all test rows, and its standard error over splits.
- **patterns** with at least {frequent} test rows over all splits; the smallest coverage among them,
  with its standard error (splits as clusters, at least that of independent rows); how many are
  below 88 %, and how many would be by chance if all were covered at 90 % exactly.
- **width**: mean over the rows, as a multiple of knothole's for the same rows, and its standard
  error over splits. An infinite interval counts as the range of y. CP-MDA-Nested costs a
  prediction for each pair of patterns: it answers the first {nested} test rows of a split only.
- **valid**: a mean coverage of at least 89 %, and no more patterns below 88 % than chance
  explains (at 1 %).

Under MCAR and outages the promise is exact for every pattern. Under MAR it is for patterns that
have 200 calibration rows of their own; rarer ones rest on rows whose values were hidden
afterwards, weighted by how probable the pattern is for them.

{verdict}

{sections}"""


def write(folder: Path, runs: pd.DataFrame) -> None:
    """The page, and the figures behind it."""
    by = [*SETTING, "method"]
    amounts = ["rows", "covered", "width", "own"]
    splits = runs.groupby([*by, "seed", "seconds"], sort=False)[amounts].sum().reset_index()
    patterns = of_patterns(runs)
    results = folder / "results"
    results.mkdir(parents=True, exist_ok=True)
    splits.to_csv(results / "intervals.csv", index=False, float_format="%.6g")
    patterns.to_csv(results / "intervals_patterns.csv", index=False, float_format="%.5g")
    summary = summarised(splits, patterns)
    sections = [
        f"## {missing}, model of {'the mean' if model == 'mean' else model}\n\n{_markdown(part)}\n"
        for (model, missing), part in summary.groupby(["model", "missing"], sort=False)
    ]
    numbers = splits[splits["method"] == OWN].groupby("table", sort=False)["seed"].nunique()
    text = TEXT.format(
        runs=len(splits[splits["method"] == OWN]),
        sizes="{:,}, {:,} and {:,} rows".format(*SIZES),
        splits=", ".join(f"{n} of {name}" for name, n in numbers.items()),
        frequent=FREQUENT,
        nested=NESTED,
        verdict=verdict(summary, patterns[patterns["method"] == OWN]),
        sections="\n".join(sections),
    )
    (folder / "intervals.md").write_text(text)


def of_patterns(runs: pd.DataFrame) -> pd.DataFrame:
    """Coverage of each frequent pattern over all splits, and its error with splits as clusters."""
    by = [*SETTING, "method", "pattern"]
    total = runs.groupby(by, sort=False)[["rows", "covered"]].transform("sum")
    share = total["covered"] / total["rows"]
    off = (runs["covered"] - share * runs["rows"]) ** 2
    found = runs.assign(off=off).groupby(by, sort=False)[["rows", "covered", "off"]].sum()
    # One split has no spread, and few splits of few rows may happen to have none.
    least = LEVEL * (1 - LEVEL) * found["rows"]
    found["error"] = np.sqrt(np.maximum(found["off"], least)) / found["rows"]
    found["coverage"] = found["covered"] / found["rows"]
    frequent = found[found["rows"] >= FREQUENT].drop(columns="off").reset_index()
    splits = runs.groupby("table")["seed"].nunique()
    return frequent.assign(rows_a_split=frequent["rows"] / frequent["table"].map(splits))


def summarised(splits: pd.DataFrame, patterns: pd.DataFrame) -> pd.DataFrame:
    """One line a setting and method."""
    keys = [*SETTING, "method"]
    of_key = dict(list(patterns.groupby(keys, sort=False)))
    lines = []
    for key, part in splits.groupby(keys, sort=False):
        frequent = of_key.get(key, patterns[:0]).sort_values("coverage")
        below = int((frequent["coverage"] < LEAST).sum())
        expected, chance = by_chance(frequent["error"].to_numpy(), below)
        coverage, width = part["covered"] / part["rows"], part["width"] / part["own"]
        mean = part["covered"].sum() / part["rows"].sum()
        smallest = frequent[:1] if len(frequent) else None
        lines.append(
            dict(zip(keys, key, strict=True))
            | {
                "coverage": mean,
                "coverage_error": coverage.std() / np.sqrt(len(part)),
                "patterns": len(frequent),
                "smallest": np.nan if smallest is None else smallest["coverage"].item(),
                "smallest_error": np.nan if smallest is None else smallest["error"].item(),
                "below": below,
                "expected": expected,
                "valid": mean >= MEAN[0] and chance > 0.01,
                "width": width.mean(),
                "width_error": width.std() / np.sqrt(len(part)),
                "seconds": part["seconds"].median(),
            }
        )
    return pd.DataFrame(lines)


def by_chance(errors: Floats, below: int) -> tuple[float, float]:
    """Patterns below the least coverage by their errors alone: expected, and P(as many or more)."""
    place = (LEAST - LEVEL) / errors
    draws = np.random.default_rng(0).random((4000, len(errors))) < norm.cdf(place)
    return float(norm.cdf(place).sum()), float((draws.sum(axis=1) >= below).mean())


def _markdown(part: pd.DataFrame) -> str:
    lines = [
        "| table | method | coverage | patterns | smallest | below 88 % (by chance) | width "
        "| valid | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in part.itertuples():
        width = "1" if row.method == OWN else f"{row.width:.3f} ± {row.width_error:.3f}"
        smallest = f"{row.smallest:.1%} ± {row.smallest_error:.1%}" if row.patterns else ""
        lines.append(
            f"| {row.table} | {row.method} | {row.coverage:.1%} ± {row.coverage_error:.1%} "
            f"| {row.patterns} | {smallest} | {row.below} ({row.expected:.1f}) "
            f"| {width} | {'yes' if row.valid else 'no'} | {row.seconds:.1f} |"
        )
    return "\n".join(lines)


def verdict(summary: pd.DataFrame, patterns: pd.DataFrame) -> str:
    """What was asked of it, and what was missed; with knothole's own patterns."""
    own = summary[summary["method"] == OWN]
    outside = own[~own["coverage"].between(*MEAN)]
    below = own[own["below"] > 0]
    rivals = summary[(summary["method"] != OWN) & summary["valid"]]
    narrower = rivals[rivals["width"] < 1]
    clearly = narrower[narrower["width"] + 2 * narrower["width_error"] < 1]
    return "\n".join(
        [
            f"- Mean coverage is from {own['coverage'].min():.1%} to "
            f"{own['coverage'].max():.1%} in {len(own)} settings; "
            f"outside 89 to 92 %: {_listed(outside, 'coverage')}.",
            f"- Patterns with at least {FREQUENT} test rows over all splits, below 88 %: "
            f"{_below_by_kind(own)}. The smallest where there are some: "
            f"{_listed(below, 'smallest')}.",
            *_in_every_split(patterns[patterns["rows_a_split"] >= FREQUENT]),
            f"- {len(rivals)} times another method is valid. It is narrower than knothole "
            f"{len(narrower)} times, {len(clearly)} times by more than two standard errors: "
            f"{_listed(narrower, 'width')}.",
        ]
    )


def _below_by_kind(own: pd.DataFrame) -> str:
    counts = own.groupby("missing", sort=False)[["patterns", "below", "expected"]].sum()
    return "; ".join(
        f"{missing} {row.below:.0f} of {row.patterns:.0f}, {row.expected:.1f} by chance"
        for missing, row in counts.iterrows()
    )


def _in_every_split(patterns: pd.DataFrame) -> list[str]:
    """On patterns that are frequent within a split: their coverage has little noise."""
    if not len(patterns):
        return []
    low = patterns.sort_values("coverage").iloc[0]
    return [
        f"- Patterns with at least {FREQUENT} test rows in each split: {len(patterns)}, of which "
        f"{int((patterns['coverage'] < LEAST).sum())} are below 88 %; the smallest is "
        f"{low['coverage']:.1%} ± {low['error']:.1%} ({low['table']} {low['missing']})."
    ]


def _listed(part: pd.DataFrame, what: str) -> str:
    named = []
    for row in part.to_dict("records"):
        value, error = row[what], row[f"{what}_error"]
        figures = f"{value:.3f} ± {error:.3f}" if what == "width" else f"{value:.1%} ± {error:.1%}"
        method = f", {row['method']}" if row["method"] != OWN else ""
        named.append(f"{row['table']} {row['missing']}{method} ({figures})")
    return "; ".join(named) if named else "none"
