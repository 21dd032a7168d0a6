"""Ways to predict rows with missing values, behind one interface."""
