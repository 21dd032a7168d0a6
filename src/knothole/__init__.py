"""knothole: exact predictions from trained tree models when features are missing."""

__version__ = "0.1.0"
