"""Refitting leaf values on incomplete data (Props. 2 to 4 of the paper)."""
