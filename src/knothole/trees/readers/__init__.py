"""One module per library of tree models: reader and writer side by side.

Adding a library means adding a module here, and its classes to :mod:`knothole.trees.libraries`.
A module has:

``read(model) -> ModelReading``
    Makes an ensemble of a live model.
``write(model, ensemble) -> model``
    A copy of a model whose leaves hold the values of an ensemble that was read from it. The
    user's object is never changed. Optional ``ROUNDED_TO_ZERO``: the library turns values this
    close to zero into 0.

``name_levels(ensemble, table) -> Ensemble``, optional
    For a library that does not store categories as tables have them.

Where the library saves files that need no unpickling, also

``SUFFIXES``, ``begins(head)``
    Suffixes of its files, and whether a file with these first bytes may be one.
``read_file(path) -> Ensemble``
    Reads a file with our own parser, which refuses damaged files. A format without a parser is
    first converted by the library, in a separate process (:mod:`knothole.trees.quarantine`).
``load(path)``, ``save(model, path)``
    By the library itself.
"""
