"""A real cluster of two processes, for all tests of tables in parts."""

import pytest


@pytest.fixture(scope="session")
def cluster():
    """A client of two worker processes with a thread each.

    A worker that is killed has a successor of the same name. Distributed looks for it some seconds
    later, and would remove the name if the successor, too, had just been killed.
    """
    import dask
    from distributed import Client, LocalCluster

    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as local,
        Client(local) as client,
    ):
        yield client
