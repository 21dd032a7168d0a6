"""
Acquiring
=========

Something is missing, and finding it out costs something. Which missing value is worth it? The gain
of a missing value is what knowing it is expected to take off the variance of the prediction: no
more training, and for a model that is already deployed.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingRegressor

import knothole as kh

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
columns = ["age", "bmi", "bp", "s3", "s5"]
X = X[columns]
model = HistGradientBoostingRegressor(max_iter=40, max_leaf_nodes=8, random_state=0)
model.fit(X[:300], y[:300])
robust = kh.wrap(model, X[:300], density=kh.Mixture(6, random_state=0))

# %%
# Patients of whom only the age is known. The blood values cost more than a scale does.

rows = X[300:420].copy()
rows[["bmi", "bp", "s3", "s5"]] = np.nan
cost = {"bmi": 1.0, "bp": 2.0, "s3": 10.0, "s5": 10.0}
found = robust.acquire(rows[:3], cost=cost)
found.table()

# %%
# Does it pay? One missing value after the other is filled, the one of the greatest gain first, and
# the error against the model's answer for the complete row is compared with that of filling missing
# values at random.

complete, full = X[300:420], model.predict(X[300:420])
rng = np.random.default_rng(0)


def errors(choose):
    """RMSE against the answers for complete rows, after 0, 1, ... missing values were filled."""
    known = rows.copy()
    found = []
    for _ in range(4):
        found.append(np.sqrt(np.mean((robust.predict(known) - full) ** 2)))
        for row, name in zip(known.index, choose(known), strict=True):
            known.loc[row, name] = complete.loc[row, name]
    return [*found, np.sqrt(np.mean((robust.predict(known) - full) ** 2))]


def at_random(known):
    """One of each row's missing values."""
    return [rng.choice(known.columns[known.loc[row].isna()]) for row in known.index]


fig, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
ways = (
    ("greatest gain first", lambda known: robust.acquire(known).best, "#0072B2"),
    ("at random", at_random, "#E69F00"),
)
for name, choose, color in ways:
    ax.plot(range(5), errors(choose), marker="o", color=color, label=name)
ax.set(xlabel="missing values that were filled", ylabel="RMSE against the complete row's answer")
ax.set_xticks(range(5))
ax.legend()
