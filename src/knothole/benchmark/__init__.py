"""Datasets, peers, the runner that puts them side by side, and the paper's figure."""
