"""Trees grown under the expected loss: the paper's right panel, and mechanisms that change."""
