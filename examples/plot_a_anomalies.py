"""
Anomaly, or only an outage?
===========================

An isolation forest watches a machine that runs at full load by day and idles at night. One night
two of its sensors fail. A failed sensor is a matter for maintenance, not a fault of the machine:
the alarm should stay quiet, and still ring when something happens.

Columns that are filled with their mean look like a machine that idles at half its current, and
every row is an anomaly. What scikit-learn itself makes of NaN depends on the training table. If
that had none, NaN goes with the larger part of the training rows at each split, where leaves are
deep: nothing looks like an anomaly any more. If single readings had dropped out of it, splits that
met NaN send it to a random side, and the outage is flagged. The expected score is about the values
that the lost sensors may have had.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.ensemble import IsolationForest

import knothole as kh

rng = np.random.default_rng(0)


def readings(day):
    """Four sensors of a machine that is at full load by day."""
    n = len(day)
    load = np.where(day, 1.0, 0.2) + 0.08 * rng.normal(size=n)
    return pd.DataFrame(
        {
            "current": 20 * load + 0.6 * rng.normal(size=n),
            "temperature": 30 + 40 * load + 1.5 * rng.normal(size=n),
            "flow": 5 * load + 0.15 * rng.normal(size=n),
            "vibration": 1 + 2 * load + 0.1 * rng.normal(size=n),
        }
    )


train = readings(rng.random(3000) < 0.7)
model = IsolationForest(n_estimators=200, contamination=0.02, random_state=0).fit(train)
robust = kh.wrap(model, train, density=kh.GaussianMixture(random_state=0))

# %%
# A night. Current and flow are lost after two hundred minutes; after four hundred the machine
# overheats by 25 degrees and shakes, which the two sensors that are left can see.

minutes = np.arange(500)
truth = readings(np.zeros(500, dtype=bool))
truth.loc[400:, "temperature"] += 25
truth.loc[400:, "vibration"] += 3
tonight = truth.copy()
tonight.loc[200:, ["current", "flow"]] = np.nan

ways = {
    "filled with means": model.decision_function(tonight.fillna(train.mean())),
    "scikit-learn's own": model.decision_function(tonight),
    "knothole": robust.decision_function(tonight),
}
colours = ("#E69F00", "#D55E00", "#0072B2")
fig, axes = plt.subplots(3, 1, figsize=(8, 7), sharex=True, sharey=True, layout="constrained")
for ax, (name, score), colour in zip(axes, ways.items(), colours, strict=True):
    ax.plot(minutes, model.decision_function(truth), color="0.75", label="nothing lost")
    ax.plot(minutes, score, color=colour, label=name)
    ax.axhline(0, color="black", lw=0.8)
    ax.axvline(200, color="black", lw=0.8, ls=":")
    ax.axvline(400, color="black", lw=0.8, ls=":")
    ax.set(ylabel="decision function")
    ax.legend(loc="lower left")
axes[0].text(203, ax.get_ylim()[1], "sensors fail", va="top")
axes[0].text(403, ax.get_ylim()[1], "overheating", va="top")
axes[-1].set(xlabel="minute")

# %%
# The share of minutes with an alarm (below 0), by what happens. Nothing lost is what an alarm
# should be like: quiet during the outage, ringing when the machine overheats.

spans = {
    "before": slice(0, 200),
    "outage": slice(200, 400),
    "outage and overheating": slice(400, 500),
}
alarms = {"nothing lost": model.decision_function(truth), **ways}
pd.DataFrame(
    {
        name: {what: (score[span] < 0).mean() for what, span in spans.items()}
        for name, score in alarms.items()
    }
).round(3)

# %%
# Now the training table has dropouts of its own: 3 % of all readings, at random places. Where a
# split of the forest met some of them, NaN goes to a random side, which is often the one with few
# rows and shallow leaves: scikit-learn flags the outage. The table has the share of minutes with an
# alarm for five machines, each with training rows and a forest of its own.

flagged = []
for seed in range(5):
    rng = np.random.default_rng(seed)
    history = readings(rng.random(3000) < 0.7)
    history = history.mask(rng.random(history.shape) < 0.03)
    forest = IsolationForest(n_estimators=200, contamination=0.02, random_state=seed).fit(history)
    wrapped = kh.wrap(forest, history, density=kh.GaussianMixture(random_state=0))
    night = readings(np.zeros(300, dtype=bool))
    outage = night.assign(current=np.nan, flow=np.nan)
    flagged.append(
        {
            "nothing lost": (forest.predict(night) < 0).mean(),
            "outage, scikit-learn's own": (forest.predict(outage) < 0).mean(),
            "outage, knothole": (wrapped.predict(outage) < 0).mean(),
        }
    )
pd.DataFrame(flagged).rename_axis("machine").round(3)

# %%
# Scores of rows with missing values come with a standard error, where they are drawn.

score, error = robust.score_samples(tonight, return_error=True)
print(f"largest standard error of a score: {error.max():.4f}, scores {score.min():.2f} to "
      f"{score.max():.2f}")  # fmt: skip
