"""Intervals for y: how often they cover, pattern by pattern, and how wide they are."""
