"""What a learned model adds to E_p[f given x_o], because p is not the truth."""
