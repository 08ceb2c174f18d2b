"""The base of the schemas of resources.

One model describes a resource for everybody: the API answers with it, the client returns it, a command prints columns
of it and dumps it for ``--json``. Such models stand in the ``schema`` module of their feature.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError
from pydantic_core import SchemaValidator, core_schema

__all__ = ["WHOLE", "ListOf", "PageOf", "Resource", "build_answer_reader"]

Item = TypeVar("Item")


def _convert_whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_convert_whole)
"""Takes a whole number that is written with a fraction: in JSON, 1.0 is one."""


class Resource(BaseModel):
    """A resource of the HTTP API. Its fields are attributes.

    The client keeps fields that a later server adds (``model_extra``). ``resource["name"]`` works as well, because
    clients of 0.1 returned dictionaries.
    """

    @classmethod
    def from_record(cls, record: Any, **converted: Any) -> Self:
        """Build a resource from a record, which is a dataclass or a named tuple. Its fields have the values that the
        record has under the same names, but for ``converted``, which the record calls or writes otherwise."""
        names = [each.name for each in fields(record)] if is_dataclass(record) else record._fields
        named = {name: getattr(record, name) for name in names if name in cls.model_fields and name not in converted}
        return cls(**named, **converted)

    def __getitem__(self, name: str) -> Any:
        """Return a field by its name, or by its name in JSON where that is another one. Raises ``KeyError``."""
        attribute = self._find_attribute(name)
        if attribute is None:
            raise KeyError(name)
        return getattr(self, attribute)

    def __contains__(self, name: object) -> bool:
        return self._find_attribute(name) is not None

    def _find_attribute(self, name: object) -> str | None:
        """Return the attribute that holds a field, and None where there is no such field."""
        known = type(self).model_fields
        if name in known or name in (self.model_extra or ()):
            return str(name)
        return next((attribute for attribute, field in known.items() if field.serialization_alias == name), None)

    def model_dump(self, *, warnings: Any = False, **how: Any) -> dict[str, Any]:
        """Return the fields as a dictionary. There is no warning about a word that only a later server knows."""
        return super().model_dump(warnings=warnings, **how)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field by its name, and ``default`` for a field that is not there."""
        attribute = self._find_attribute(name)
        return default if attribute is None else getattr(self, attribute)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # ``{**resource}`` makes a dictionary of all fields. No method, because some resources have a field "keys".
            if name == "keys":
                return dict.fromkeys([*type(self).model_fields, *(self.model_extra or ())]).keys
            return super().__getattr__(name)


class ListOf(Resource, Generic[Item]):
    """All of what was asked for."""

    object: Literal["list"] = "list"
    data: list[Item]


class PageOf(ListOf[Item], Generic[Item]):
    """A part of what was asked for, and whether there is more."""

    has_more: bool


def build_answer_reader(kind: Any) -> SchemaValidator:
    """Build the validator of a server's answer. It takes what a later server added: fields, which models and
    dictionaries keep and dataclasses leave out, and words of closed lists. Such a word becomes a member of the expected
    enum without being listed there, so that it has a ``value`` and equals its text."""
    return SchemaValidator(_open_schema(TypeAdapter(kind).core_schema), _use_prebuilt=False)


def _open_schema(schema: Any) -> Any:
    """Copy a core schema, with each closed list of words and of fields opened."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_open_schema, schema))
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") in ("enum", "literal"):
        # The name by which other parts of the schema refer to the list belongs to what stands in its place.
        reads, known = partial(_read_word, schema.get("cls")), {**schema}
        return core_schema.no_info_wrap_validator_function(reads, known, ref=known.pop("ref", None))
    more = {"extra_behavior": "allow"} if schema.get("type") in ("model-fields", "typed-dict") else {}
    return {**{name: _open_schema(value) for name, value in schema.items()}, **more}


def _read_word(kind: type[Enum] | None, value: object, known: core_schema.ValidatorFunctionWrapHandler) -> object:
    try:
        return known(value)
    except ValidationError:
        if not isinstance(value, str) or (kind is not None and not issubclass(kind, str)):
            raise
    if kind is None:
        return value
    word = str.__new__(kind, value)
    word._name_, word._value_ = value, value
    return word
