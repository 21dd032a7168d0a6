"""A wrapped model as MLflow's pyfunc: this file is logged with it, and nothing is pickled."""

from typing import Any

import mlflow
import pandas as pd

import knothole as kh


class Wrapped(mlflow.pyfunc.PythonModel):
    """Loads the ``.knothole`` file that was logged as the artifact ``model``."""

    def load_context(self, context: Any) -> None:
        self.robust = kh.load(context.artifacts["model"])

    def predict(
        self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        prediction, std = self.robust.predict(model_input, return_std=True, absent="missing")
        return pd.DataFrame({"prediction": prediction, "std": std}, index=model_input.index)


mlflow.models.set_model(Wrapped())
