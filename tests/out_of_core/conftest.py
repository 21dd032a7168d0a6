"""A real cluster of two processes, for all tests of tables in parts."""

import pytest


@pytest.fixture(scope="session")
def cluster():
    """A client of two worker processes with a thread each."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as local,
        Client(local) as client,
    ):
        yield client
