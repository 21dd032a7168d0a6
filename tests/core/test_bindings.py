"""Arrays that do not fit are refused by the bindings; nothing crashes.

``python -m tests.core.test_bindings N`` tries N of them.
"""

import sys

import numpy as np
import pytest
from tests.core import calls as recording


@pytest.fixture(scope="module")
def calls():
    found = {}
    with recording.recorded(found):
        recording.use_everything()
    return found


def test_every_kernel_is_called(calls):
    assert recording.kernel_names() - set(calls) == set()


def test_arrays_that_do_not_fit_raise(calls):
    refused, total = attack(calls, 4000, seed=0)
    # Some replacements do fit: a list of one axis more that has one entry, or the same type.
    assert refused > 0.6 * total


def attack(calls, n, seed):
    """Call kernels with a spoilt array each; how many were refused, of how many."""
    rng = np.random.default_rng(seed)
    names, refused = sorted(calls), 0
    for _ in range(n):
        _, kernel, args = calls[names[rng.integers(len(names))]]
        spoilt = recording.spoilt(recording.copied(args), rng)
        try:
            kernel(*spoilt)
        except (TypeError, ValueError):
            refused += 1
    return refused, n


if __name__ == "__main__":
    found = {}
    with recording.recorded(found):
        recording.use_everything()
    print(attack(found, int(sys.argv[1]), seed=int(sys.argv[2]) if sys.argv[2:] else 0))
