"""What columns that the model never saw are worth when its features are lost."""
