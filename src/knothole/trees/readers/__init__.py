"""Libraries of tree models, a folder each: all there is to know about one is in its folder.

Adding a library means adding a folder, and its classes to :mod:`.registry`. Modules of a folder:

``read``
    ``read(model) -> Reading`` makes an ensemble of a live model.
``write``
    ``write(model, ensemble) -> model`` makes a copy of a model whose leaves hold the values of an
    ensemble that was read from it. The user's object is never changed. ``NOTHING``, if there: the
    library keeps values this close to zero as 0.
``files``
    Where the library saves files that need no unpickling: ``SUFFIXES`` of their names;
    ``begins(head)``, whether a file that begins with these bytes may be one; ``read(path) ->
    Ensemble`` by our own parser, which refuses whatever is damaged; ``load(path)`` and
    ``save(model, path)`` by the library itself.
"""
