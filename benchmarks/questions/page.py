"""docs/questions.md from what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import pictures
from benchmarks.markdown import table
from benchmarks.questions.explaining import INDEPENDENCE, SHAPR, SHAPR_SPEED

TEXT = """# Explanations and acquisition: measurements

Written by `python -m benchmarks.questions` (`make questions`) from
[questions.json](results/questions.json). How to use them is in [the how-to](howto/questions.md).

{sections}"""


def write(folder: Path, found: Mapping[str, Any]) -> None:
    """The page and its pictures."""
    parts = {"bike": _bike, "speed": _speed, "spam": _spam, "tables": _tables}
    sections = [part(found[name]) for name, part in parts.items() if name in found]
    if "spam" in found:
        (folder / "results" / "questions_spam.png").write_bytes(pictures.png(_drawn(found["spam"])))
    (folder / "questions.md").write_text(TEXT.format(sections="\n".join(sections)))


def _bike(found: Mapping[str, Any]) -> str:
    seeds = found["seeds"].values()
    lines = [
        {"v(S)": "independence (shapr)", "mean squared error": f"{INDEPENDENCE:,}"},
        {"v(S)": "shapr's best, ctree", "mean squared error": f"{SHAPR:,}"},
        {
            "v(S)": f"**knothole's default** ({found['seeds']['0']['density']})",
            "mean squared error": f"**{found['seeds']['0']['mse']:,.0f}**",
        },
        *(
            {"v(S)": f"knothole, {name}", "mean squared error": f"{mse:,.0f}"}
            for name, mse in found["others"].items()
        ),
    ]
    listed = ", ".join(f"{one['mse']:,.0f} ({one['density']})" for one in seeds)
    return f"""## Expectations of shapr's bike model

The authors' own XGBoost model, its 585 training rows and the 146 rows that they explain; mean over
rows and all 126 coalitions of (f(x) - v(S))^2, where v(S) is the expected prediction given the
columns in S. The density is learned from the training rows only.

{table(pd.DataFrame(lines))}

The result depends on the seed, by which `density="auto"` holds rows out and training starts: seeds
0 to {len(found["seeds"]) - 1} have {listed}; the mean is
{np.mean([one["mse"] for one in seeds]):,.0f}. One thread evaluates {found["speed"]:,.0f}
coalitions a second under the default density (64 draws each), {found["speed"] / SHAPR_SPEED:.0f}
times shapr's {SHAPR_SPEED} on four workers.
"""


def _speed(found: Mapping[str, Any]) -> str:
    rows = [
        {
            "density": name,
            "CPU, times TreeExplainer's": f"{one['ratio']:.0f}",
            "largest standard error": f"{one['error']:.2%}",
            "root mean square": f"{one['mean error']:.2%}",
        }
        for name, one in found.items()
        if isinstance(one, dict)
    ]
    return f"""## Time

{found["rows"]:,} rows of 20 columns, XGBoost with 100 trees of depth 6, one thread's CPU clock, one
run; `shap.TreeExplainer(feature_perturbation="tree_path_dependent")` is 1. It needs no density, and
its values are other ones. Standard errors are shares of the output's standard deviation.

{table(pd.DataFrame(rows))}
"""


def _spam(found: Mapping[str, Any]) -> str:
    own, other = np.array(found["auroc"]), np.array(found["published"])
    lines = pd.DataFrame(
        {
            "features": range(1, len(own) + 1),
            "robust.acquire": [f"{one:.2f}" for one in own],
            "GDFS": [f"{one:.2f}" for one in other],
        }
    )
    return f"""## Spam: acquiring one feature after the other

AUROC in percent after 1 to 10 features of 57, each chosen for its row, on the test rows of the
published policy (GDFS), which was trained for this task. knothole uses an XGBoost model that was
not ({found["trees"]} trees, early stopping on the validation rows) and a Mixture learned from
the training rows, with `criterion="entropy"` (better than Brier on validation rows). With all
features known the model has {found["all known"]:.2f}. The mean is **{own.mean():.2f}**; the
policy's is {other.mean():.2f}. Nothing was chosen by labels of the test rows; an error in how
draws are put into bins was fixed while looking at these rows without their labels.

{table(lines)}

![AUROC after 1 to 10 features](results/questions_spam.png)
"""


def _tables(found: Mapping[str, Any]) -> str:
    lines = [
        {"table": name, "order": label, **{str(k): f"{e:.3f}" for k, e in enumerate(errors)}}
        for name, ways in found.items()
        for label, errors in ways.items()
    ]
    return f"""## Small tables: in which order to acquire

RMSE against y when so many columns are known, as a share of the RMSE when none is: 150 test rows,
XGBoost with 60 trees, Mixture(16), numeric columns; `robust.acquire` chooses the order for each
row.

{table(pd.DataFrame(lines).fillna(""), 2)}
"""


def _drawn(found: Mapping[str, Any]) -> Any:
    figure = pictures.new(6.4, 3.4)
    axes = figure.add_subplot()
    places = np.arange(1, len(found["auroc"]) + 1)
    axes.plot(places, found["published"], color="#999999", marker="o", label="GDFS, published")
    axes.plot(places, found["auroc"], color="#0072B2", marker="o", label="robust.acquire")
    axes.axhline(found["all known"], color="black", lw=0.8, ls=":", label="all 57 known")
    axes.set(xlabel="features known", ylabel="AUROC (%)")
    axes.legend(loc="lower right")
    return figure
