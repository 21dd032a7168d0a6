"""The code of the pages on serving, logging and Spark runs, where their packages are installed."""

import importlib.util
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestRegressor

import knothole as kh

FOLDER = Path(__file__).parent.parent / "docs" / "howto"
NAMES = ["temperature", "vibration", "pressure"]


def needed(package, why):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed here: {why}")


@pytest.fixture(scope="module")
def robust():
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 3)), columns=NAMES)
    X["vibration"] += X["temperature"]
    model = RandomForestRegressor(5, max_depth=4, random_state=0).fit(X, X.sum(axis=1))
    return kh.wrap(model, X, density=kh.Mixture(2, random_state=0))


@pytest.fixture
def saved(robust, tmp_path):
    robust.save(tmp_path / "wear.knothole")
    return tmp_path / "wear.knothole"


@pytest.fixture
def rows():
    return pd.DataFrame(
        [[0.5, np.nan, 1.0], [np.nan, np.nan, np.nan], [0.1, 0.2, 0.3]], columns=NAMES
    )


@pytest.fixture
def beside(monkeypatch):
    """Files of the pages can be imported, and are forgotten afterwards."""
    monkeypatch.syspath_prepend(FOLDER)
    yield
    for path in FOLDER.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_every_file_is_on_a_page():
    pages = "".join(page.read_text() for page in FOLDER.glob("*.md"))
    for path in FOLDER.glob("*.py"):
        assert f"{{literalinclude}} {path.name}\n" in pages


@pytest.mark.filterwarnings("ignore")  # of what others wrote
def test_serving(robust, saved, rows, beside, monkeypatch):
    needed("fastapi", "pip install fastapi httpx")
    needed("httpx", "pip install fastapi httpx")
    from fastapi.testclient import TestClient

    import serve

    monkeypatch.setenv("MODEL", str(saved))
    with TestClient(serve.app()) as client:
        sent = [row.dropna().to_dict() for _, row in rows.iterrows()]
        sent[0]["vibration"] = None
        answer = client.post("/predict", json=sent)
        assert answer.status_code == 200, answer.text
        prediction, std = robust.predict(rows, return_std=True)
        np.testing.assert_array_equal(answer.json()["prediction"], prediction)
        np.testing.assert_array_equal(answer.json()["std"], std)
        refused = client.post("/predict", json=[{"colour": 1.0}])
        assert refused.status_code == 422 and "colour" in refused.text
        refused = client.post("/predict", json=[{"pressure": "high"}])
        assert refused.status_code == 422 and "pressure" in refused.text


@pytest.mark.filterwarnings("ignore")
def test_logging(robust, rows, beside, tmp_path, monkeypatch):
    needed("mlflow", "it is large; pip install mlflow-skinny is enough")
    import mlflow
    from mlflow_log import as_logged, log

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run():
        uri = log(robust, "wear", rows)
    assert mlflow.models.get_model_info(uri).signature is not None
    loaded = mlflow.pyfunc.load_model(uri)
    found = loaded.predict(rows)
    prediction, std = robust.predict(rows, return_std=True)
    np.testing.assert_array_equal(found["prediction"], prediction)
    np.testing.assert_array_equal(found["std"], std)
    # A column that is not sent is missing in every row.
    found = loaded.predict(rows[["temperature", "pressure"]])
    prediction = robust.predict(rows.assign(vibration=np.nan))
    np.testing.assert_array_equal(found["prediction"], prediction)
    # Whole numbers, nullable or not, are sent as floats; as they are, MLflow refuses them.
    whole = rows.assign(temperature=pd.array([1, None, 3], dtype="Int64"))
    with pytest.raises(mlflow.exceptions.MlflowException, match="Can not safely convert Int64"):
        loaded.predict(whole)
    found = loaded.predict(as_logged(whole))
    prediction = robust.predict(rows.assign(temperature=[1.0, np.nan, 3.0]))
    np.testing.assert_array_equal(found["prediction"], prediction)


@pytest.mark.filterwarnings("ignore")
def test_nullable_integers_cost_the_signature(robust, rows, beside):
    """What the page warns of: MLflow refuses the table that a signature was inferred from."""
    needed("mlflow", "it is large; pip install mlflow-skinny is enough")
    import mlflow
    from mlflow.models.utils import _enforce_schema

    table = pd.DataFrame({"age": pd.array([3, None], dtype="Int64")})
    inferred = mlflow.models.infer_signature(table)
    with pytest.raises(ValueError, match="cannot convert NA to integer"):
        _enforce_schema(table, inferred.inputs)
    from mlflow_log import as_logged, signature

    sent = _enforce_schema(as_logged(table), signature(table).inputs)
    assert sent["age"].tolist()[0] == 3.0 and np.isnan(sent["age"].tolist()[1])


@pytest.mark.filterwarnings("ignore")
def test_spark(robust, saved, rows, beside, monkeypatch):
    needed("pyspark", "it is large, and needs Java")
    if shutil.which("java") is None:
        pytest.skip("no java here, which Spark needs")
    from pyspark.sql import SparkSession
    from spark_predict import with_prediction

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    local = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = local.getOrCreate()
    try:
        given = spark.createDataFrame(rows.assign(number=range(3))).repartition(2)
        found = with_prediction(given, str(saved)).toPandas().sort_values("number")
    finally:
        spark.stop()
    prediction, std = robust.predict(rows, return_std=True)
    np.testing.assert_array_equal(found["prediction"], prediction)
    np.testing.assert_array_equal(found["std"], std)
