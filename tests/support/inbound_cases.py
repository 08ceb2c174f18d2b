"""One case for each platform that is listened to: credentials, and requests as the platform would make them.

The contract suite (``tests/inbound/test_receiving_contract.py``) asks every platform of the catalogue for a case here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm

from hermes_worker.channels.inbound.receiving import WebhookRequest
from hermes_worker.core.inbound import ChatKind

AT = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class InboundCase:
    """A platform, and what it sends. All of it as documented by the vendor."""

    values: Mapping[str, str]
    """Variables of the account."""
    secret: str = ""
    """What the platform signs with; the one of ``values`` that belongs to it is made of it."""
    sign: Callable[[bytes, str, datetime], WebhookRequest] | None = None
    """A request with this body, signed with this secret at this time; ``None`` without a webhook."""
    message: Any = None
    """A body (bytes, or JSON) with one message ``hello`` of a person in a direct chat."""
    press: Callable[[str], Any] | None = None
    """The same for a press of a button that says this, by that person in that chat; ``None`` where there are none."""
    proofs: tuple[str, ...] = ()
    """The headers that prove a request, and with ``?`` parameters of its query. Each is taken away, doubled and
    changed."""
    signs_body: bool = True
    """Whether a changed byte of the body is noticed."""
    claims: Mapping[str, Any] | None = None
    """What its token says, where that is what proves a request."""
    signs_time: bool = False
    """Whether a request is too old after 301 s."""
    page: Mapping[str, Any] | None = None
    """What ``poll`` is answered: an answer with two messages, ``first`` and ``second``."""
    page_cursor: str = ""
    """From where that page is asked for: some platforms bring nothing on the first look."""
    chat: str = ""
    """The id of the chat that ``message`` was written in."""
    sender: str = ""
    kind: ChatKind = ChatKind.DIRECT
    """Of the chat."""

    def webhook(self, body: bytes, at: datetime = AT) -> WebhookRequest:
        """A genuine request."""
        assert self.sign is not None
        return self.sign(body, self.secret, at)

    def pressed(self, value: str, at: datetime = AT) -> WebhookRequest:
        """A genuine request that brings a press."""
        assert self.press is not None
        body = self.press(value)
        return self.webhook(body if isinstance(body, bytes) else json.dumps(body).encode(), at)

    @property
    def body(self) -> bytes:
        """``message`` as it is sent."""
        return self.message if isinstance(self.message, bytes) else json.dumps(self.message).encode()


def telegram_update(number: int, text: str, **more: Any) -> dict[str, Any]:
    """An update as core.telegram.org/bots/api describes it."""
    chat = {"id": 4242, "type": "private", "first_name": "Ada"}
    writer = {"id": 4242, "is_bot": False, "first_name": "Ada", "last_name": "L", "username": "ada"}
    message = {"message_id": 900 + number, "date": 1_795_600_000, "chat": chat, "from": writer, "text": text}
    return {"update_id": number, "message": message | more}


def telegram_press(value: str) -> dict[str, Any]:
    """A callback query."""
    message = telegram_update(30, "May I?")["message"] | {"from": {"id": 77, "is_bot": True, "first_name": "Hermes"}}
    writer = telegram_update(31, "")["message"]["from"]
    return {"update_id": 32, "callback_query": {"id": "4382", "from": writer, "message": message, "data": value}}


def matrix_event(name: str, text: str, **more: Any) -> dict[str, Any]:
    """An event of a timeline as the client-server API describes it."""
    content = {"msgtype": "m.text", "body": text} | more
    event = {"type": "m.room.message", "event_id": name, "sender": "@ada:t.local", "origin_server_ts": 1}
    return {**event, "content": content}


def matrix_page(*events: dict[str, Any], **timeline: Any) -> dict[str, Any]:
    """What answers ``/sync``, ``whoami`` and ``joined_members`` alike."""
    room = {"timeline": {"events": list(events), "limited": False, "prev_batch": "p1"} | timeline}
    members = {"@ada:t.local": {"display_name": "Ada"}, "@bot:t.local": {}}
    return {"next_batch": "s2", "rooms": {"join": {"!r:t.local": room}}, "user_id": "@bot:t.local", "joined": members}


JSON, FORM = "application/json", "application/x-www-form-urlencoded"


def posted(platform: str, body: bytes, kind: str = JSON, **headers: str) -> WebhookRequest:
    named = [("content-type", kind), *((name.replace("_", "-"), value) for name, value in headers.items())]
    url = f"https://h.example/inbound/{platform}"
    return WebhookRequest(method="POST", url=url, headers=tuple(named), body=body)


def _hmac(secret: str, message: bytes, digest: str = "sha256") -> bytes:
    return hmac.new(secret.encode(), message, digest).digest()


def _seconds(at: datetime) -> str:
    return str(int(at.timestamp()))


def _telegram(body: bytes, secret: str, at: datetime) -> WebhookRequest:
    return posted("telegram", body, x_telegram_bot_api_secret_token=secret)


def _slack(body: bytes, secret: str, at: datetime) -> WebhookRequest:
    """docs.slack.dev/authentication/verifying-requests-from-slack"""
    stamp = _seconds(at)
    proof = "v0=" + _hmac(secret, b"v0:" + stamp.encode() + b":" + body).hex()
    kind = FORM if body.startswith((b"command=", b"payload=")) else JSON
    return posted("slack", body, kind, x_slack_request_timestamp=stamp, x_slack_signature=proof)


def slack_event(text: str, **more: Any) -> dict[str, Any]:
    """A message in a direct chat as the Events API brings it."""
    event = {"type": "message", "channel": "D024BE91L", "channel_type": "im", "user": "U2147483697", "text": text}
    return {
        "type": "event_callback",
        "event_id": "Ev08MFMKH6",
        "team_id": "T061EG9R6",
        "authorizations": [{"team_id": "T061EG9R6", "user_id": "U0BOT", "is_bot": True}],
        "event": event | {"ts": "1795600000.000100"} | more,
    }


def slack_press(value: str, **more: Any) -> bytes:
    """``block_actions``, in the form in which Slack posts it."""
    button = {"type": "button", "action_id": "answer_1", "value": value, "action_ts": "1795600009.000100"}
    payload = {
        "type": "block_actions",
        "trigger_id": "13345224609.738474920.8088930838d88f008e0",
        "team": {"id": "T061EG9R6"},
        "user": {"id": "U2147483697", "username": "ada"},
        "channel": {"id": "D024BE91L", "name": "directmessage"},
        "message": {"ts": "1795600001.000200", "text": "May I?"},
        "actions": [button],
        **more,
    }
    return urlencode({"payload": json.dumps(payload)}).encode()


def discord_key(secret: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(secret.encode()).digest())


def _discord(body: bytes, secret: str, at: datetime) -> WebhookRequest:
    """docs.discord.com/developers/interactions/overview, "Setting up an endpoint" """
    stamp = _seconds(at)
    proof = discord_key(secret).sign(stamp.encode() + body).hex()
    return posted("discord", body, x_signature_timestamp=stamp, x_signature_ed25519=proof)


def discord_interaction(name: str, said: str = "", **more: Any) -> dict[str, Any]:
    """A slash command in a direct chat."""
    options = [{"name": "text", "type": 3, "value": said}] if said else []
    user = {"id": "80351110224678912", "username": "ada", "global_name": "Ada"}
    interaction = {"id": "1443000000000000000", "type": 2, "application_id": "1", "token": "t", "version": 1}
    channel = {"id": "1100000000000000001", "type": 1}
    return {
        **interaction,
        "channel_id": "1100000000000000001",
        "channel": channel,
        "user": user,
        "data": {"id": "9", "name": name, "type": 1, "options": options},
        **more,
    }


def discord_press(value: str) -> dict[str, Any]:
    """A message component."""
    data = {"custom_id": value, "component_type": 2}
    return discord_interaction("", type=3, data=data, message={"id": "1442999999999999999"})


def _hub(platform: str) -> Callable[[bytes, str, datetime], WebhookRequest]:
    """Of Meta (whatsapp/cloud-api/webhooks) and of GitHub (webhooks/validating-webhook-deliveries)."""
    return lambda body, secret, at: posted(platform, body, x_hub_signature_256="sha256=" + _hmac(secret, body).hex())


def whatsapp_notification(text: str, **more: Any) -> dict[str, Any]:
    """A message as the Cloud API tells of it."""
    message = {"from": "15551234567", "id": "wamid.HBgLMTU1", "timestamp": "1795600000", "type": "text"}
    value = {
        "messaging_product": "whatsapp",
        "metadata": {"display_phone_number": "15550783881", "phone_number_id": "106540352242922"},
        "contacts": [{"profile": {"name": "Ada"}, "wa_id": "15551234567"}],
        "messages": [message | {"text": {"body": text}} | more],
    }
    change = {"value": value, "field": "messages"}
    return {"object": "whatsapp_business_account", "entry": [{"id": "1", "changes": [change]}]}


def whatsapp_press(value: str) -> dict[str, Any]:
    """A reply button."""
    reply = {"type": "button_reply", "button_reply": {"id": value, "title": "Allow"}}
    return whatsapp_notification("", type="interactive", interactive=reply)


def _line(body: bytes, secret: str, at: datetime) -> WebhookRequest:
    """developers.line.biz/en/docs/messaging-api/verify-webhook-signature"""
    return posted("line", body, x_line_signature=base64.b64encode(_hmac(secret, body)).decode())


def line_events(text: str, **more: Any) -> dict[str, Any]:
    """A message to an official account."""
    event = {
        "type": "message",
        "mode": "active",
        "timestamp": 1_795_600_000_000,
        "webhookEventId": "01FZ74A0TDDPYRVKNK77XKC3ZR",
        "deliveryContext": {"isRedelivery": False},
        "source": {"type": "user", "userId": "U4af4980629" + "0" * 22},
        "message": {"id": "444573844083572737", "type": "text", "text": text},
    }
    return {"destination": "Uxxx", "events": [event | more]}


def line_press(value: str) -> dict[str, Any]:
    return line_events("", type="postback", message={}, postback={"data": value})


SMS_URL = "https://h.example/inbound/sms"


def _sms(body: bytes, secret: str, at: datetime) -> WebhookRequest:
    """twilio.com/docs/usage/webhooks/webhooks-security"""
    fields = parse_qsl(body.decode("latin-1"), keep_blank_values=True)
    signed = SMS_URL + "".join(f"{name}{value}" for name, value in sorted(fields))
    proof = base64.b64encode(_hmac(secret, signed.encode(), "sha1")).decode()
    return posted("sms", body, FORM, x_twilio_signature=proof)


def sms_form(text: str, **more: str) -> bytes:
    fields = {"MessageSid": "SM0123456789", "From": "+15551234567", "To": "+15557654321", "Body": text, "NumMedia": "0"}
    return urlencode(fields | more).encode()


def github_event(text: str, **more: Any) -> dict[str, Any]:
    """An ``issue_comment``."""
    user = {"id": 583231, "login": "octocat", "type": "User"}
    comment = {"id": 99262140, "body": text, "user": user, "updated_at": "2026-11-25T12:00:00Z"}
    return {
        "action": "created",
        "issue": {"number": 3, "title": "It breaks"},
        "comment": comment | more,
        "repository": {"full_name": "octo/cat"},
    }


def _feishu(body: bytes, secret: str, at: datetime) -> WebhookRequest:
    """open.feishu.cn, "Receive events through a server": encrypted first, then signed."""
    pad = 16 - len(body) % 16
    start = hashlib.sha256(body).digest()[:16]
    cipher = Cipher(algorithms.AES256(hashlib.sha256(secret.encode()).digest()), modes.CBC(start)).encryptor()
    sealed = base64.b64encode(start + cipher.update(body + bytes([pad]) * pad) + cipher.finalize()).decode()
    whole, stamp, nonce = json.dumps({"encrypt": sealed}).encode(), _seconds(at), "n0nce"
    proof = hashlib.sha256(f"{stamp}{nonce}{secret}".encode() + whole).hexdigest()
    named = {"x_lark_request_timestamp": stamp, "x_lark_request_nonce": nonce, "x_lark_signature": proof}
    return posted("feishu", whole, **named)


def _dingtalk(body: bytes, secret: str, at: datetime) -> WebhookRequest:
    """open.dingtalk.com, "Receive messages of a robot": the time is signed, in milliseconds."""
    stamp = f"{int(at.timestamp())}123"
    proof = base64.b64encode(_hmac(secret, f"{stamp}\n{secret}".encode())).decode()
    return posted("dingtalk", body, timestamp=stamp, sign=proof)


def dingtalk_message(text: str, **more: Any) -> dict[str, Any]:
    """What a robot is told."""
    who = {"senderId": "$:LWCP_v1:$x", "senderNick": "Ada", "senderStaffId": "user123", "chatbotUserId": "$:LWCP_v1:$b"}
    where = {"conversationId": "cidX/y+z==", "conversationType": "2", "conversationTitle": "Ops", "isInAtList": True}
    said = {"msgId": "msg1", "createAt": 1795600000000, "msgtype": "text", "text": {"content": f" {text}"}}
    return {**who, **where, **said, **more}


WECOM_CORP = "ww1234567890abcdef"


def wecom_aes_key(secret: str) -> str:
    return base64.b64encode(hashlib.sha256(secret.encode()).digest()).decode().removesuffix("=")


def wecom_sealed(content: bytes, secret: str, corp: str = WECOM_CORP) -> str:
    """developer.work.weixin.qq.com, "Encryption and decryption": padded to 32 bytes with the number of added ones."""
    key = hashlib.sha256(secret.encode()).digest()
    plain = hashlib.sha256(content).digest()[:16] + len(content).to_bytes(4, "big") + content + corp.encode()
    pad = 32 - len(plain) % 32
    cipher = Cipher(algorithms.AES256(key), modes.CBC(key[:16])).encryptor()
    return base64.b64encode(cipher.update(plain + bytes([pad]) * pad) + cipher.finalize()).decode()


def wecom_query(sealed: str, secret: str, at: datetime, **more: str) -> str:
    """Of a callback: the token signs the four texts, sorted."""
    stamp, nonce = _seconds(at), "n0nce"
    proof = hashlib.sha1("".join(sorted((secret, stamp, nonce, sealed))).encode()).hexdigest()
    return urlencode({"msg_signature": proof, "timestamp": stamp, "nonce": nonce, **more})


def _wecom(body: bytes, secret: str, at: datetime) -> WebhookRequest:
    sealed = wecom_sealed(body, secret)
    whole = f"<xml><ToUserName><![CDATA[{WECOM_CORP}]]></ToUserName><Encrypt><![CDATA[{sealed}]]></Encrypt></xml>"
    request = posted("wecom_callback", whole.encode(), "text/xml")
    return replace(request, url=f"{request.url}?{wecom_query(sealed, secret, at)}")


def wecom_message(text: str, **more: str) -> bytes:
    """A message to an app."""
    said = {"ToUserName": WECOM_CORP, "FromUserName": "ada", "CreateTime": "1795600000", "MsgType": "text"}
    fields = {**said, "Content": text, "MsgId": "1234567890123456", "AgentID": "1000002", **more}
    return ("<xml>" + "".join(f"<{name}><![CDATA[{it}]]></{name}>" for name, it in fields.items()) + "</xml>").encode()


def _chat_webhook(body: bytes, secret: str, at: datetime) -> WebhookRequest:
    """docs/gateway.md, "Any other platform" """
    stamp = _seconds(at)
    proof = _hmac(secret, stamp.encode() + b"." + body).hex()
    return posted("chat_webhook", body, x_webhook_timestamp=stamp, x_webhook_signature_v2=proof)


def feishu_event(text: str, **more: Any) -> dict[str, Any]:
    """``im.message.receive_v1``"""
    message = {"message_id": "om_1", "chat_id": "oc_5ce6d572455d361153b7cb51da133945", "chat_type": "p2p"}
    content = {"message_type": "text", "content": json.dumps({"text": text}), "create_time": "1795600000000"}
    return {
        "schema": "2.0",
        "header": {"event_id": "5e3702a8", "event_type": "im.message.receive_v1", "token": "v"},
        "event": {
            "sender": {"sender_id": {"open_id": "ou_84aad35d", "union_id": "on_8ed6"}, "sender_type": "user"},
            "message": message | content | more,
        },
    }


def feishu_press(value: str) -> dict[str, Any]:
    """``card.action.trigger``"""
    return {
        "schema": "2.0",
        "header": {"event_id": "f7984f25", "event_type": "card.action.trigger", "create_time": "1795600000000000"},
        "event": {
            "operator": {"open_id": "ou_84aad35d", "union_id": "on_8ed6"},
            "action": {"value": {"hermes_answer": value}, "tag": "button"},
            "context": {"open_message_id": "om_0", "open_chat_id": "oc_5ce6d572455d361153b7cb51da133945"},
        },
    }


@lru_cache(maxsize=2)
def token_key(which: str) -> RSAPrivateKey:
    """Whoever else signs has another one."""
    return rsa.generate_private_key(public_exponent=65_537, key_size=2048)


def public_keys() -> dict[str, dict[str, Any]]:
    """What a platform publishes, by key id."""
    return {"k1": {**RSAAlgorithm.to_jwk(token_key("platform").public_key(), as_dict=True), "kid": "k1", "use": "sig"}}


TEAMS_SERVICE = "https://smba.trafficmanager.net/teams/"
TEAMS_CLAIMS = {"iss": "https://api.botframework.com", "aud": "app-id", "serviceurl": TEAMS_SERVICE}
CHAT_CLAIMS = {"iss": "chat@system.gserviceaccount.com", "aud": "1234567890"}


def token_of(claims: Mapping[str, Any], at: datetime, which: str = "platform") -> str:
    """A token that is made at ``at`` and ends there, so that it is good for the tolerance only."""
    times = {"nbf": int(at.timestamp()), "exp": int(at.timestamp())}
    return jwt.encode({**times, **claims}, token_key(which), algorithm="RS256", headers={"kid": "k1"})


def _by_token(platform: str, claims: Mapping[str, Any]) -> Callable[[bytes, str, datetime], WebhookRequest]:
    def sign(body: bytes, secret: str, at: datetime) -> WebhookRequest:
        token = token_of(claims, at, "platform" if secret == _SECRET else "another")
        return replace(posted(platform, body, authorization=f"Bearer {token}"), keys=public_keys())

    return sign


def teams_activity(text: str, **more: Any) -> dict[str, Any]:
    """A message in a personal chat as the connector brings it."""
    return {
        "type": "message",
        "id": "1485983408511",
        "timestamp": "2026-11-25T12:00:00.000Z",
        "serviceUrl": TEAMS_SERVICE,
        "channelId": "msteams",
        "from": {"id": "29:1XJKJMvc5GBtc2JwZq0oj8tHZmzrQgFmB39ATiQWA85g", "name": "Ada", "aadObjectId": "ada-object"},
        "conversation": {"conversationType": "personal", "id": "a:17I0kl8EkpE1O9PH5TWrzrLNwnWWcfrU7QZjKR0WSZ0"},
        "recipient": {"id": "28:app-id", "name": "Hermes"},
        "text": text,
        **more,
    }


def teams_press(value: str) -> dict[str, Any]:
    """``Action.Submit``"""
    activity = teams_activity("", value={"hermes_answer": value}, replyToId="1485983408500")
    return {name: said for name, said in activity.items() if name != "text"}


def chat_event(text: str, **more: Any) -> dict[str, Any]:
    """A message to an app of Google Chat."""
    sender = {"name": "users/102651148563033885715", "displayName": "Ada", "type": "HUMAN", "email": "ada@example.org"}
    space = {"name": "spaces/AAAAAAAAAAA", "type": "DM", "spaceType": "DIRECT_MESSAGE"}
    message = {"name": "spaces/AAAAAAAAAAA/messages/CCC.CCC", "sender": sender, "text": text, "argumentText": text}
    times = {"type": "MESSAGE", "eventTime": "2026-11-25T12:00:00.000000Z"}
    return {**times, "space": space, "user": sender, "message": message, **more}


def chat_press(value: str) -> dict[str, Any]:
    """``CARD_CLICKED``"""
    event = chat_event("May I?", type="CARD_CLICKED")
    bot = {"name": "users/1", "type": "BOT", "displayName": "Hermes"}
    action = {"actionMethodName": "answer", "parameters": [{"key": "answer", "value": value}]}
    return {**event, "message": {**event["message"], "sender": bot}, "action": action}


def mattermost_press(value: str, *, secret: str, **more: Any) -> dict[str, Any]:
    """What the server posts when a button of an interactive message is pressed."""
    signed = "\n".join(("hermes-worker press", MATTERMOST_CHAT, "", value)).encode()
    return {
        "user_id": "u" * 26,
        "user_name": "ada",
        "channel_id": MATTERMOST_CHAT,
        "team_id": "",
        "post_id": "p" * 26,
        "trigger_id": "dHJpZ2dlcg==" * 12,
        "type": "button",
        "context": {"value": value, "thread": "", "proof": _hmac(secret, signed).hex()},
        **more,
    }


MATTERMOST_CHAT = "c" * 26
_SECRET = "s3cret_of-webhook"
CASES: dict[str, InboundCase] = {
    "telegram": InboundCase(
        values={"TELEGRAM_BOT_TOKEN": "77:abc", "TELEGRAM_WEBHOOK_SECRET": _SECRET},
        secret=_SECRET,
        sign=_telegram,
        message=telegram_update(31, "hello"),
        press=telegram_press,
        proofs=("x-telegram-bot-api-secret-token",),
        signs_body=False,
        page={"ok": True, "result": [telegram_update(7, "first"), telegram_update(8, "second")]},
        chat="4242",
        sender="4242",
    ),
    "matrix": InboundCase(
        values={"MATRIX_HOMESERVER": "http://service.example", "MATRIX_ACCESS_TOKEN": "syt_secret"},
        page=matrix_page(matrix_event("$1", "first"), matrix_event("$2", "second")),
        page_cursor="s1",
    ),
    "email": InboundCase(
        values={
            "EMAIL_IMAP_HOST": "imap.here.example",
            "EMAIL_ADDRESS": "agent@here.example",
            "EMAIL_PASSWORD": _SECRET,
            "EMAIL_AUTHSERV_ID": "mx.here.example",
        },
    ),
    "slack": InboundCase(
        values={"SLACK_SIGNING_SECRET": _SECRET, "SLACK_APP_TOKEN": "xapp-1-secret"},
        secret=_SECRET,
        sign=_slack,
        message=slack_event("hello"),
        press=slack_press,
        proofs=("x-slack-request-timestamp", "x-slack-signature"),
        signs_time=True,
        chat="D024BE91L",
        sender="U2147483697",
    ),
    "discord": InboundCase(
        values={
            "DISCORD_PUBLIC_KEY": discord_key(_SECRET).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex(),
            "DISCORD_BOT_TOKEN": "discord-secret",
        },
        secret=_SECRET,
        sign=_discord,
        message=discord_interaction("ask", "hello"),
        press=discord_press,
        proofs=("x-signature-timestamp", "x-signature-ed25519"),
        signs_time=True,
        chat="1100000000000000001",
        sender="80351110224678912",
    ),
    "mattermost": InboundCase(
        values={
            "MATTERMOST_URL": "http://service.example",
            "MATTERMOST_TOKEN": "mattermost-secret",
            "MATTERMOST_ACTIONS_SECRET": "actions-secret",
        }
    ),
    "ntfy": InboundCase(
        values={"NTFY_TOPICS": "mine, other", "NTFY_SERVER_URL": "http://service.example", "NTFY_TOKEN": "ntfy-secret"}
    ),
    "signal": InboundCase(values={"SIGNAL_HTTP_URL": "http://service.example", "SIGNAL_ACCOUNT": "+15550001111"}),
    "homeassistant": InboundCase(values={"HASS_URL": "https://house.example", "HASS_TOKEN": "hass-secret"}),
    "irc": InboundCase(
        values={
            "IRC_SERVER": "irc.example",
            "IRC_NICKNAME": "hermes",
            "IRC_SERVER_PASSWORD": "irc-secret",
            "IRC_SASL_PASSWORD": "sasl-secret",
            "IRC_CHANNELS": "#ops, #Dev",
        }
    ),
    "whatsapp_cloud": InboundCase(
        values={"WHATSAPP_CLOUD_APP_SECRET": _SECRET, "WHATSAPP_CLOUD_VERIFY_TOKEN": "verify-me"},
        secret=_SECRET,
        sign=_hub("whatsapp_cloud"),
        message=whatsapp_notification("hello"),
        press=whatsapp_press,
        proofs=("x-hub-signature-256",),
        chat="+15551234567",
        sender="+15551234567",
    ),
    "line": InboundCase(
        values={"LINE_CHANNEL_SECRET": _SECRET},
        secret=_SECRET,
        sign=_line,
        message=line_events("hello"),
        press=line_press,
        proofs=("x-line-signature",),
        chat="U4af4980629" + "0" * 22,
        sender="U4af4980629" + "0" * 22,
    ),
    "sms": InboundCase(
        values={"TWILIO_AUTH_TOKEN": _SECRET, "SMS_WEBHOOK_URL": SMS_URL},
        secret=_SECRET,
        sign=_sms,
        message=sms_form("hello"),
        proofs=("x-twilio-signature",),
        chat="+15551234567",
        sender="+15551234567",
    ),
    "github_comment": InboundCase(
        values={"GITHUB_COMMENT_WEBHOOK_SECRET": _SECRET, "GITHUB_BOT_USERNAME": "hermes-bot"},
        secret=_SECRET,
        sign=_hub("github_comment"),
        message=github_event("@hermes-bot hello"),
        proofs=("x-hub-signature-256",),
        chat="octo/cat#3",
        sender="583231",
        kind=ChatKind.GROUP,
    ),
    "feishu": InboundCase(
        values={"FEISHU_ENCRYPT_KEY": _SECRET, "FEISHU_VERIFICATION_TOKEN": "verify-me"},
        secret=_SECRET,
        sign=_feishu,
        message=feishu_event("hello"),
        press=feishu_press,
        proofs=("x-lark-request-timestamp", "x-lark-request-nonce", "x-lark-signature"),
        signs_time=True,
        chat="oc_5ce6d572455d361153b7cb51da133945",
        sender="ou_84aad35d",
    ),
    "dingtalk": InboundCase(
        values={"DINGTALK_APP_SECRET": _SECRET, "DINGTALK_CONVERSATION_ID": "cidX/y+z=="},
        secret=_SECRET,
        sign=_dingtalk,
        message=dingtalk_message("hello"),
        proofs=("timestamp", "sign"),
        signs_body=False,
        signs_time=True,
        chat="cidX_y-z",
        sender="user123",
        kind=ChatKind.GROUP,
    ),
    "wecom_callback": InboundCase(
        values={
            "WECOM_CALLBACK_TOKEN": _SECRET,
            "WECOM_CALLBACK_ENCODING_AES_KEY": wecom_aes_key(_SECRET),
            "WECOM_CALLBACK_CORP_ID": WECOM_CORP,
            "WECOM_CALLBACK_AGENT_ID": "1000002",
        },
        secret=_SECRET,
        sign=_wecom,
        message=wecom_message("hello"),
        proofs=("?msg_signature", "?timestamp"),
        signs_body=False,
        signs_time=True,
        chat="ada",
        sender="ada",
    ),
    "chat_webhook": InboundCase(
        values={"CHAT_WEBHOOK_SECRET": _SECRET, "CHAT_WEBHOOK_TEXT_PATH": "message.text"},
        secret=_SECRET,
        sign=_chat_webhook,
        message={"id": "m1", "sender": "ada", "name": "Ada", "message": {"text": "hello"}},
        proofs=("x-webhook-timestamp", "x-webhook-signature-v2"),
        signs_time=True,
        chat="ada",
        sender="ada",
    ),
    "teams": InboundCase(
        values={"TEAMS_CLIENT_ID": "app-id"},
        secret=_SECRET,
        sign=_by_token("teams", TEAMS_CLAIMS),
        message=teams_activity("hello"),
        press=teams_press,
        proofs=("authorization",),
        signs_body=False,
        signs_time=True,
        claims=TEAMS_CLAIMS,
        chat="a:17I0kl8EkpE1O9PH5TWrzrLNwnWWcfrU7QZjKR0WSZ0",
        sender="ada-object",
    ),
    "google_chat": InboundCase(
        values={"GOOGLE_CHAT_AUDIENCE": "1234567890"},
        secret=_SECRET,
        sign=_by_token("google_chat", CHAT_CLAIMS),
        message=chat_event("hello"),
        press=chat_press,
        proofs=("authorization",),
        signs_body=False,
        signs_time=True,
        claims=CHAT_CLAIMS,
        chat="spaces/AAAAAAAAAAA",
        sender="users/102651148563033885715",
    ),
}


def proof_of(request: WebhookRequest, name: str) -> str:
    """What stands in a header, or for ``?name`` in the query."""
    if not name.startswith("?"):
        return request.require_header(name)
    (value,) = [value for known, value in parse_qsl(urlsplit(request.url).query) if known == name[1:]]
    return value


def with_proof(request: WebhookRequest, name: str, *values: str) -> WebhookRequest:
    """With these in the place of what stands there."""
    if not name.startswith("?"):
        kept = tuple(pair for pair in request.headers if pair[0] != name)
        return replace(request, headers=(*kept, *((name, value) for value in values)))
    parts = urlsplit(request.url)
    others = [pair for pair in parse_qsl(parts.query) if pair[0] != name[1:]]
    return replace(request, url=parts._replace(query=urlencode([*others, *((name[1:], it) for it in values)])).geturl())


def without(request: WebhookRequest, name: str) -> WebhookRequest:
    return with_proof(request, name)


def doubled(request: WebhookRequest, name: str) -> WebhookRequest:
    return with_proof(request, name, proof_of(request, name), proof_of(request, name))


def changed(request: WebhookRequest, name: str) -> WebhookRequest:
    """With one character of the header's value changed."""
    value = proof_of(request, name)
    other = "B" if value[len(value) // 2] != "B" else "C"
    return with_proof(request, name, value[: len(value) // 2] + other + value[len(value) // 2 + 1 :])
