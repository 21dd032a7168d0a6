"""Questions beyond the prediction: how far y may be from it."""
