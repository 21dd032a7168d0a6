"""Libraries of tree models, a module each.

Adding a library means adding a module here, and its classes to :mod:`knothole.trees.libraries`.
What a module has:

``read(model) -> ModelReading``
    Makes an ensemble of a live model.
``write(model, ensemble) -> model``
    A copy of a model whose leaves hold the values of an ensemble that was read from it. The
    user's object is never changed. ``NOTHING``, if there: values this close to zero become 0.

``name_levels(ensemble, table) -> Ensemble``, if there
    For a library that does not keep categories as tables have them.

Where the library saves files that need no unpickling, also

``SUFFIXES``, ``begins(head)``
    How the names of its files end, and whether a file that begins with these bytes may be one.
``read_file(path) -> Ensemble``
    Reads a file by our own parser, which refuses whatever is damaged. Where a format has none, the
    library itself converts the file, in a process of its own (:mod:`knothole.trees.quarantine`).
``load(path)``, ``save(model, path)``
    By the library itself.
"""
