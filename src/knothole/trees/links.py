"""Links: from margins to predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from knothole.arrays import Floats
from knothole.cached import cached_property
from knothole.checks import check_choice, check_type, require
from knothole.errors import InvalidInput


def _softmax(margin: Floats) -> Floats:
    """Softmax over the last axis, one output at a time: the axis is short, the arrays are long."""
    by_output = np.ascontiguousarray(np.moveaxis(margin, -1, 0))
    by_output = np.exp(by_output - by_output.max(axis=0))
    total = by_output[0].copy()
    for output in by_output[1:]:  # one by one: numpy.sum adds in another order for a single row
        total += output
    by_output /= total
    return np.moveaxis(by_output, 0, -1)


def _sigmoid(margin: Floats) -> Floats:
    """:func:`scipy.special.expit` in a third of its time; overwrites ``margin``."""
    out = np.negative(margin, out=margin)
    with np.errstate(over="ignore"):
        np.exp(out, out=out)
    out += 1.0
    return np.reciprocal(out, out=out)


FUNCTIONS: dict[str, Callable[[Floats], Any]] = {
    "identity": np.asarray,
    "sigmoid": _sigmoid,
    "softmax": _softmax,
    "exp": np.exp,
    "isolation": lambda margin: -np.exp2(-margin),
}


@dataclass(frozen=True)
class Link:
    """A link by name, with the factor that some libraries multiply the margin by first.

    ``identity`` leaves margins as they are (regression, and averaged forests whose leaves are
    already probabilities); ``sigmoid`` works on each output alone (one output: the probability of
    the second class; several: one against the rest); ``softmax`` works over the outputs; ``exp`` is
    for Poisson, gamma and Tweedie; ``isolation`` turns an isolation forest's mean depths to scores.

    >>> Link("sigmoid")(np.array([[0.0]]))
    array([[0.5]])
    """

    name: str
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_choice("link", self.name, FUNCTIONS)

    @cached_property
    def linear(self) -> bool:
        """Whether E[link(margin)] = link(E[margin])."""
        return self.name == "identity"

    def responses(self, n_outputs: int) -> int:
        """Number of outputs of a prediction, given that of a margin."""
        return n_outputs

    def __call__(self, margin: Floats) -> Floats:
        """Predictions of margins, over the last axis."""
        return np.asarray(FUNCTIONS[self.name](np.asarray(margin * self.scale)))


IDENTITY = Link("identity")


def _interpolated(values: Floats, *numbers: Floats) -> Floats:
    """Piecewise linear interpolation, for each output between its own points (x, y)."""
    curves = zip(numbers[::2], numbers[1::2], strict=True)
    return np.stack([np.interp(values[..., i], *curve) for i, curve in enumerate(curves)], axis=-1)


def _shares(values: Floats) -> Floats:
    """Values divided by their sum; equal shares where the sum is 0."""
    total = values.sum(axis=-1, keepdims=True)
    alike = np.full_like(values, 1 / values.shape[-1])
    return np.asarray(np.divide(values, total, out=alike, where=total != 0))


#: Transformations of predictions over the last axis, with their numeric parameters.
STEPS: dict[str, Callable[..., Any]] = {
    "both classes": lambda p: np.concatenate([1 - p, p], axis=-1),
    "second class": lambda p: p[..., 1:],
    "sigmoid": lambda values, slope, shift: _sigmoid(-(slope * values + shift)),
    "interpolate": _interpolated,
    "shares": _shares,
    "exp": np.exp,
    "expm1": np.expm1,
    "exp2": np.exp2,
    "square": np.square,
    "sinh": np.sinh,
}


@dataclass(frozen=True)
class Step:
    """A transformation of predictions: by name, or a function of the user's."""

    name: str
    numbers: tuple[tuple[float, ...], ...] = ()
    function: Callable[[Floats], Floats] | None = None

    def __call__(self, values: Floats) -> Floats:
        """Transformed predictions, over the last axis."""
        if self.function is not None:
            return self.function(values)
        return np.asarray(STEPS[self.name](values, *map(np.array, self.numbers)))


@dataclass(frozen=True)
class Member:
    """One model of a blend: which margins belong to it, its link, and the steps after it."""

    start: int
    stop: int
    weight: float
    link: Link | Blend
    steps: tuple[Step, ...] = ()

    def __call__(self, margin: Floats) -> Floats:
        """The member's predictions, without its weight."""
        values = self.link(margin[..., self.start : self.stop])
        for step in self.steps:
            values = step(values)
        return values


@dataclass(frozen=True)
class Blend:
    """The link of a model made of models: a weighted sum of their predictions.

    Examples
    --------
    >>> half = Member(0, 1, 0.5, Link("sigmoid")), Member(1, 2, 0.5, IDENTITY)
    >>> Blend(half, 1)(np.array([[0.0, 1.0]]))
    array([[0.75]])
    """

    members: tuple[Member, ...]
    width: int  # outputs of a prediction

    name = "blend"
    scale = 1.0
    linear = False

    def responses(self, n_outputs: int) -> int:
        """Number of outputs of a prediction."""
        return self.width

    def __call__(self, margin: Floats) -> Floats:
        """Predictions of margins, over the last axis."""
        return np.asarray(sum(member.weight * member(margin) for member in self.members))


# ---- files -------------------------------------------------------------------------------------


def describe_link(link: Link | Blend) -> Any:
    """A description for JSON; the inverse of :func:`link_from`.

    Examples
    --------
    >>> link = Blend((Member(0, 1, 1.0, IDENTITY, (Step("expm1"),)),), 1)
    >>> link_from(describe_link(link), 1) == link
    True
    """
    if isinstance(link, Link):
        return [link.name, link.scale]
    members = [
        {
            "margins": [member.start, member.stop],
            "weight": member.weight,
            "link": describe_link(member.link),
            "steps": [_describe_step(step) for step in member.steps],
        }
        for member in link.members
    ]
    return {"members": members, "width": link.width}


def _describe_step(step: Step) -> list[Any]:
    if step.function is not None:
        raise InvalidInput(
            "a TransformedTargetRegressor whose inverse is a function of your own cannot be saved; "
            "use one of numpy's (inverse_func=np.expm1), or keep the model and wrap it again."
        )
    return [step.name, [list(numbers) for numbers in step.numbers]]


def link_from(description: Any, n_outputs: int) -> Link | Blend:
    """From JSON, given the number of margins."""
    if isinstance(description, list):
        name, scale = description
        check_type("link", name, str)
        check_type("link", scale, float, int)
        require(np.isfinite(scale), "the link's scale must be finite")
        return Link(name, scale)
    check_type("link", description, dict)
    width = description["width"]
    check_type("width", width, int)
    members = tuple(_member_from(each, n_outputs) for each in description["members"])
    require(members, "a blend must have members")
    for member in members:
        fits = member(np.zeros((1, n_outputs))).shape == (1, width)
        require(fits, f"a member of a blend must predict {width} numbers")
    return Blend(members, width)


def _member_from(description: dict[str, Any], n_outputs: int) -> Member:
    start, stop = description["margins"]
    check_type("margins", start, int)
    check_type("margins", stop, int)
    require(0 <= start < stop <= n_outputs, "a member's margins must be those of the trees")
    weight = description["weight"]
    check_type("weight", weight, float, int)
    require(np.isfinite(weight), "a member's weight must be finite")
    steps = []
    for name, numbers in description["steps"]:
        require(name in STEPS, f"step {name!r}")
        rows = tuple(tuple(map(float, row)) for row in numbers)
        require(all(np.isfinite(row).all() for row in rows), f"numbers of {name!r} must be finite")
        steps.append(Step(name, rows))
    return Member(start, stop, weight, link_from(description["link"], stop - start), tuple(steps))
