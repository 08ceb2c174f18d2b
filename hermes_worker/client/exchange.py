"""Decide what is sent, judge the answer, and decide whether to send again. Pure: ``conversation`` does what an
``Exchange`` yields and passes it the answers.

A request is sent again only when that can do no harm: where its method is idempotent, where it only reads, or where it
has an ``Idempotency-Key``, which every POST gets once and keeps over all attempts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from hermes_worker import __version__
from hermes_worker.client import operations
from hermes_worker.core.errors import HermesError, UnavailableError
from hermes_worker.operation import ApiAnswer, ApiRequest

if TYPE_CHECKING:
    from hermes_worker.schemas.runs import JoinedRuns

T = TypeVar("T")

ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""Longest answer that is read, in bytes."""
_PASSING = frozenset({429, 502, 503, 504})
"""Statuses of a server, or of a proxy before it, that may take the same request a little later."""
_AT_WORK = "idempotency_key_in_progress"
_NO_SUCH_PATH = "not_found"
_SAID_CHARS_MAX = 1_000


class RefusedError(HermesError):
    """The API refused a request; the message is its own."""

    def __init__(self, message: str, status: int, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        """The API's word for it, such as ``run_not_found``."""
        self.param = param
        """The field of the request that is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostAnswer:
    """No answer, or not all of it."""

    reason: str
    was_sent: bool = True
    """Whether the server may have got the request."""
    may_pass: bool = True
    """Whether the next attempt may succeed. Not so for a certificate that is not trusted."""


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
    """Wait for ``after_s`` seconds, send this request, and pass the exchange the answer."""

    request: ApiRequest[Any]
    after_s: float = 0.0


Exchange = Generator[SendStep, ApiAnswer | LostAnswer, T]
"""Yields what to send, is sent the answer, and returns the result."""


def run_exchange(request: ApiRequest[T], patience: Patience, clock: Callable[[], float], place: str) -> Exchange[T]:
    """Run one operation. ``clock`` gives seconds, ``place`` is the server's name in errors. Raises ``RefusedError``,
    ``UnavailableError``."""
    request = request.add_key()
    give_up_at, attempts, was_sent, wait_s = clock() + patience.for_s, 0, False, 0.0
    while True:
        heard = yield SendStep(request=request, after_s=wait_s)
        attempts += 1
        if isinstance(heard, ApiAnswer) and 200 <= heard.status < 300:
            return request.read(heard)
        wait_s = patience.compute_wait_s(attempts, asked_s=_retry_after_s(heard))
        if not _may_pass(request, heard) or clock() + wait_s >= give_up_at:
            break
        was_sent = was_sent or not isinstance(heard, LostAnswer) or heard.was_sent
    if isinstance(heard, LostAnswer):
        raise UnavailableError(f"{place} does not answer: {heard.reason}")
    if request.method == "DELETE" and was_sent and heard.status in (404, 410):
        # An earlier attempt did it, and its answer was lost.
        return request.read(replace(heard, status=200, body=b"{}"))
    error = build_refusal(heard)
    if error.status == 404 and error.code in (_NO_SUCH_PATH, None):
        raise (yield from _explain_unknown_operation(request, place))
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


def _explain_unknown_operation(request: ApiRequest[Any], place: str) -> Exchange[RefusedError]:
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


def run_join(
    run_ids: Sequence[str],
    mode: Literal["all", "any"],
    timeout_s: float | None,
    patience: Patience,
    clock: Callable[[], float],
    place: str,
) -> Exchange[JoinedRuns]:
    """Ask until the runs have ended or the time is over, in seconds; ``None`` waits for ever. Raises
    ``RefusedError``, ``UnavailableError``."""
    give_up_at = None if timeout_s is None else clock() + timeout_s
    while True:
        left_s = operations.WAIT_S if give_up_at is None else max(0.0, min(operations.WAIT_S, give_up_at - clock()))
        if len(run_ids) == 1:
            request = operations.build_wait(run_ids[0], timeout_s=left_s)
        else:
            request = operations.build_join(run_ids, mode=mode, timeout_s=left_s)
        found = yield from run_exchange(request, patience, clock, place)
        if found["done"] or (give_up_at is not None and clock() >= give_up_at):
            return found


def read_status(found: JoinedRuns) -> str | None:
    """Read how the single awaited run ended; ``None`` when it has not."""
    [end] = found["runs"]
    return end.get("status") if end["ended"] else None
