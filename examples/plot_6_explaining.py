"""
Explaining
==========

Why is the answer what it is? `explain` gives Shapley values of the expected prediction: what
knowing a column adds to it, averaged over the orders in which columns can become known. They are
expectations under a joint density, so that a column counts for what it tells of others. Missing
values stay missing, and have the value 0.
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
# The values of a row add up to its prediction, less what is expected of a row of which nothing is
# known. They do so with a missing value in the row too.

rows = X[300:302].copy()
rows.iloc[1, 1] = np.nan  # no body mass index for the second patient
explanation = robust.explain(rows)
explanation.table()

# %%
nothing = np.full((1, len(columns)), np.nan)
fig, panels = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharex=True, sharey=True)
titles = ("everything is known", "the body mass index is missing")
for ax, values, errors, title in zip(
    panels, explanation.values, explanation.errors, titles, strict=True
):
    ax.barh(columns, values, xerr=errors, color=["#0072B2" if v > 0 else "#D55E00" for v in values])
    ax.axvline(0, color="black", lw=0.8)
    ax.set(xlabel="adds to the expected prediction")
    ax.set_title(title, loc="left", fontsize=10)
panels[0].invert_yaxis()

# %%
# The sums, and what they must be.

difference = robust.predict(rows) - robust.predict(nothing)[0]
print(explanation.values.sum(axis=1), difference.to_numpy())

# %%
# `explanation.to_shap()` is for shap's own plots.
