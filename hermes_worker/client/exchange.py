"""Decide what is sent, judge the answer, and decide whether to send again. Pure: ``conversation`` does what an
``Exchange`` yields and passes it the answers.

A request is sent again only when that can do no harm: where its method is idempotent, where it only reads, or where it
has an ``Idempotency-Key``, which every POST gets once and keeps over all attempts.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from hermes_worker import __version__
from hermes_worker.core.errors import ConfigurationError, HermesError, UnavailableError

T = TypeVar("T")

KEY_HEADER = "Idempotency-Key"
ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""Longest answer that is read, in bytes."""
_IDEMPOTENT = frozenset({"GET", "PUT", "DELETE"})
_PASSING = frozenset({429, 502, 503, 504})
"""Statuses of a server, or of a proxy before it, that may take the same request a little later."""
_AT_WORK = "idempotency_key_in_progress"
_NO_SUCH_PATH = "not_found"
_SAID_CHARS_MAX = 1_000


class InvalidId(ConfigurationError, ValueError):
    """A text that is passed as an id cannot be one."""


class RefusedError(HermesError):
    """The API refused a request; the message is its own."""

    def __init__(self, message: str, status: int, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        """The API's word for it, such as ``run_not_found``."""
        self.param = param
        """The field of the request that is wrong."""


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
class LostAnswer:
    """No answer, or not all of it."""

    reason: str
    was_sent: bool = True
    """Whether the server may have got the request."""
    may_pass: bool = True
    """Whether the next attempt may succeed. Not so for a certificate that is not trusted."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """For how long and how often a request is sent again."""

    for_s: float = 60.0
    """Seconds from the first attempt to the last. 0: one attempt only."""
    first_wait_s: float = 0.25
    wait_s_max: float = 8.0

    def compute_wait_s(self, attempts: int, *, asked_s: float | None) -> float:
        """Compute the seconds before the next attempt; ``asked_s`` is the wait that the server asked for."""
        own = min(self.wait_s_max, self.first_wait_s * 2.0 ** min(attempts - 1, 16))
        return own if asked_s is None else max(own, asked_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendStep:
    """Send this request, and pass the exchange the answer."""

    request: ApiRequest[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseStep:
    """Wait for so many seconds."""

    seconds: float


Heard = ApiAnswer | LostAnswer | None
Exchange = Generator[SendStep | PauseStep, Heard, T]
"""Yields what to do, is sent the answer (``None`` after a pause), and returns the result."""


def run_exchange(request: ApiRequest[T], patience: Patience, clock: Callable[[], float], place: str) -> Exchange[T]:
    """Run one operation. ``clock`` gives seconds, ``place`` is the server's name in errors. Raises ``RefusedError``,
    ``UnavailableError``."""
    request = request.add_key()
    give_up_at, attempts, was_sent = clock() + patience.for_s, 0, False
    while True:
        heard = yield SendStep(request=request)
        assert heard is not None
        attempts += 1
        if isinstance(heard, ApiAnswer) and 200 <= heard.status < 300:
            return request.read(heard)
        wait_s = patience.compute_wait_s(attempts, asked_s=_retry_after_s(heard))
        if not _may_pass(request, heard) or clock() + wait_s >= give_up_at:
            break
        was_sent = was_sent or not isinstance(heard, LostAnswer) or heard.was_sent
        yield PauseStep(seconds=wait_s)
    if isinstance(heard, LostAnswer):
        raise UnavailableError(f"{place} does not answer: {heard.reason}")
    if request.method == "DELETE" and was_sent and heard.status in (404, 410):
        # An earlier attempt did it, and its answer was lost.
        return request.read(replace(heard, status=200, body=b"{}"))
    error = build_refusal(heard)
    if error.status == 404 and error.code in (_NO_SUCH_PATH, None):
        raise (yield from _unknown_operation(request, place))
    raise error


def _may_pass(request: ApiRequest[Any], heard: ApiAnswer | LostAnswer) -> bool:
    """Whether sending the same request again is safe and may succeed."""
    if isinstance(heard, LostAnswer):
        return heard.may_pass and (request.is_repeatable or not heard.was_sent)
    if heard.status == 409:
        return build_refusal(heard).code == _AT_WORK
    return request.is_repeatable and heard.status in _PASSING


def _retry_after_s(heard: ApiAnswer | LostAnswer) -> float | None:
    """Read the wait in seconds. A date, which HTTP allows as well, is ignored in favour of our own wait."""
    text = heard.headers.get("retry-after", "") if isinstance(heard, ApiAnswer) else ""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _unknown_operation(request: ApiRequest[Any], place: str) -> Exchange[RefusedError]:
    """Explain a path that the server does not have by the version that the server reports."""
    heard = yield SendStep(request=ApiRequest(method="GET", template="/health", read=lambda answer: answer))
    version = None
    if isinstance(heard, ApiAnswer) and heard.status == 200:
        document = heard.parse_document()
        version = str(document.get("version"))[:80] if isinstance(document, dict) else None
    what = f"{request.method} {request.template}"
    if version is None:
        return RefusedError(f"{place} is no Hermes worker API: it has no {what}", 404, code=_NO_SUCH_PATH)
    return RefusedError(
        f"{place} has version {version} and no {what}; this is version {__version__}: use the same on both sides",
        404,
        code=_NO_SUCH_PATH,
    )


def build_refusal(answer: ApiAnswer) -> RefusedError:
    """Build the error from the API's message, in either of its shapes. Of a proxy's answer only the status is used."""
    try:
        said = json.loads(answer.body)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        said = None
    if isinstance(said, str):
        return RefusedError(said[:_SAID_CHARS_MAX], answer.status, code="")
    if not isinstance(said, dict) or not isinstance(said.get("message"), str):
        where = " and leads elsewhere" if 300 <= answer.status < 400 else ""
        return RefusedError(f"HTTP {answer.status}{where}", answer.status)
    code, param = said.get("code"), said.get("param")
    return RefusedError(
        said["message"][:_SAID_CHARS_MAX],
        answer.status,
        code=code if isinstance(code, str) else "",
        param=param if isinstance(param, str) else None,
    )
