"""Where a correction is added: on predictions themselves, or their logarithms or logits.

Least squares and cross entropy have the same minimum, E[f given x_o], each the loss that suits its
kind of prediction. A correction z is found by Newton's steps on it: the next trees fit
``residual`` in least squares with ``weight``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit, softmax, xlogy

from knothole.arrays import Floats
from knothole.trees.ensemble import Ensemble

# No probability is closer to 0 or 1. Of counts and other positive numbers any may be.
LEAST = 1e-6
LEAST_POSITIVE = float(np.finfo(np.float64).tiny)
# The longest step of Newton: where a probability is nearly sure, its curvature says little.
LONGEST = 4.0


@dataclass(frozen=True)
class Space:
    """The space of a model's predictions.

    Attributes
    ----------
    name : {"plain", "log", "logit", "softmax"}
    sizes : tuple of int
        Of a softmax: numbers of classes, target by target.

    Examples
    --------
    >>> space = Space("logit")
    >>> bool(np.isclose(space.means(space.base(np.array([[0.2]])) + 1.0)[0, 0], 0.4046, atol=1e-4))
    True
    """

    name: str
    sizes: tuple[int, ...] = ()

    @classmethod
    def of(cls, ensemble: Ensemble) -> Space:
        """The one that suits a model."""
        link, classes = ensemble.link.name, ensemble.classes
        if classes is not None and link != "sigmoid" and ensemble.n_responses > 1:
            targets = classes if isinstance(classes[0], tuple) else (classes,)
            return cls("softmax", tuple(len(one) for one in targets if isinstance(one, tuple)))
        if classes is not None:
            return cls("logit")
        names = {"exp": "log", "sigmoid": "logit", "softmax": "softmax"}
        return cls(names.get(link, "plain"), (ensemble.n_outputs,) if link == "softmax" else ())

    @property
    def least(self) -> float:
        """The least prediction that counts."""
        return LEAST_POSITIVE if self.name == "log" else LEAST

    def base(self, mean: Floats) -> Floats:
        """Predictions (rows, outputs) in this space."""
        if self.name == "plain":
            return mean
        if self.name == "logit":
            return np.asarray(logit(np.clip(mean, LEAST, 1 - LEAST)))
        return np.log(np.maximum(mean, self.least))

    def means(self, z: Floats) -> Floats:
        """The way back."""
        if self.name == "plain":
            return z
        if self.name == "logit":
            return np.asarray(expit(z))
        if self.name == "log":
            return np.exp(z)
        parts = np.split(z, np.cumsum(self.sizes)[:-1], axis=1)
        return np.hstack([softmax(part, axis=1) for part in parts])

    def newton(self, mean: Floats, truth: Floats) -> tuple[Floats, Floats]:
        """What the next trees are to fit, and how much each entry weighs, (rows, outputs) each."""
        if self.name == "plain":
            return truth - mean, np.ones_like(mean)
        weight = np.maximum(mean if self.name == "log" else mean * (1 - mean), self.least)
        return np.clip((truth - mean) / weight, -LONGEST, LONGEST), weight

    def losses(self, mean: Floats, truth: Floats) -> Floats:
        """Losses (rows,): squared errors, or how far the truth's entropy is exceeded."""
        if self.name == "plain":
            return np.asarray(((truth - mean) ** 2).sum(axis=1))
        q = np.maximum(mean, self.least)
        loss = xlogy(truth, np.maximum(truth, self.least) / q)
        if self.name == "log":
            loss += q - truth
        if self.name == "logit":
            rest = np.maximum(1 - mean, LEAST)
            loss += xlogy(1 - truth, np.maximum(1 - truth, LEAST) / rest)
        return np.asarray(loss.sum(axis=1))

    def slope(self, before: Floats, after: Floats) -> Floats:
        """How much a small change of the expectation changes the corrected one."""
        if self.name == "plain":
            return np.ones_like(before)
        if self.name == "log":
            return after / np.maximum(before, self.least)
        return np.asarray(after * (1 - after) / np.maximum(before * (1 - before), LEAST))
