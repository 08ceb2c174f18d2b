"""What the operations of the API are made of. An operation is a function that builds a request as a value, with the
function that reads its answer. Pure; the clients have a method of the same name for each, which sends the request and
returns what the answer says.

The operations of the kernel stand in ``client.operations``, those of a feature in its ``operations``, beside its
``schema``; ``client.methods`` composes them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

from hermes_worker.core.errors import ConfigurationError, UnavailableError

T = TypeVar("T")

KEY_HEADER = "Idempotency-Key"
PAGE = 100
"""Entries of one page of a list, where nobody asks for another number."""
_IDEMPOTENT = frozenset({"GET", "PUT", "DELETE"})


class InvalidId(ConfigurationError, ValueError):
    """A text that is passed as an id cannot be one."""


class AnswerMismatch(UnavailableError):
    """An answer of the server has another form than this version knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAnswer:
    """A whole answer of the server."""

    status: int
    headers: Mapping[str, str]
    """With names in small letters."""
    body: bytes

    def parse_document(self) -> Any:
        """Parse the body. Raises ``UnavailableError`` when it is no JSON: then it is not our server that answered."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise UnavailableError(
                f"something answered with HTTP {self.status} and no JSON: is this the address of a Hermes worker API?"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest(Generic[T]):
    """One request of an operation, with the function that reads its answer."""

    method: str
    template: str
    """The path as the API's document has it: ``/v1/runs/{run_id}``."""
    read: Callable[[ApiAnswer], T]
    """Reads the answer. May raise ``UnavailableError``."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The values for the names in the path."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the query; lists are repeated and ``None`` is left out."""
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    only_reads: bool = False
    """Whether it is a POST that changes nothing."""
    is_sent_once: bool = False
    """Whether it is a POST whose answer is kept nowhere, so that no idempotency key would bring it again."""

    @property
    def path(self) -> str:
        path = self.template
        for name, value in self.names.items():
            path = path.replace(f"{{{name}}}", _encode_segment(value))
        return path

    @property
    def query(self) -> list[tuple[str, str]]:
        pairs: list[tuple[str, str]] = []
        for name, value in self.params.items():
            for each in value if isinstance(value, list | tuple | set | frozenset) else [value]:
                if each is not None:
                    pairs.append((name, str(each).lower() if isinstance(each, bool) else str(each)))
        return pairs

    @property
    def is_repeatable(self) -> bool:
        """Whether sending it twice does what sending it once does."""
        return self.method in _IDEMPOTENT or self.only_reads or KEY_HEADER in self.headers

    def add_key(self) -> ApiRequest[T]:
        """Add an idempotency key, where the request needs one."""
        if self.method != "POST" or self.only_reads or self.is_sent_once or KEY_HEADER in self.headers:
            return self
        return replace(self, headers={**self.headers, KEY_HEADER: f"client-{uuid.uuid4().hex}"})


def _encode_segment(value: str) -> str:
    """Encode a value as a part of a path. ``.`` and ``..`` would lead elsewhere, and an empty one to the list. Raises
    ``InvalidId``."""
    if not value or value in (".", ".."):
        raise InvalidId(f"{value[:80]!r} is no id")
    return quote(value, safe="")


@cache
def _load_reader(kind: Any) -> Any:
    from hermes_worker.resource import build_answer_reader  # not for those who only import the client

    return build_answer_reader(kind)


def require_document(kind: type[T], document: Any) -> T:
    """Return ``document`` as a ``kind``. Raises ``AnswerMismatch`` when it has not the fields of one."""
    from pydantic import ValidationError

    try:
        found: T = _load_reader(cast("Any", kind)).validate_python(document)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the answer"
        raise AnswerMismatch(
            f"the server's answer cannot be read ({where[:80]}: {first['msg']}): use the same version on both sides"
        ) from None
    return found


def make_reader(kind: type[T], *path: str) -> Callable[[ApiAnswer], T]:
    """Make a reader of the value at ``path`` of the answer."""

    def read(answer: ApiAnswer) -> T:
        document = answer.parse_document()
        for name in path:
            document = document.get(name) if isinstance(document, dict) else None
        return require_document(kind, document)

    return read


def read_nothing(_answer: ApiAnswer) -> None:
    """Read an answer that says nothing but that it was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion(Generic[T]):
    """One page of a list, and the request for the next."""

    items: Sequence[T]
    following: ApiRequest[Portion[T]] | None


def build_list_request(
    request: ApiRequest[Any], kind: type[T], name: str, after: Callable[[dict[str, Any]], Mapping[str, Any] | None]
) -> ApiRequest[Portion[T]]:
    """Make the request for a list, page after page. ``name`` is the field of the list; ``after`` gives the parameters
    of the page behind one, ``None`` behind the last."""

    def read(answer: ApiAnswer) -> Portion[T]:
        document = answer.parse_document()
        items = require_document(list[kind], document.get(name) if isinstance(document, dict) else None)  # type: ignore[valid-type]
        more = after(document)
        next_request = None if more is None else replace(request, params={**request.params, **more})
        return Portion(
            items=items,
            following=None if next_request is None else build_list_request(next_request, kind, name, after),
        )

    return replace(request, read=read)


def find_cursor(document: dict[str, Any]) -> Mapping[str, Any] | None:
    """Return the parameters of the page behind one that names its ``next_cursor``; ``None`` behind the last."""
    return {"cursor": document["next_cursor"]} if document.get("has_more") and document.get("next_cursor") else None


def make_pager(parameter: str, field: str) -> Callable[[dict[str, Any]], Mapping[str, Any] | None]:
    """Make the function that returns the query of the next page, ``parameter`` with the last entry's ``field``, for the
    document of a page; ``None`` for the last page."""

    def find_next_page(document: dict[str, Any]) -> Mapping[str, Any] | None:
        return {parameter: document["data"][-1][field]} if document.get("has_more") and document["data"] else None

    return find_next_page


def build_get(
    template: str, read: Callable[[ApiAnswer], T], names: Mapping[str, str] | None = None, **params: Any
) -> ApiRequest[T]:
    """Build a GET request; ``params`` are the parameters of its query."""
    return ApiRequest(method="GET", template=template, read=read, names=names or {}, params=params)


def build_post(
    template: str,
    read: Callable[[ApiAnswer], T],
    names: Mapping[str, str] | None = None,
    *,
    body: Any = None,
    key: str | None = None,
    **params: Any,
) -> ApiRequest[T]:
    """Build a POST request; ``key`` is its idempotency key, of which the client makes one where it is ``None``."""
    headers = {KEY_HEADER: key} if key else {}
    return ApiRequest(
        method="POST", template=template, read=read, names=names or {}, params=params, body=body, headers=headers
    )


def build_put(
    template: str, read: Callable[[ApiAnswer], T], names: Mapping[str, str] | None = None, **body: Any
) -> ApiRequest[T]:
    """Build a PUT request; ``body`` are the fields of its body."""
    return ApiRequest(method="PUT", template=template, read=read, names=names or {}, body=body)
