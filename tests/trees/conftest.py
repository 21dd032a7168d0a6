"""What tests of model files share: one child process for a whole module of them."""

import pytest
from damage import KeptChild

from knothole.trees import quarantine


@pytest.fixture(scope="module")
def kept_child():
    """The library answers for all files of a module from one process."""
    kept = KeptChild()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quarantine, "ask", kept.ask)
        yield
    kept.close()


@pytest.fixture(scope="module")
def little_patience(kept_child):
    """That process is not waited for as long as usual."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quarantine, "TIMEOUT", 20.0)
        yield
