"""A few hundred files changed at random; ``make fuzz`` has any number."""

import pytest
from tests.fuzz.__main__ import FORMATS, OWN, fuzz


@pytest.mark.parametrize("kind", FORMATS)
def test_files_changed_at_random_are_refused_or_answered(kind):
    assert fuzz(kind, 0, 100 if kind in OWN else 60) == []
