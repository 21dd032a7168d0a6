"""The demo's case: a diagnosis from measurements, some of which are missing. Nothing to download.

The Wisconsin breast cancer table is inside scikit-learn: 569 tumours, 30 measurements of their
cells, benign or malignant. A model is trained on complete rows; then the laboratory loses some.
"""

from __future__ import annotations

from typing import Any

from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

TITLE = "A trained model loses half of its measurements. What does it say?"
LEAD = (
    "A classifier learned from complete rows of scikit-learn's breast cancer table (30 "
    "measurements of a tumour's cells, benign or malignant) and is then asked about tumours that "
    "it has not seen, with some of the measurements missing. Nobody retrains it."
)
SEED = 0


def diagnosis(seed: int = SEED) -> list[Any]:
    """The table of scikit-learn: three fifths to learn from, the rows held out, targets of both."""
    table, target = load_breast_cancer(return_X_y=True, as_frame=True)
    *rows, y, y_test = train_test_split(
        table, target.to_numpy(), test_size=0.4, random_state=seed, stratify=target
    )
    return [*(part.reset_index(drop=True) for part in rows), y, y_test]


def classifier(seed: int = SEED) -> Any:
    """An XGBoost model with ordinary settings; scikit-learn's own where it is not installed."""
    try:
        from xgboost import XGBClassifier
    except ImportError:
        from sklearn.ensemble import HistGradientBoostingClassifier

        return HistGradientBoostingClassifier(max_iter=100, max_depth=3, random_state=seed)
    return XGBClassifier(
        n_estimators=100, max_depth=3, learning_rate=0.1, n_jobs=1, random_state=seed
    )
