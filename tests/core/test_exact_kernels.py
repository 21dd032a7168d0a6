"""The bindings of exact expectations refuse arrays that do not fit, and name what is wrong."""

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor
from tests.core import calls as recording

from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Mixture
from knothole.expectation.expectation import Expectation
from knothole.trees.read import read

PARTS = (
    "leaf_sets", "mixture_walk", "mixture_regions", "single_missing", "latent_walk",
    "latent_regions",
)  # fmt: skip
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)) + RNG.normal(size=(60, 1))
MODEL = RandomForestRegressor(3, max_depth=3, random_state=0).fit(X, X.sum(axis=1))


@pytest.fixture(scope="module")
def calls():
    """The first call of each kernel."""
    found = {}
    with recording.recorded(found):
        for density in (
            Mixture(2, random_state=0),
            LatentTree(2, random_state=0),
            GaussianMixture(2, random_state=0),
        ):
            expectation = Expectation.of(read(MODEL), density.fit(X))
            evidence = expectation.evidence(np.where(np.eye(3, dtype=bool), np.nan, 0.1))
            if isinstance(density, GaussianMixture):
                engine = next(iter(expectation.engine.exactly.values()))
                expectation.margin(expectation.evidence(np.full((2, 3), np.nan)))
            else:
                engine = expectation.engine
            for regions in (False, True):
                given = engine._given
                engine._given = lambda evidence, _, given=given, regions=regions: given(
                    evidence, regions
                )
                engine.margin(evidence)
                list(engine.entries(evidence))
                arguments = engine._arguments(evidence)
                arguments[-1].kernels.add_margin(*arguments, np.zeros((3, 1)))
                engine._given = given
            if not isinstance(density, GaussianMixture):  # those sum over single leaves only
                engine.squares(evidence)
                engine.add_pairs(evidence, np.ones(3), np.zeros((engine.ensemble.n_leaves,) * 2))
    return {name: call for name, call in found.items() if name.split(".")[0] in PARTS}


def test_all_are_called(calls):
    names = {name for name in recording.kernel_names() if name.split(".")[0] in PARTS}
    assert names - set(calls) == set()


def changed(value, change):
    """The arguments with the last array, which is written, changed."""
    if isinstance(value, np.ndarray):
        return change(value)
    parts = list(value)
    at = max(i for i, each in enumerate(parts) if isinstance(each, np.ndarray | tuple))
    parts[at] = changed(parts[at], change)
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def readonly(array):
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "change",
    [
        lambda array: np.zeros(array.shape, np.float32),
        lambda array: array[None],
        lambda array: np.concatenate([array, array]),
        lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
        readonly,
    ],
    ids=["dtype", "axes", "shape", "layout", "read-only"],
)
def test_outputs_that_do_not_fit_are_refused(calls, change):
    for _, kernel, args in calls.values():
        with pytest.raises((TypeError, ValueError), match=r"must|out does not"):
            kernel(*changed(recording.copied(args), change))


def test_words_of_other_trees_are_refused(calls):
    _, kernel, args = calls["mixture_walk.emit"]
    given = args[4]
    words = given.words._replace(
        word=given.words.word[:, :2].copy(),
        parting=given.words.parting[:2],
        right=given.words.right[:2],
        leaf=given.words.leaf[:2],
    )
    with pytest.raises(ValueError, match="words must be of all trees"):
        kernel(*args[:4], given._replace(words=words), *args[5:])


def test_a_depth_that_is_too_small_is_noticed(calls):
    _, kernel, args = calls["mixture_regions.add_margin"]
    spoilt = (*args[:3], args[3]._replace(depth=1), *args[4:])
    with pytest.raises(ValueError, match="deeper"):
        kernel(*spoilt)
