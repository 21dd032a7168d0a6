"""
Quick start
===========

A model was trained on complete rows. Then rows come in which entries are missing. What would the
model say, on average over all that the missing entries may be? `knothole.wrap` learns a density
of the training table and answers exactly that, for a model that it did not train.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split

import knothole as kh

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=0)
model = HistGradientBoostingRegressor(max_iter=50, max_leaf_nodes=8, random_state=0)
model.fit(X_train, y_train)

# %%
# Wrap it, once, with the table that it was trained on. `density="auto"`, the default, tries several
# densities and keeps the one that does best on held-out rows.

robust = kh.wrap(model, X_train, y_train)
robust

# %%
# Rows with missing values can be predicted now, with the spread that the missing values cause. Rows
# without are not touched: they have the model's own prediction.

rows = X_test[:3].copy()
rows.iloc[0, [2, 8]] = np.nan  # neither the body mass index nor s5 was taken
rows.iloc[1] = np.nan  # nothing is known at all
prediction, std = robust.predict(rows, return_std=True)
prediction.to_frame("prediction").assign(std=std, model=model.predict(rows))

# %%
# Is it worth it? More and more entries of the test rows are made missing, at random. The
# model's own way with NaN, which it never met in training, is compared with filling in medians and
# with the expected prediction.

median = SimpleImputer(strategy="median").set_output(transform="pandas").fit(X_train)
ways = {
    "the model's own way": model.predict,
    "medians filled in": lambda incomplete: model.predict(median.transform(incomplete)),
    "knothole": robust.predict,
}
rates = np.linspace(0, 0.7, 8)
errors = {way: [] for way in ways}
for rate in rates:
    tables = [kh.missingness.mcar(X_test, rate, seed) for seed in range(5)]
    for way, predict in ways.items():
        squares = [np.mean((predict(incomplete) - y_test) ** 2) for incomplete in tables]
        errors[way].append(np.sqrt(np.mean(squares)))

fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for way, color in zip(ways, ("#D55E00", "#E69F00", "#0072B2"), strict=True):
    ax.plot(100 * rates, errors[way], marker="o", color=color, label=way)
ax.axhline(np.std(y_test), color="gray", linestyle=":", label="predicting the mean")
ax.set(xlabel="entries that are missing (%)", ylabel="RMSE on test rows")
ax.legend()

# %%
# A small table and a small model: the expected prediction, which averages, is not worse with half
# of the entries gone than the model with all of them. Tables on which it is *not* best are in
# :doc:`/suite`.
