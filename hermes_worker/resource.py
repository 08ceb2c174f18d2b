"""The base of the schemas of resources.

One model describes a resource for everybody: the API answers with it, the client returns it, a command prints columns
of it and dumps it for ``--json``. Such models stand in the ``schema`` module of their feature.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, BeforeValidator

__all__ = ["WHOLE", "Resource"]


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
"""Takes a whole number that is written with a fraction: in JSON, 1.0 is one."""


class Resource(BaseModel):
    """A resource of the HTTP API. Its fields are attributes.

    The client keeps fields that a later server adds (``model_extra``). ``resource["name"]`` works as well, because
    clients of 0.1 returned dictionaries.
    """

    def __getitem__(self, name: str) -> Any:
        """Return a field by its name. Raises ``KeyError``."""
        if name not in self:
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in type(self).model_fields or name in (self.model_extra or ())

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field by its name, and ``default`` for a field that is not there."""
        return getattr(self, name) if name in self else default

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # ``{**resource}`` makes a dictionary of all fields. No method, because some resources have a field "keys".
            if name == "keys":
                return dict.fromkeys([*type(self).model_fields, *(self.model_extra or ())]).keys
            return super().__getattr__(name)
