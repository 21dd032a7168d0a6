"""Predictions for a Spark DataFrame, with nulls as missing."""

from collections.abc import Callable, Iterable, Iterator

import pandas as pd
from pyspark import SparkFiles
from pyspark.sql import DataFrame
from pyspark.sql.types import DoubleType, StructField, StructType

import knothole as kh


def with_prediction(frame: DataFrame, path: str) -> DataFrame:
    """The frame with the columns ``prediction`` and ``std``; ``path`` is a ``.knothole`` file."""
    frame.sparkSession.sparkContext.addFile(path)  # every executor has it then
    added = [StructField(name, DoubleType()) for name in ("prediction", "std")]
    schema = StructType([*frame.schema.fields, *added])
    return frame.mapInPandas(predicting(path.rpartition("/")[2]), schema)


def predicting(name: str) -> Callable[[Iterable[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """What an executor does with the batches of a partition."""

    def predict(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        robust = kh.load(SparkFiles.get(name))
        for batch in batches:
            rows = batch[list(robust.columns_.names)]
            prediction, std = robust.predict(rows, return_std=True, n_jobs=1)
            yield batch.assign(prediction=prediction, std=std)

    return predict
