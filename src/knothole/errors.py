"""The exceptions that a user can catch, one for each kind of problem.

Every message names the parameter or column, the rule that it broke, what was received, and a way
out. All errors derive from :class:`KnotholeError`.
"""


class KnotholeError(Exception):
    """Base class of all errors that knothole raises on purpose."""


class InvalidInput(KnotholeError, ValueError):
    """An argument has a value that the function cannot use."""


class ColumnMismatch(InvalidInput):
    """A table's columns differ from those that the model or density was fitted on."""


class UnseenCategory(InvalidInput):
    """A categorical column holds a level that was not there in training."""


class UnsupportedModel(KnotholeError, TypeError):
    """A model is of a kind that cannot be read exactly."""


class NotFitted(InvalidInput, AttributeError):
    """A model or density was used before it was fitted."""


class ReaderMismatch(KnotholeError):
    """What was read does not reproduce the model's own predictions; nothing is returned."""


class DamagedFile(KnotholeError, ValueError):
    """A file is truncated, corrupt, of another format, or from a newer version."""


class MissingExtra(KnotholeError, ImportError):
    """An optional library is needed and not installed."""


class NotAMean(UserWarning):
    """A model of quantiles was wrapped: its expectation over missing values is no quantile of y."""


class FewRows(UserWarning):
    """A density was learned from so few rows that it can hardly know anything."""


class ToleranceMissed(UserWarning):
    """Some answers have a larger standard error than the tolerance allows."""


class ImpossibleRow(UserWarning):
    """A row's observed values have no probability under the density; a fallback answered."""


class SuspectColumn(UserWarning):
    """An auxiliary column looks like the target, like a copy of it, or like an identifier."""


class UnknownRate(UserWarning):
    """Rows do not tell how often some columns are lost."""


class FewCalibrationRows(UserWarning):
    """Intervals rest on so few calibration rows that their coverage may be well off."""
