"""Leaf families: distributions of one variable, for every state of a latent at once.

A family is one file here with one class, a subclass of :class:`~.base.Leaf`, listed in
``FAMILIES``; the contract tests in ``tests/densities/test_leaves.py`` pick it up from there.
"""
