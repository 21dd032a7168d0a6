"""Explanations and acquisitions against what others have published."""
