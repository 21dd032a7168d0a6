"""Choose the prior of losses by predictions of held-out rows with some values hidden.

The scenarios are those that a correction is learned on: nothing hidden, scattered values, single
columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from knothole.arrays import Floats, Mask
from knothole.densities.held_out import TOO_FEW_TO_HOLD_OUT
from knothole.inspection.correction import HeldOutPredictions, masks
from knothole.missingness.inference import INFER, PRIORS, Reading
from knothole.scoring import PredictionLoss

if TYPE_CHECKING:
    import pandas as pd

# The most held-out rows that are predicted, complete and with each kind of pattern.
ROWS = 150
# Weight of rows with hidden values, relative to rows as they are.
WEIGHT = 2.0
# How much worse than the model itself a prior may predict rows with missing values of their own, as
# a fraction of the loss. A prior that is worse by more, beyond a standard error, is not chosen.
HARM = 0.02
DEFAULT = next(iter(PRIORS))


def choose_prior(
    loss: PredictionLoss, held_out: Sequence[HeldOutPredictions], seed: int
) -> tuple[Reading, pd.DataFrame | None]:
    """The prior with the best predictions of held-out rows, and a table of how all priors did.

    The default prior if y is unknown for all held-out rows.
    """
    import pandas as pd

    if not loss.of_y or not held_out or any(np.isnan(one.y).any() for one in held_out):
        return INFER, None
    rng = np.random.default_rng(seed)
    losses: dict[str, list[Floats]] = {name: [] for name in PRIORS}
    kinds: list[Mask] = []
    harms: dict[str, list[Floats]] = {name: [] for name in PRIORS}
    own: list[Floats] = []
    for one in held_out:
        rows = rng.permutation(one.usable)[: ROWS // len(held_out)]
        matrix, columns = one.matrix[rows], one.expectation.columns
        hidden = masks(columns, one.matrix, 2 * len(rows), rng)
        hidden = np.concatenate([np.zeros_like(hidden[: len(rows)]), hidden])
        asked = np.where(hidden, np.nan, np.tile(matrix, (3, 1)))
        truth = np.tile(one.y[rows], (3, 1))
        hides = np.asarray(hidden.any(axis=1))
        # The prior makes no difference for other rows.
        telling = (np.isnan(asked) & columns.nullable).any(axis=1)
        natural = telling & ~hides
        of_model = loss.measure(one.output[rows][natural[: len(rows)]], truth[natural])
        kinds.append(hides)
        own.append(of_model)
        found = np.empty(len(asked))
        for name, prior in PRIORS.items():
            expectation = one.read_as(Reading("infer", prior)).expectation.rough
            which = np.ones_like(telling) if name == DEFAULT else telling
            response = expectation.predict(expectation.evidence_of(asked[which]))[0]
            found = found.copy()
            found[which] = loss.measure(response, truth[which])
            losses[name].append(found)
            harms[name].append(found[natural] - of_model)
    hides = np.concatenate(kinds)
    every = {name: np.concatenate(parts) for name, parts in losses.items()}
    if all((each == every[DEFAULT]).all() for each in every.values()):
        return INFER, None
    # Losses relative to the default's: otherwise rows with nothing hidden would hardly count.
    unit = np.where(hides, every[DEFAULT][hides].mean() / WEIGHT, every[DEFAULT][~hides].mean())
    unit = np.maximum(unit, np.finfo(np.float64).tiny)
    relative = {name: each / unit for name, each in every.items()}
    means = {name: each[hides].mean() + each[~hides].mean() for name, each in relative.items()}
    harm = {name: _harm(np.concatenate(harms[name]), np.concatenate(own)) for name in PRIORS}
    harmless = [name for name in PRIORS if harm[name] <= max(HARM, min(harm.values()))]
    best = min(harmless, key=means.__getitem__)
    apart = {name: each - relative[best] for name, each in relative.items()}
    numbers = [(each[~hides], each[hides]) for each in apart.values()]
    table = pd.DataFrame(
        {
            "prior": list(PRIORS),
            "nothing_hidden": [each[~hides].mean() for each in every.values()],
            "some_hidden": [each[hides].mean() for each in every.values()],
            "harm": list(harm.values()),
            "behind": [sum(part.mean() for part in parts) for parts in numbers],
            "error": [np.sqrt(sum(part.var() / len(part) for part in parts)) for parts in numbers],
            "chosen": [name == best for name in PRIORS],
        }
    )
    return Reading("infer", PRIORS[best]), table


def _harm(worse: Floats, own: Floats) -> float:
    """What a prior costs rows with missing values of their own, as a fraction of the model's loss.

    0 if the difference is within a standard error, or if there are too few such rows.
    """
    if len(worse) < TOO_FEW_TO_HOLD_OUT or worse.mean() <= worse.std() / np.sqrt(len(worse)):
        return 0.0
    return float(worse.mean() / max(own.mean(), np.finfo(np.float64).tiny))
