"""What scikit-learn asks of an estimator, without importing it: parameters, tags, a picture."""

from __future__ import annotations

import inspect
import reprlib
from copy import deepcopy
from typing import Any, Self

from knothole.errors import InvalidInput


class Estimator:
    """Parameters are the arguments of ``__init__``, and attributes of the same names.

    ``sklearn.base.clone``, searches, pipelines and their diagrams take it as they take a
    ``BaseEstimator``. scikit-learn is imported when one of them asks.
    """

    @classmethod
    def _parameter_defaults(cls) -> dict[str, Any]:
        """Parameters and their defaults."""
        arguments = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return {argument.name: argument.default for argument in arguments}

    @classmethod
    def _parameter_names(cls) -> list[str]:
        return sorted(cls._parameter_defaults())

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; none of them is an estimator, so that ``deep`` changes nothing."""
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self, **parameters: Any) -> Self:
        """Change parameters by name."""
        names = self._parameter_names()
        unknown = [name for name in parameters if name not in names]
        if unknown:
            raise InvalidInput(
                f"{type(self).__name__} has no parameter {unknown[0]!r}; it has {names}."
            )
        for name, value in parameters.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """The parameters that are not the defaults, in the order of the signature."""
        defaults = self._parameter_defaults()
        changed = [
            f"{name}={reprlib.repr(getattr(self, name))}"
            for name, default in defaults.items()
            if repr(getattr(self, name)) != repr(default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def _repr_html_(self) -> str:
        from sklearn.utils import estimator_html_repr

        return str(estimator_html_repr(self))

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type="density_estimator",
            target_tags=TargetTags(required=False),
            transformer_tags=None,
            classifier_tags=None,
            regressor_tags=None,
            input_tags=InputTags(allow_nan=True),
        )

    # ---- metadata routing: fit takes weights -----------------------------------------------------

    def get_metadata_routing(self) -> Any:
        """Which of what is handed to a search or a pipeline is for ``fit``."""
        from sklearn.utils.metadata_routing import MetadataRequest

        request = getattr(self, "_metadata_request", None)
        if request is None:
            request = MetadataRequest(owner=type(self).__name__)
            request.fit.add_request(param="sample_weight", alias=None)
        return deepcopy(request)

    def set_fit_request(self, *, sample_weight: bool | str | None) -> Self:
        """Whether ``fit`` is to be given ``sample_weight`` by a search or a pipeline."""
        request = self.get_metadata_routing()
        request.fit.add_request(param="sample_weight", alias=sample_weight)
        self._metadata_request = request  # where clone looks for it
        return self
