"""The operations of the API about the keys that encrypt texts."""

from __future__ import annotations

from hermes_worker.features.encryption.schema import TextKeyObject
from hermes_worker.operation import ApiRequest, build_get, make_reader


def text_keys() -> ApiRequest[list[TextKeyObject]]:
    """The keys that encrypt texts in the database, by their ids; for operators."""
    return build_get("/v1/encryption/keys", make_reader(list[TextKeyObject], "data"))
