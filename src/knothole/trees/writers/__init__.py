"""Writers: new leaf values into a copy of the user's model.

One module per library, found as readers are (:data:`knothole.trees.readers.BY_CLASS`), with

``write(model, value) -> model``
    a copy of ``model`` whose leaves hold ``value`` (leaves, width), numbered as in the ensemble
    that the reader makes of ``model``. The user's object is never changed.

``NOTHING``
    where the library keeps values this close to zero as 0 (optional).
"""
