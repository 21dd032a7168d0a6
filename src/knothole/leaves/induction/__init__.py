"""Trees grown under the expected loss: weighted completions of incomplete rows, for any learner."""
