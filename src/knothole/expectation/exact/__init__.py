"""Exact expectations: walks through the trees that branch at missing values."""
