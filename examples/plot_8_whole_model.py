"""
The whole model: importance, dependence, drift
==============================================

Three questions about a model rather than a row, answered by what answers single rows: how much
worse is the model without a column, how does its prediction depend on one, and are today's rows
still like those that it was trained on? Nothing is trained again.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.inspection import partial_dependence

import knothole as kh

rng = np.random.default_rng(0)
load = rng.normal(size=1500)
table = pd.DataFrame(
    {
        "temperature": 60 + 8 * load + 2 * rng.normal(size=1500),
        "vibration": 2 + 0.5 * load + 0.2 * rng.normal(size=1500),
        "pressure": 5 + rng.normal(size=1500),
    }
)
wear = 3 * load + 1.5 * table["pressure"] + 0.3 * rng.normal(size=1500)
train, test = table[:1000], table[1000:]
model = GradientBoostingRegressor(n_estimators=60, random_state=0).fit(train, wear[:1000])
robust = kh.wrap(model, train, density=kh.GaussianMixture(2, random_state=0))

# %%
# Importance: the error when a column is gone. Temperature and vibration tell of the same load, so
# that each can be done without; both together cannot.


def error(columns):
    rows = kh.missingness.outage(test, columns) if columns else test
    return float(np.sqrt(np.mean((robust.predict(rows) - wear[1000:]) ** 2)))


gone = [["temperature"], ["vibration"], ["pressure"], ["temperature", "vibration"]]
importance = pd.Series({" and ".join(names): error(names) - error([]) for names in gone})

# %%
# Dependence: E[f given x_j], where all other columns are missing, beside scikit-learn's partial
# dependence, which puts the value into rows that do not go with it.

grid = np.linspace(45, 75, 31)
alone = pd.DataFrame({"temperature": grid, "vibration": np.nan, "pressure": np.nan})
expected = robust.predict(alone)
partial = partial_dependence(
    model, train, ["temperature"], custom_values={"temperature": grid}, method="brute"
)

# %%
# Drift: log p of rows, here where the vibration's sensor has come loose. Each column still has the
# values that it had; they no longer go together.

loose = test.assign(vibration=rng.permutation(test["vibration"]))
before, after = (robust.density_.score_samples(rows) for rows in (test, loose))

fig, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
axes[0].barh(importance.index, importance, color="#0072B2")
axes[0].set(xlabel="added to the error when gone")
axes[0].invert_yaxis()
axes[1].plot(grid, expected, color="#0072B2", label="E[f given temperature]")
axes[1].plot(grid, partial["average"][0], color="#D55E00", label="partial dependence")
axes[1].set(xlabel="temperature", ylabel="wear")
axes[1].legend(loc="lower right")
bins = np.linspace(-25, 0, 40)
axes[2].hist(np.clip(before, -25, 0), bins, color="#0072B2", alpha=0.7, label="as in training")
axes[2].hist(np.clip(after, -25, 0), bins, color="#D55E00", alpha=0.7, label="sensor loose")
axes[2].set(xlabel="log p of a row")
axes[2].legend()
