"""A wrapped model behind HTTP. A field of a row that is absent or null is missing."""

import os
from typing import Any

import pandas as pd
from fastapi import FastAPI, HTTPException

import knothole as kh
from knothole.errors import InvalidInput


def app() -> FastAPI:
    """The service, for ``uvicorn --factory serve:app``; ``MODEL`` is a file of ``robust.save``."""
    robust = kh.load(os.environ["MODEL"])
    names = list(robust.columns_.names)
    nothing = pd.DataFrame([dict.fromkeys(names)])
    robust.predict(nothing, return_std=True)  # kernels are there before the first request
    service = FastAPI()

    @service.post("/predict")
    def predict(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
        unknown = {name for row in rows for name in row} - set(names)
        if unknown:
            raise HTTPException(422, f"no columns of the model: {sorted(unknown)}")
        table = pd.DataFrame(rows, columns=names)
        try:
            prediction, std = robust.predict(table, return_std=True, handle_unknown="missing")
        except InvalidInput as error:
            raise HTTPException(422, str(error)) from error
        return {"prediction": prediction.tolist(), "std": std.tolist()}

    return service
