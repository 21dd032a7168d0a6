"""Tables in parts, none of which need be in memory with another: Dask collections and files."""
