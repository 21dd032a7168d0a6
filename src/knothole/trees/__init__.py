"""What a tree model is once read: ensemble, regions, readers and writers."""
