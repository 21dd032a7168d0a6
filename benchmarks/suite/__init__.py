"""Knothole and what users would pick instead, side by side on tables with missing values."""
