"""
Pipelines
=========

Most models are deployed as pipelines: columns are scaled and encoded before the trees see them.
What a step makes of a missing value hides it: an imputer writes a number, an encoder a row of
zeros. So the whole pipeline is wrapped, with the raw table, and missing values are those of the raw
columns.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import knothole as kh

rng = np.random.default_rng(0)
n = 1500
place = rng.integers(3, size=n)
size = 60 + 30 * place + 15 * rng.normal(size=n)
table = pd.DataFrame(
    {
        "place": np.array(["village", "town", "city"])[place],
        "size": size,
        "rooms": np.round(size / 30 + rng.normal(size=n) / 2),
    }
)
rent = 5 * size + 300 * place + 50 * rng.normal(size=n)

# %%
# A usual pipeline. Its imputer and its encoder take any missing value without a word.

steps = make_column_transformer(
    (make_pipeline(SimpleImputer(), StandardScaler()), ["size", "rooms"]),
    (OneHotEncoder(handle_unknown="ignore"), ["place"]),
)
model = make_pipeline(steps, RandomForestRegressor(30, max_depth=7, random_state=0))
model.fit(table[:1000], rent[:1000])
robust = kh.wrap(model, table[:1000], density=kh.Mixture(12, random_state=0))

# %%
# Each raw column is lost in turn, in rows that the pipeline was not trained on.

test, truth = table[1000:], rent[1000:]
errors = {}
for lost in (None, *table.columns):
    incomplete = test if lost is None else kh.missingness.outage(test, [lost])
    errors["nothing" if lost is None else lost] = {
        "the pipeline": np.sqrt(np.mean((model.predict(incomplete) - truth) ** 2)),
        "knothole": np.sqrt(np.mean((robust.predict(incomplete) - truth) ** 2)),
    }
errors = pd.DataFrame(errors).T
fig, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
errors.plot.bar(ax=ax, rot=0, color=["#D55E00", "#0072B2"])
ax.set(xlabel="what is lost", ylabel="RMSE on test rows")
errors.round(1)

# %%
# Complete rows have the pipeline's own prediction. A step that mixes columns, such as PCA, has no
# raw column for a value to be missing from, and is refused by its name. Which steps can be read is
# in :doc:`/libraries`.

print(np.abs(robust.predict(test) - model.predict(test)).max())
