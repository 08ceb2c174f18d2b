"""``apprise:<url>``: all services that the library apprise sends to over HTTP and we do not
(github.com/caronc/apprise).

Apprise says whether a service took a message, but why not only in its log. So a failure is read from the log: a status
means what it always means, and a connection that was made and failed may have delivered.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING

from hermes_worker.channels.catalog import APPRISE, TextLimit, find_text_limit
from hermes_worker.channels.errors import DeliveryError, SendErrorKind, classify_status, classify_text
from hermes_worker.channels.exchange import Outcome, Part, Receipt, Unsendable
from hermes_worker.channels.markup import PLAIN, render_markup
from hermes_worker.channels.splitting import SIZE_MIN
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.net.library_guard import ConnectionWatch, watch_thread
from hermes_worker.net.urls import UrlPolicy

if TYPE_CHECKING:
    from apprise import NotifyBase

TOTAL_S = 60.0
"""Seconds for one message. What is not known by then may have been delivered."""

_STATUS = re.compile(r"error=(?P<status>[1-5][0-9]{2})\b")


def send(part: Part, url: str, policy: UrlPolicy, *, total_s: float = TOTAL_S) -> Outcome:
    """Send a part once. Raises ``Unsendable``, and ``ConfigurationError`` when the library is not installed."""
    if part.attachment is not None:
        raise Unsendable("files cannot be sent to 'apprise:' targets")
    attempt = _Attempt(_load_service(url, policy), part, policy)
    attempt.start()
    attempt.join(total_s)
    return attempt.outcome


def find_limit(url: str) -> TextLimit:
    """Find the longest text of the service; the general limit when it cannot be found out."""
    try:
        size_max = int(_load_service(url, UrlPolicy()).body_maxlen)
    except (ConfigurationError, Unsendable):
        return find_text_limit(APPRISE)
    return TextLimit(size_max=max(size_max, SIZE_MIN * 2))


class _Attempt(threading.Thread):
    """One attempt, in a thread of its own, so that a server that answers a byte a second does not hold the worker."""

    def __init__(self, service: NotifyBase, part: Part, policy: UrlPolicy) -> None:
        super().__init__(name="apprise", daemon=True)
        self._service = service
        self._part = part
        self._policy = policy
        self.outcome: Outcome = _build_delivery_error(SendErrorKind.AMBIGUOUS, "the service did not answer in time")

    def run(self) -> None:
        said = _WarningCollector()
        logger = logging.getLogger("apprise")
        logger.addHandler(said)
        watch = ConnectionWatch(self._policy)
        try:
            with watch_thread(watch):
                was_taken = self._service.notify(body=self._render_body(), title=self._part.title)
        except Exception as error:  # what a plug-in of the library raises is not ours to know
            if watch.refusal is not None:
                self.outcome = _build_delivery_error(SendErrorKind.REFUSED, f"It is refused: {watch.refusal}.")
                return
            self.outcome = _build_delivery_error(SendErrorKind.AMBIGUOUS, f"the library failed: {type(error).__name__}")
            return
        finally:
            logger.removeHandler(said)
        if was_taken:
            self.outcome = Receipt()
        elif watch.refusal is not None:
            self.outcome = _build_delivery_error(SendErrorKind.REFUSED, f"It is refused: {watch.refusal}.")
        else:
            self.outcome = _judge_log(said.text, has_sent=watch.has_sent)

    def _render_body(self) -> str:
        is_text = self._service.notify_format == "text" and not self._part.is_plain
        return render_markup(self._part.text, PLAIN) if is_text else self._part.text


class _WarningCollector(logging.Handler):
    """Collects the warnings that this thread logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._thread = threading.get_ident()
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self._lines.append(record.getMessage())

    @property
    def text(self) -> str:
        return "\n".join(self._lines)


def _judge_log(said: str, *, has_sent: bool) -> DeliveryError:
    """Judge a failure by apprise's log. ``said`` is not repeated: it names hosts, and a server may have written part of
    it."""
    status = _STATUS.search(said)
    if status is not None:
        code = int(status["status"])
        return DeliveryError(kind=classify_status(code), message=f"HTTP {code} from the service", status=code)
    if not has_sent:
        return _build_delivery_error(SendErrorKind.TRANSIENT, "no connection to the service")
    kind = classify_text(said)
    if kind in (SendErrorKind.UNKNOWN, SendErrorKind.TRANSIENT):
        return _build_delivery_error(SendErrorKind.AMBIGUOUS, "the service did not say that it took the message")
    return _build_delivery_error(kind, f"the service refused the message: {kind.value}")


def _build_delivery_error(kind: SendErrorKind, message: str) -> DeliveryError:
    return DeliveryError(kind=kind, message=message)


def _load_service(url: str, policy: UrlPolicy) -> NotifyBase:
    apprise = require_library()
    # Nothing on disk, and only what comes with the library.
    asset = apprise.AppriseAsset(storage_mode="memory", secure_logging=True)
    watch = ConnectionWatch(policy)
    with watch_thread(watch):
        service: NotifyBase | None = apprise.Apprise.instantiate(url, asset=asset)
    if watch.refusal is not None:
        raise Unsendable(f"this URL of apprise is refused: {watch.refusal}")
    if service is None:
        raise Unsendable("apprise cannot read this URL; check it with the 'apprise' command")
    # A service over HTTP uses requests, in this thread, where its connections are watched. The others talk to the
    # machine itself (syslog, the desktop) or hold connections in threads of their own.
    if "requests" not in vars(sys.modules[type(service).__module__]):
        raise Unsendable("this service of apprise does not speak HTTP and cannot be a target")
    service.redirects = False
    return service


def require_library() -> ModuleType:
    """Import apprise. Raises ``ConfigurationError`` when it is not installed."""
    if importlib.util.find_spec("apprise") is None:
        raise ConfigurationError("'apprise:' targets need the library: pip install 'hermes-worker[apprise]'")
    import apprise

    return apprise
