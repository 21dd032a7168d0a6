"""
The outage
==========

A model watches a machine through its sensors. In the middle of a shift one of them fails, and its
column arrives empty. The model goes on answering, with a side of every split that it never had a
reason to choose. What the other sensors say still tells much of what the lost one would have read.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor

import knothole as kh

rng = np.random.default_rng(0)


def shift(load):
    """Readings of three sensors, and the wear that follows from the load."""
    n = len(load)
    readings = pd.DataFrame(
        {
            "temperature": 60 + 8 * load + rng.normal(size=n),
            "vibration": 2 + 0.5 * load + 0.2 * rng.normal(size=n),
            "pressure": 5 + rng.normal(size=n),
        }
    )
    return readings, 3 * load + readings["pressure"] + 0.3 * rng.normal(size=n)


train, wear = shift(rng.normal(size=1500))
model = HistGradientBoostingRegressor(max_iter=60, random_state=0).fit(train, wear)
robust = kh.wrap(model, train, density=kh.GaussianMixture(random_state=0))

# %%
# A day, in which the temperature is lost after two hundred minutes.

minutes = np.arange(400)
today, truth = shift(1.5 * np.sin(minutes / 40))
today.loc[200:, "temperature"] = np.nan
native = model.predict(today)
prediction, std = robust.predict(today, return_std=True)

fig, ax = plt.subplots(figsize=(8, 4), layout="constrained")
ax.plot(minutes, truth, color="0.75", label="the wear that was found later")
ax.plot(minutes, native, color="#D55E00", lw=1, label="the model's own answer")
ax.plot(minutes, prediction, color="#0072B2", label="knothole")
ax.fill_between(minutes, prediction - std, prediction + std, color="#0072B2", alpha=0.2, lw=0)
ax.axvline(200, color="black", lw=0.8)
ax.text(203, ax.get_ylim()[1], "the thermometer fails", va="top")
ax.set(xlabel="minute", ylabel="wear")
ax.legend(loc="lower left")


def rmse(answer):
    """Root mean squared error after the outage."""
    return float(np.sqrt(np.mean((answer - truth)[200:] ** 2)))


print(f"RMSE after the outage: {rmse(native):.2f} of the model, {rmse(prediction):.2f} of knothole")

# %%
# Before the outage both answers are the same. After it the band is the spread that the missing
# value causes: where the model's answer would be, were the temperature known. It is zero for
# complete rows, and not an interval for the wear itself (see :doc:`plot_4_intervals`).
#
# Which sensor would hurt most? Each column is lost in turn, for the first two hundred minutes.

before, then = today[:200], truth[:200]
lost = {}
for name in train.columns:
    incomplete = kh.missingness.outage(before, [name])
    lost[name] = {
        way: np.sqrt(np.mean((answers(incomplete) - then) ** 2))
        for way, answers in (("own", model.predict), ("knothole", robust.predict))
    }
pd.DataFrame(lost).T.round(2)
