"""Leaf values from incomplete data, in closed form (Props. 2 to 4 of the paper)."""
