"""Log a wrapped model, so that ``mlflow.pyfunc.load_model`` brings it back."""

import tempfile
from pathlib import Path

import mlflow
import pandas as pd

import knothole as kh


def log(robust: kh.Robust, name: str, example: pd.DataFrame) -> str:
    """Log it in the active run; the address of what was logged."""
    signature = mlflow.models.infer_signature(
        # Any number may be missing: as integers they could not be.
        example.astype(dict.fromkeys(example.select_dtypes("number"), float)),
        pd.DataFrame({"prediction": [0.0], "std": [0.0]}),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.knothole"
        robust.save(path)
        logged = mlflow.pyfunc.log_model(
            name=name,
            python_model=str(Path(__file__).with_name("mlflow_model.py")),
            artifacts={"model": str(path)},
            signature=signature,
            pip_requirements=[f"knothole=={kh.__version__}"],
        )
    return str(logged.model_uri)
