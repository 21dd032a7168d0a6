"""Exact reach: walks through the trees that divide where a row has a hole."""
