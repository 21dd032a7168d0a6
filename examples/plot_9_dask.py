"""
Dask
====

A table in parts, more of them than fit in memory, or on other machines: the same calls, and lazy
answers. Here each part is a week of a plant, whose pressure gauge fails more and more often.
"""

import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor

import knothole as kh

rng = np.random.default_rng(0)


def hours(n, failing=0.0):
    """Hours of a plant: pressure and flow go together, and the pressure gauge fails."""
    flow = rng.gamma(4.0, 1.0, n)
    pressure = 2.0 * flow + rng.normal(0.0, 1.0, n)
    table = pd.DataFrame({"flow": flow, "pressure": pressure, "valve": rng.integers(0, 4, n)})
    output = pressure + 0.5 * flow * table["valve"]
    table["pressure"] = table["pressure"].mask(rng.random(n) < failing)
    return table, output.rename("output")


X, y = hours(2_000)
model = HistGradientBoostingRegressor(max_iter=60, random_state=0).fit(X, y)

# %%
# The density is learned from all partitions of a collection: what is to be chosen is chosen on a
# sample, then each step of EM sums over partitions, wherever they are. (In earnest it is
# ``dd.read_parquet``, and a ``Client`` of ``distributed`` before it.)

train = dd.from_pandas(X, npartitions=4)
robust = kh.wrap(model, train, density=kh.GaussianMixture(2, random_state=0))

# %%
# Twelve weeks, one partition each. Answers are lazy: their index and type are known, and nothing is
# computed before it is asked for.

weeks = [hours(400, failing) for failing in np.linspace(0.0, 0.9, 12)]
table = pd.concat([X for X, _ in weeks], ignore_index=True)
truth = pd.concat([y for _, y in weeks], ignore_index=True)
parts = dd.from_pandas(table, npartitions=12)
lazy = robust.predict(parts)
lazy

# %%
# A row has the same answer, to the last bit, however the table is parted.

answers = lazy.compute()
assert (answers == robust.predict(table)).all()

week = np.repeat(np.arange(12), 400)
alone = pd.Series(model.predict(table), index=table.index)


def weekly(found):
    """RMSE of each week."""
    return np.sqrt(((found - truth) ** 2).groupby(week).mean())


fig, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
ax.plot(range(1, 13), weekly(answers), marker="o", color="#0072B2", label="knothole, lazily")
ax.plot(range(1, 13), weekly(alone), marker="o", color="#D55E00", label="the model alone")
ax.set(xlabel="week (partition)", ylabel="RMSE", ylim=(0, None))
ax.set_title("The gauge fails more often from week to week")
ax.legend()
