"""Log a wrapped model, so that ``mlflow.pyfunc.load_model`` brings it back."""

import tempfile
from pathlib import Path

import mlflow
import pandas as pd
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, Schema
from pandas.api.types import is_bool_dtype, is_numeric_dtype

import knothole as kh


def log(robust: kh.Robust, name: str, example: pd.DataFrame) -> str:
    """Log it in the active run; the address of what was logged."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.knothole"
        robust.save(path)
        logged = mlflow.pyfunc.log_model(
            name=name,
            python_model=str(Path(__file__).with_name("mlflow_model.py")),
            artifacts={"model": str(path)},
            signature=signature(example),
            pip_requirements=[f"knothole=={kh.__version__}"],
        )
    return str(logged.model_uri)


def signature(example: pd.DataFrame) -> ModelSignature:
    """Every column is optional, and every number a double: integers have no NaN in MLflow."""
    inputs = [
        ColSpec("double" if is_number(column) else "string", name, required=False)
        for name, column in example.items()
    ]
    outputs = [ColSpec("double", "prediction"), ColSpec("double", "std")]
    return ModelSignature(Schema(inputs), Schema(outputs))


def as_logged(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the types that the signature asks for: numbers as float64, the rest as text."""
    return pd.DataFrame(
        {
            name: column.astype("float64" if is_number(column) else "string")
            for name, column in rows.items()
        }
    )


def is_number(column: "pd.Series[object]") -> bool:
    """Whether a column is of numbers, pandas' nullable ones included."""
    return is_numeric_dtype(column) and not is_bool_dtype(column)
