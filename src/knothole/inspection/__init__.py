"""Beyond the prediction: corrections, intervals, Shapley values, which value to acquire next."""
