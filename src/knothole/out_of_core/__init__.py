"""Tables that do not fit in memory: files read in chunks, and Dask collections."""
