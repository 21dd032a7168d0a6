"""Bindings of Gaussian mixtures, normal scores and Sobol points refuse arrays that do not fit."""

from types import SimpleNamespace

import numpy as np
import pytest

from knothole._core import gaussian_draws, gaussian_em, normal_scores, sobol

ROWS, D, K, N = 5, 3, 2, 4


def floats(*shape):
    return np.full(shape, 0.5)


def packed():
    blocks = np.zeros((D, D, N))
    blocks[np.arange(D), np.arange(D)] = 1.0
    return SimpleNamespace(mean=floats(D, N), blocks=blocks, log_weight=np.log([0.5, 0.5]))


def maps():
    return SimpleNamespace(
        coarse=floats(D, 16), values=floats(D, 513), tail=floats(D, 2), limits=floats(D, 2),
        whole=np.zeros(D, dtype=bool), flat=floats(D, 513, 3), unit=floats(D),
    )  # fmt: skip


def tables():
    discrete = SimpleNamespace(
        variable=np.array([D]), flag=np.array([False]), first_code=np.array([0, 2]),
        probability=floats(2, K), first_word=np.array([0]),
    )  # fmt: skip
    return SimpleNamespace(
        packed=packed(),
        sharpness=floats(D, K),
        maps=maps(),
        numeric=np.arange(D),
        discrete=discrete,
    )


def of_rows():
    points = floats(ROWS, D + 1)
    points[:, 0], points[:, D] = np.nan, 1.0
    allowed = np.full((ROWS, 1), 3, dtype=np.uint64)
    return {"tables": tables(), "points": points, "allowed": allowed,
            "odds": floats(1, 1, D + 1), "chance": floats(1, 1)}  # fmt: skip


CALLS = {
    "fill_uniform": (sobol.fill_uniform, lambda: {
        "net": np.zeros((2, D, 8), dtype=np.uint32), "seed": 1,
        "keys": np.zeros(ROWS, dtype=np.uint64), "first_word": 0, "out": floats(ROWS, D, 128)}),
    "fill_keys": (sobol.fill_keys, lambda: {
        "words": np.zeros((ROWS, D), dtype=np.uint64), "out": np.zeros(ROWS, dtype=np.uint64)}),
    "encode": (normal_scores.encode, lambda: {
        "x": floats(ROWS, D), "maps": maps(), "z": floats(ROWS, D), "variance": floats(ROWS, D),
        "base": floats(ROWS, D)}),
    "positions": (normal_scores.positions, lambda: {
        "x": floats(ROWS), "maps": maps(), "column": 0, "z": floats(ROWS)}),
    "decode": (normal_scores.decode, lambda: {"z": floats(D, ROWS), "maps": maps()}),
    "invert": (gaussian_em.invert, lambda: {
        "covariance": np.tile(np.eye(D), (K, 1, 1)), "precision": floats(K, D, D),
        "log_det": floats(K)}),
    "log_joint": (gaussian_em.log_joint, lambda: {
        "z": floats(ROWS, D), "variance": floats(ROWS, D), "packed": packed(),
        "sharpness": floats(D, K), "out": floats(ROWS, K)}),
    "moments": (gaussian_em.moments, lambda: {
        "z": floats(ROWS, D), "packed": packed(), "mean": floats(ROWS, K, D),
        "covariance": floats(ROWS, K, D, D)}),
    "residuals": (gaussian_em.residuals, lambda: {
        "z": floats(ROWS, D), "mean": floats(K, D), "out": floats(ROWS, K, D)}),
    "expectations": (gaussian_em.expectations, lambda: {
        "z": floats(ROWS, D), "variance": floats(ROWS, D), "weight": floats(ROWS),
        "repeats": np.array([0]), "packed": packed(), "residual": floats(ROWS, K, D),
        "product": floats(ROWS, K, D), "joint": floats(ROWS, K), "log_density": floats(ROWS),
        "first": floats(K, D), "second": floats(D, D, N), "filled": np.zeros(K, dtype=np.int64)}),
    "fill": (gaussian_draws.fill, lambda: of_rows() | {
        "uniform": floats(1, D + 2, 64), "out": floats(ROWS, D + 1, 64)}),
    "describe": (gaussian_draws.describe, lambda: of_rows() | {
        "share": floats(ROWS, K), "mean": floats(ROWS, K), "deviation": floats(ROWS, K)}),
}  # fmt: skip
OUTPUTS = {"out", "z", "precision", "log_det", "mean", "covariance", "residual", "product", "joint",
           "log_density", "first", "second", "filled", "share", "deviation", "base"}  # fmt: skip
READ = {("residuals", "mean"), ("invert", "covariance"), ("log_joint", "z"), ("moments", "z"),
        ("residuals", "z"), ("expectations", "z")}  # fmt: skip
ARRAYS = [
    (name, argument)
    for name, (_, make) in CALLS.items()
    for argument, value in make().items()
    if isinstance(value, np.ndarray)
]


@pytest.mark.parametrize("name", CALLS)
def test_what_fits_is_taken(name):
    kernel, make = CALLS[name]
    kernel(**make())


@pytest.mark.parametrize(("name", "argument"), ARRAYS)
def test_what_does_not_fit_is_refused(name, argument):
    kernel, make = CALLS[name]
    array = make()[argument]
    wrong = [array.astype(np.float32), array[None], np.repeat(array, 2, axis=-1)[..., ::2]]
    if array.shape[-1] == 1:
        wrong.pop()  # one number is contiguous whatever its stride
    if argument in OUTPUTS and (name, argument) not in READ:
        read_only = array.copy()
        read_only.flags.writeable = False
        wrong.append(read_only)
    for each in wrong:
        with pytest.raises(TypeError, match=argument):
            kernel(**make() | {argument: each})
    if argument != "repeats":
        with pytest.raises(ValueError):
            kernel(**make() | {argument: np.concatenate([array] * 7)})


def changed(record, path, value):
    *names, last = path.split(".")
    for each in names:
        record = record[each] if isinstance(record, dict) else getattr(record, each)
    if isinstance(record, dict):
        record[last] = value
    else:
        setattr(record, last, value)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("fill", "tables.numeric", np.array([0, 1, 9])),
        ("fill", "tables.discrete.variable", np.array([-1])),
        ("fill", "tables.discrete.first_code", np.array([0, 3])),
        ("fill", "tables.discrete.first_word", np.array([1])),
        ("fill", "tables.packed.blocks", floats(D, D, N + 1)),
        ("fill", "uniform", floats(1, D + 1, 64)),
        ("describe", "tables.maps.values", floats(D, 512)),
        ("expectations", "repeats", np.array([D])),
        ("expectations", "variance", floats(ROWS, 0)),
        ("positions", "column", D),
    ],
)
def test_numbers_that_lie_outside_are_refused(name, path, value):
    kernel, make = CALLS[name]
    arguments = make()
    changed(arguments, path, value)
    with pytest.raises(ValueError):
        kernel(**arguments)
