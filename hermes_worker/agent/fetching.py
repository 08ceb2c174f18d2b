"""Fetch the addresses that a model asks for: every address is judged, that of every redirect too, and nothing is kept
between two requests.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from urllib.parse import urljoin

from hermes_worker.agent.tools.base import Cancellation
from hermes_worker.agent.tools.fetch import FetchedPage, FetchFailed
from hermes_worker.net.http import HttpRequest, HttpResponse, NoAnswer
from hermes_worker.net.urls import UnsafeUrl, UrlPolicy
from hermes_worker.net.wire import send

TOTAL_S = 30.0
"""Longest time of one request, in seconds."""
REDIRECTS_MAX = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_LOOK_EVERY_S = 0.1
_HEADERS = {
    "Accept": "text/html, text/*;q=0.9, application/json;q=0.9, image/*;q=0.8, */*;q=0.1",
    "Accept-Encoding": "identity",
    "User-Agent": "hermes-worker",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressFetcher:
    """``agent.tools.fetch.AddressFetching`` under one policy."""

    policy: UrlPolicy
    total_s: float = TOTAL_S

    def fetch(self, url: str, cancelled: Cancellation, *, bytes_max: int) -> FetchedPage:
        """Fetch an address. Raises ``FetchFailed``, whose message may be shown to a model."""
        for _ in range(REDIRECTS_MAX + 1):
            response = self._request(url, cancelled, bytes_max)
            if response.status not in _REDIRECTS:
                return _read_response(url, response, bytes_max)
            url = urljoin(url, response.headers.get("location", ""))
        raise FetchFailed(f"there are more than {REDIRECTS_MAX} redirects")

    def _request(self, url: str, cancelled: Cancellation, bytes_max: int) -> HttpResponse:
        """Make the request on a thread of its own, because a blocked one cannot be told to stop waiting."""
        outcome: list[HttpResponse | FetchFailed] = []

        def work() -> None:
            try:
                request = HttpRequest(method="GET", url=url, headers=_HEADERS)
                outcome.append(send(request, self.policy, total_s=self.total_s, body_bytes_max=bytes_max + 1))
            except NoAnswer as error:
                outcome.append(FetchFailed(error.reason))
            except (UnsafeUrl, ValueError) as error:
                outcome.append(FetchFailed(str(error)))

        thread = threading.Thread(target=work, name="fetch", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_LOOK_EVERY_S)
            if cancelled.is_set():
                raise FetchFailed("it was cancelled")
        if not outcome:
            raise FetchFailed("the request failed")
        if isinstance(outcome[0], FetchFailed):
            raise outcome[0]
        return outcome[0]


def _read_response(url: str, response: HttpResponse, bytes_max: int) -> FetchedPage:
    if not 200 <= response.status < 300:
        raise FetchFailed(f"the server answered HTTP {response.status}")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise FetchFailed("the server sends compressed data, which it was asked not to")
    media_type, _, parameters = response.headers.get("content-type", "").partition(";")
    charset = parameters.lower().partition("charset=")[2].split(";")[0].strip("\"' ")
    return FetchedPage(
        url=url,
        media_type=media_type.strip().lower(),
        charset=charset or None,
        content=response.body[:bytes_max],
        is_cut=len(response.body) > bytes_max,
    )
