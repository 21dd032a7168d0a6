"""Ways to predict rows with holes, behind one interface."""
