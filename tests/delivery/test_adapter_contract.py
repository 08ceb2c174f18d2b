"""What every adapter of the catalogue promises, whatever its platform."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product

import pytest

from hermes_worker.channels.adapters import EMAIL_VARIABLES, build_credentials, build_email_credentials, load_adapters
from hermes_worker.channels.catalog import WEBHOOK, list_platforms
from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import Attachment, Exchange, Part, Receipt, perform
from hermes_worker.channels.targets import Target
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.net.http import HttpRequest, HttpResponse, NoAnswer
from hermes_worker.net.urls import PrivateUrl

AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
NAMES = sorted(name for name, one in load_adapters().items() if one.sending.is_exchange)
CHATS = {
    "google_chat": "spaces/AAA",
    "matrix": "!room:s.org",
    "telegram": "42",
    "discord": "42",
    "github_comment": "octo/hello#12",
}


def credentials(name: str, url: str) -> object:
    """Every field filled: addresses with the test's server, the rest with something recognisable."""
    values = {
        variable: f"{url}/SECRET"
        if field == "webhook_url"
        else "json"
        if variable.endswith("_FORMAT")
        else url
        if "url" in field or field == "homeserver"
        else "SECRET"
        for field, variable in load_adapters()[name].sending.variables.items()
    }
    return build_credentials(name, values)


def exchange(name: str, url: str, text: str = "The weather", attachment: Attachment | None = None) -> Exchange:
    target = Target(platform=name, chat=f"{url}/hook" if name == WEBHOOK else CHATS.get(name, "C0123ABCD"))
    part = Part(text=text, idempotency_key="d1:1", title="Title", attachment=attachment)
    return load_adapters()[name].send(part, target, credentials(name, url), AT)


def test_every_platform_that_says_so_has_an_adapter():
    with_adapter = {name for name, platform in list_platforms().items() if platform.has_adapter}
    assert with_adapter == {*load_adapters(), "email"} - {WEBHOOK}


@pytest.mark.parametrize("name", NAMES)
def test_no_answer_leaves_it_open_only_if_the_message_was_in_the_request(platform, deliver, name):
    platform.hang_up()
    outcome = deliver(exchange(name, platform.url))
    prepares_first = name in ("feishu", "teams", "wecom_callback")
    assert outcome.kind is (SendErrorKind.TRANSIENT if prepares_first else SendErrorKind.AMBIGUOUS)


@pytest.mark.parametrize("name", NAMES)
def test_an_upload_without_an_answer_delivered_nothing(name):
    """Answers whatever the adapter asks before its last request, and nothing to the upload."""
    content = b"only in the upload"
    attachment = Attachment(name="a.png", kind=MediaKind.IMAGE, content=content)

    def send(request: HttpRequest) -> HttpResponse:
        if content in request.body and not request.delivers:
            raise NoAnswer("time-out", was_sent=True)
        body = b'{"ok":true,"code":0,"tenant_access_token":"t","access_token":"t","upload_url":"http://x.example/u","file_id":"F"}'
        return HttpResponse(status=200, body=body)

    outcome = perform(exchange(name, "http://service.example", attachment=attachment), send)
    assert isinstance(outcome, Receipt) or outcome.kind in (SendErrorKind.TRANSIENT, SendErrorKind.UNKNOWN)


@pytest.mark.parametrize("name", NAMES)
def test_a_server_that_is_not_there_got_nothing(platform, deliver, name):
    platform.close()
    assert deliver(exchange(name, platform.url)).kind is SendErrorKind.TRANSIENT


ANSWERS = (
    b"",
    b"<html>",
    b"[]",
    b"null",
    b"[" * 100_000,
    b'{"ok":"yes","error":{"a":1},"code":{},"result":[1]}',
    b"\xff\xfe",
)


@pytest.mark.parametrize("name", NAMES)
def test_any_answer_is_understood_as_something(name):
    for status, body in product((200, 400, 503), ANSWERS):
        answer = HttpResponse(status=status, body=body)
        outcome = perform(exchange(name, "http://service.example"), lambda request, answer=answer: answer)
        if isinstance(outcome, DeliveryError):
            assert outcome.status == status, (status, body[:60])
            assert len(outcome.message) < 400, (status, body[:60])
        if status == 503:
            assert outcome.kind is SendErrorKind.TRANSIENT, (status, body[:60])


@pytest.mark.parametrize("name", NAMES)
def test_a_redirect_is_not_followed(platform, deliver, name):
    platform.answer(307, {}, Location=f"{platform.url}/elsewhere")
    assert deliver(exchange(name, platform.url)).kind is SendErrorKind.REFUSED
    assert len(platform.received) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_busy_server_says_when_to_come_back(platform, deliver, name):
    platform.answer(503, b"", Retry_After="17")
    outcome = deliver(exchange(name, platform.url))
    assert (outcome.kind, outcome.retry_after_s) == (SendErrorKind.TRANSIENT, 17.0)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_shown_holds_a_secret_or_the_text(name):
    request = next(exchange(name, "https://service.example"))
    assert "SECRET" not in repr(request)
    assert "weather" not in repr(request)
    fields = load_adapters()[name].sending.variables
    for secret in (
        "token",
        "secret",
        "password",
        "app_secret",
        "app_password",
        "access_token",
        "auth_token",
        "webhook_url",
        "key",
    ):
        if secret in fields:
            assert f"{secret}=" not in repr(credentials(name, "https://service.example"))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_part_makes_the_same_request(name):
    first, second = (next(exchange(name, "https://service.example")) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", NAMES)
def test_a_text_of_any_characters_can_be_sent(name):
    request = next(exchange(name, "https://service.example", text='a\x00\ud800\r\n\u202e😀"\\'))
    assert isinstance(request.body, bytes)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_missing_is_named(name):
    required = {
        variable
        for field, variable in load_adapters()[name].sending.variables.items()
        if field not in ("base_url", "service_url", "login_url", "tenant", "secret", "username", "password")
        # What only files that people send need.
        and field not in ("data_url", "api_url", "app_key")
    }
    required -= {"MATTERMOST_ACTIONS_URL", "MATTERMOST_ACTIONS_SECRET"}  # without them there are no buttons
    if name == "dingtalk":
        required -= {"DINGTALK_APP_SECRET"}
    if name in ("mattermost", "signal", "homeassistant"):
        required |= {load_adapters()[name].sending.variables["base_url"]}
    if name in ("ntfy", "google_chat", "webhook"):
        assert build_credentials(name, {}) is not None
        return
    with pytest.raises(ConfigurationError) as caught:
        build_credentials(name, {"UNRELATED": "x"})
    assert all(variable in str(caught.value) for variable in required)


def test_mail_is_configured_the_same_way():
    found = build_email_credentials(
        {"EMAIL_SMTP_HOST": "mail.example.org", "EMAIL_ADDRESS": "a@example.org", "EMAIL_SMTP_PORT": "2525"}
    )
    assert (found.host, found.sender, found.port, found.username) == ("mail.example.org", "a@example.org", 2525, None)
    with pytest.raises(ConfigurationError, match="EMAIL_SMTP_HOST, EMAIL_ADDRESS"):
        build_email_credentials({})
    with pytest.raises(ConfigurationError, match="EMAIL_SMTP_PORT is a port"):
        build_email_credentials({"EMAIL_SMTP_PORT": "smtp"})
    assert set(EMAIL_VARIABLES) == {"host", "port", "sender", "username", "password", "sender_name"}


def test_a_private_webhook_is_refused_with_the_setting_that_allows_it() -> None:
    def refuse(_request: object) -> HttpResponse:
        raise PrivateUrl("The host '10.0.0.1' is refused: 10.0.0.1 is not a public address.")

    outcome = perform(exchange(NAMES[0], "http://10.0.0.1"), refuse)
    assert isinstance(outcome, DeliveryError)
    assert (outcome.kind, "HERMES_DELIVERY_ALLOW_PRIVATE_URLS=true" in outcome.message) == (SendErrorKind.REFUSED, True)
