"""Files that commands read and write: models, tables of any size, and whose columns they have."""
