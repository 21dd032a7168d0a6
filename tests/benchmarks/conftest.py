"""Where the benchmark's data are, for the tests that read them."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data() -> Path:
    folder = os.environ.get("KNOTHOLE_DATA")
    if not folder:
        pytest.skip("KNOTHOLE_DATA is not set: the published files are not here to compare with")
    return Path(folder)
