"""The estimator interface of scikit-learn, without importing it: parameters, tags, HTML."""

from __future__ import annotations

import inspect
import reprlib
from copy import deepcopy
from typing import Any, Self

from knothole.errors import InvalidInput


class Estimator:
    """An estimator whose parameters are the arguments of ``__init__`` and attributes of that name.

    ``sklearn.base.clone``, searches, pipelines and their diagrams accept it like a
    ``BaseEstimator``. scikit-learn is imported only when one of them needs it.
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
        """Parameters by name; ``deep`` makes no difference, since none is an estimator."""
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters by name."""
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
        """The parameters that differ from their defaults, in the order of the signature."""
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
        """Which metadata a search or a pipeline passes to ``fit``."""
        from sklearn.utils.metadata_routing import MetadataRequest

        request = getattr(self, "_metadata_request", None)
        if request is None:
            request = MetadataRequest(owner=type(self).__name__)
            request.fit.add_request(param="sample_weight", alias=None)
        return deepcopy(request)

    def set_fit_request(self, *, sample_weight: bool | str | None) -> Self:
        """Whether a search or a pipeline passes ``sample_weight`` to ``fit``."""
        request = self.get_metadata_routing()
        request.fit.add_request(param="sample_weight", alias=sample_weight)
        self._metadata_request = request  # clone looks for it here
        return self
