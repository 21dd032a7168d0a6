"""What a tree model is once read: ensemble, regions, and the libraries it comes from."""
