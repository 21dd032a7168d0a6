"""Tables that need not fit in memory: files in chunks, and Dask collections."""
