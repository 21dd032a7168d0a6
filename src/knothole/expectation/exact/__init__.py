"""Exact expectations: walks through the trees that divide where a value is missing."""
