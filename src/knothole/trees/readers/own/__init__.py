"""Trees of one's own: hand-made, or of a library that is not read, as a dictionary or as JSON."""
