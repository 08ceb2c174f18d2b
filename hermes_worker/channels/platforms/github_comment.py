"""A comment on an issue or a pull request, over GitHub's REST API (docs.github.com/rest/issues/comments)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hermes_worker.channels.errors import SendErrorKind
from hermes_worker.channels.exchange import (
    Exchange,
    Outcome,
    Part,
    Receipt,
    Unsendable,
    build_bearer_header,
    failure,
    is_success,
    join_service_url,
    json_object,
    json_request,
)
from hermes_worker.channels.targets import Target
from hermes_worker.core.json_values import read_id
from hermes_worker.net.http import HttpRequest, HttpResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    token: str = field(repr=False)
    """A token that may write issues of the repositories."""
    base_url: str = "https://api.github.com"


def build(part: Part, target: Target, credentials: Credentials) -> HttpRequest:
    """Build the request; GitHub renders Markdown itself. Raises ``Unsendable`` for a setting or a target that cannot be
    used."""
    repository, _, number = target.chat.partition("#")
    if not number:
        raise Unsendable(f"{target.shown!r} names no issue; write github_comment:OWNER/REPOSITORY#NUMBER.")
    headers = {**build_bearer_header(credentials.token), "Accept": "application/vnd.github+json"}
    url = join_service_url(credentials.base_url, f"repos/{repository}/issues/{number}/comments")
    return json_request("POST", url, {"body": part.text}, headers=headers)


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    message = read_id(answer.get("message"))
    if is_success(response):
        return Receipt(message_id=read_id(answer.get("html_url")) or read_id(answer.get("id")) or None)
    kind = None
    if response.status == 403 and "rate limit" in message.lower():
        kind = SendErrorKind.RATE_LIMITED  # GitHub's second limit, on what creates content, is a 403
    elif response.status == 422 and "too long" in message.lower():
        kind = SendErrorKind.TOO_LONG
    return failure(response, message, kind=kind)


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    return classify((yield build(part, target, credentials)))
