"""What is special about WeCom's callback: encrypted XML, of which a part is signed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.inbound_cases import AT, CASES, WECOM_CORP, posted, wecom_message, wecom_query, wecom_sealed

from hermes_worker.channels.inbound.receiving import Forged, UnreadableInbound, WebhookRequest
from hermes_worker.channels.inbound.wecom_callback import receive
from hermes_worker.channels.receivers import load_receivers
from hermes_worker.core.inbound import Inbound, InboundMessage
from hermes_worker.core.media_kinds import MediaKind

CASE = CASES["wecom_callback"]
CREDENTIALS = load_receivers()["wecom_callback"].build_credentials(CASE.values)


def heard(content: bytes) -> tuple[Inbound, ...]:
    return receive(CASE.webhook(content), CREDENTIALS, AT)


def with_body(sealed: str, body: bytes) -> WebhookRequest:
    request = posted("wecom_callback", body, "text/xml")
    return replace(request, url=f"{request.url}?{wecom_query(sealed, CASE.secret, AT)}")


@pytest.mark.parametrize("place", range(0, 200, 7))
def test_a_flipped_bit_of_what_is_signed_is_noticed(place: int) -> None:
    sealed = wecom_sealed(CASE.body, CASE.secret)
    flipped = bytearray(sealed, "ascii")
    flipped[place] ^= 1
    with pytest.raises(Forged):
        receive(with_body(sealed, b"<xml><Encrypt>%b</Encrypt></xml>" % bytes(flipped)), CREDENTIALS, AT)


def test_two_messages_in_a_body_are_none() -> None:
    sealed = wecom_sealed(CASE.body, CASE.secret)
    one = f"<Encrypt>{sealed}</Encrypt>".encode()
    assert len(receive(with_body(sealed, one), CREDENTIALS, AT)) == 1
    with pytest.raises(Forged, match="2 encrypted"):
        receive(with_body(sealed, one + one), CREDENTIALS, AT)


def test_a_message_to_another_company_is_refused() -> None:
    sealed = wecom_sealed(CASE.body, CASE.secret, corp="ww-another")
    with pytest.raises(Forged):
        receive(with_body(sealed, f"<Encrypt>{sealed}</Encrypt>".encode()), CREDENTIALS, AT)


def test_a_question_of_wecom_is_no_message() -> None:
    sealed = wecom_sealed(b"16161", CASE.secret)
    query = wecom_query(sealed, CASE.secret, AT, echostr=sealed)
    asked = WebhookRequest(method="GET", url=f"https://h.example/inbound/wecom_callback?{query}", headers=())
    assert receive(asked, CREDENTIALS, AT) == ()


@pytest.mark.parametrize(
    "content",
    [
        b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><xml><Content>&b;</Content></xml>',
        b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><xml/>',
        b"<xml><Content>",
        b"<xml>\xff\xfe</xml>",
    ],
)
def test_xml_that_declares_something_or_is_none_is_refused_in_words(content: bytes) -> None:
    with pytest.raises(UnreadableInbound):
        heard(content)


def test_a_text_may_say_whatever_it_likes() -> None:
    (message,) = heard(wecom_message("<!DOCTYPE x [<!ENTITY y 'z'>]> &y; </Content>"))
    assert isinstance(message, InboundMessage)
    assert message.text == "<!DOCTYPE x [<!ENTITY y 'z'>]> &y; </Content>"


def test_events_and_what_other_apps_are_told_are_left_aside_and_files_are_named() -> None:
    assert heard(wecom_message("", MsgType="event", Event="enter_agent")) == ()
    assert heard(wecom_message("hi", AgentID="7")) == ()
    (message,) = heard(wecom_message("", MsgType="voice", MediaId="media-1", Format="amr"))
    assert isinstance(message, InboundMessage)
    assert [(one.kind, one.id) for one in message.media] == [(MediaKind.VOICE, "media-1")]


def test_a_key_that_is_none_is_told_in_words() -> None:
    for key in ("", "short", "!" * 43, WECOM_CORP):
        with pytest.raises(UnreadableInbound, match="ENCODING_AES_KEY"):
            receive(CASE.webhook(CASE.body), replace(CREDENTIALS, encoding_aes_key=key), AT)
