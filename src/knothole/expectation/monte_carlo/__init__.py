"""Reach by completions: 64 draws of a row's holes as the bits of a word."""
