"""Models that were trained on a cluster are read as they are."""

import dask.dataframe as dd
import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost.dask

import knothole as kh

MODELS = {
    "xgboost": lambda: xgboost.dask.DaskXGBRegressor(n_estimators=5, max_depth=3),
    "lightgbm": lambda: lightgbm.DaskLGBMRegressor(n_estimators=5, verbose=-1),
}


@pytest.mark.filterwarnings("ignore")  # of the libraries' own clusters
@pytest.mark.parametrize("library", MODELS)
def test_models_of_a_cluster_are_wrapped_with_its_table(cluster, library):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(400, 3)), columns=list("abc"))
    lazy = dd.from_pandas(X.assign(y=X["a"] + X["b"] ** 2), npartitions=2)
    model = MODELS[library]().fit(lazy[list("abc")], lazy["y"])
    robust = kh.wrap(model, lazy[list("abc")], lazy["y"], kh.Mixture(2, random_state=0))
    own = np.asarray(model.predict(lazy[list("abc")]).compute())
    found = robust.predict(lazy[list("abc")]).compute()
    np.testing.assert_allclose(found, own, atol=1e-5)
    alone = kh.wrap(model, X, lazy["y"].compute(), kh.Mixture(2, random_state=0))
    rows = X.mask(rng.random(X.shape) < 0.3)
    np.testing.assert_array_equal(robust.predict(rows), alone.predict(rows))
