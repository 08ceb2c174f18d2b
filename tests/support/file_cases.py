"""One case for each platform whose files are fetched: the event that brings a file, and what is asked for it.

All of it as the vendors document it. The contract suite (``tests/inbound/test_files_contract.py``) asks every platform
of the catalogue for a case. In values, events and answers ``URL`` stands for the address of the server that plays the
platform.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_worker.channels.inbound import discord_gateway, homeassistant, matrix, mattermost, ntfy, signal
from hermes_worker.channels.receivers import load_receivers
from hermes_worker.core.inbound import Inbound
from hermes_worker.core.media_kinds import MediaKind
from support.fault_server import FaultServer, Received, Reply
from support.inbound_cases import (
    AT,
    CASES,
    chat_event,
    dingtalk_message,
    feishu_event,
    line_events,
    matrix_event,
    slack_event,
    sms_form,
    teams_activity,
    telegram_update,
    wecom_message,
    whatsapp_notification,
)
from support.sent_files import Answer, plain
from support.socket_cases import MATTERMOST_DIRECT, discord_message, mattermost_post


@dataclass(frozen=True, kw_only=True)
class FileCase:
    """How a file of a platform is had."""

    brings: Callable[[str], tuple[Inbound, ...]]
    """From the address of the server to the event."""
    values: Mapping[str, str]
    kind: MediaKind = MediaKind.DOCUMENT
    name: str = ""
    """As the event says, like ``kind``."""
    answers: Mapping[str, Any] = field(default_factory=dict)
    """What is asked before the file: answers in JSON by path."""
    file: str = ""
    """The path of the file."""
    authorization: str | None = None
    """What the request for the file bears."""
    heads: tuple[str, ...] = ()
    """Further headers of the answer with the file."""
    packs: Callable[[bytes], bytes] | None = None
    """How the file is in the body, where it is not the body."""

    def values_at(self, url: str) -> dict[str, str]:
        return {name: value.replace("URL", url) for name, value in self.values.items()}


class PlatformServer(FaultServer):
    """Plays a platform: it has one file, and answers what its case says."""

    def __init__(self, case: FileCase, content: Answer) -> None:
        super().__init__(self._answer)
        self._case = case
        self.content = content
        """The bytes of the file, or how the request for it is answered."""

    @property
    def url(self) -> str:
        return self.base_url.removesuffix("/v1")

    @property
    def fetched(self) -> list[Received]:
        """The requests for the file."""
        return [one for one in self.requests if one.head.split(" ")[1] == self._case.file]

    def _answer(self, request: Received, reply: Reply) -> None:
        path = request.head.split(" ")[1]
        if path == self._case.file:
            self._send(reply)
        elif path in self._case.answers:
            reply.document(200, json.loads(json.dumps(self._case.answers[path]).replace("URL", self.url)))
        else:
            reply.document(404, {})

    def _send(self, reply: Reply) -> None:
        content = self.content
        if isinstance(content, bytes):
            packed = content if self._case.packs is None else self._case.packs(content)
            plain(packed, *self._case.heads)(reply)
        else:
            content(_WithHeads(reply, self._case.heads))


class _WithHeads(Reply):
    """Puts further headers into whatever is answered."""

    def __init__(self, reply: Reply, heads: tuple[str, ...]) -> None:
        super().__init__(reply.sock, reply.closing)
        self._heads = heads

    def raw(self, data: bytes) -> None:
        line, end, rest = data.partition(b"\r\n")
        heads, self._heads = self._heads, ()
        super().raw(line + end + b"".join(f"{head}\r\n".encode() for head in heads) + rest)


def by_webhook(platform: str, body: Callable[[str], Any]) -> Callable[[str], tuple[Inbound, ...]]:
    """What the signed request with a body says."""

    def brings(url: str) -> tuple[Inbound, ...]:
        case, receiver = CASES[platform], load_receivers()[platform]
        made = body(url)
        request = case.webhook(made if isinstance(made, bytes) else json.dumps(made).encode())
        return receiver.receive(request, receiver.build_credentials(case.values), AT)

    return brings


def _signal(url: str) -> tuple[Inbound, ...]:
    file = {"id": "f1.pdf", "contentType": "application/pdf", "filename": "plan.pdf", "size": 9}
    said = {"timestamp": 1_795_600_000_000, "message": "", "attachments": [file]}
    return signal.read({"sourceNumber": "+15551234567", "dataMessage": said}, "+15550000000")


def _mattermost(url: str) -> tuple[Inbound, ...]:
    files = {"metadata": {"files": [{"id": "f1abc", "name": "plan.pdf", "mime_type": "application/pdf", "size": 9}]}}
    talk = mattermost.Socket(mattermost.Credentials(base_url=url, token="t1"))
    data = {"channel_type": "D", "post": json.dumps(mattermost_post(1, "", **files)), "channel": MATTERMOST_DIRECT}
    return talk.on_frame(json.dumps({"event": "posted", "seq": 0, "data": data}), AT).inbound


def _discord(url: str) -> tuple[Inbound, ...]:
    file = {"url": f"{url}/attachments/1/plan.pdf", "filename": "plan.pdf", "content_type": "application/pdf"}
    return discord_gateway.read_message(discord_message(1, "", attachments=[file]), "1")


def _matrix(url: str) -> tuple[Inbound, ...]:
    file = {"msgtype": "m.file", "url": "mxc://example.org/AbC_1", "body": "plan.pdf", "filename": "plan.pdf"}
    members = {"@ada:t.local": {}, "@bot:t.local": {}}
    return matrix.read(matrix_event("$1", "", **file), "!r:t.local", members, "@bot:t.local")


def _ntfy(url: str) -> tuple[Inbound, ...]:
    file = {"name": "plan.pdf", "url": f"{url}/file/f1.pdf", "type": "application/pdf", "size": 9}
    said = {"id": "m1", "time": 1_795_600_000, "event": "message", "topic": "ops", "message": "", "attachment": file}
    return ntfy.Socket(ntfy.Credentials(topics="ops")).on_frame(json.dumps(said), AT).inbound


def _homeassistant(url: str) -> tuple[Inbound, ...]:
    data = {"user": "ada", "text": "who is at the door?", "file": "/local/door.jpg"}
    return homeassistant.read({"event_type": homeassistant.EVENT, "data": data, "context": {"id": "c1"}})


def _whatsapp(url: str) -> Any:
    file = {"id": "1479537139650973", "mime_type": "application/pdf", "filename": "plan.pdf", "sha256": "x"}
    return whatsapp_notification("", type="document", document=file)


def _slack(url: str) -> Any:
    file = {"id": "F1", "name": "plan.pdf", "mimetype": "application/pdf", "size": 9}
    place = {"url_private_download": f"{url}/files-pri/T1-F1/download/plan.pdf"}
    return slack_event("", subtype="file_share", files=[file | place])


def _teams(url: str) -> Any:
    file = {"contentType": "image/*", "contentUrl": f"{url}/v3/attachments/0-wus/views/original", "name": "plan.png"}
    return teams_activity("", attachments=[{"contentType": "text/html", "content": "<p>x</p>"}, file])


def _google(url: str) -> Any:
    file = {"name": "spaces/A/messages/C/attachments/D", "contentName": "plan.pdf", "contentType": "application/pdf"}
    event = chat_event("")
    event["message"]["attachment"] = [file | {"attachmentDataRef": {"resourceName": "ClxzcGFjZXM="}}]
    return event


def _in_json(content: bytes) -> bytes:
    data = base64.b64encode(content).decode()
    return json.dumps({"jsonrpc": "2.0", "id": "attachment", "result": {"data": data}}).encode()


_TWILIO = {"TWILIO_ACCOUNT_SID": "AC1", "TWILIO_AUTH_TOKEN": "t1", "TWILIO_PHONE_NUMBER": "+15557654321"}
_WECOM = {"WECOM_CALLBACK_CORP_ID": "c1", "WECOM_CALLBACK_CORP_SECRET": "s1", "WECOM_CALLBACK_AGENT_ID": "1000002"}
_DINGTALK = {"DINGTALK_APP_KEY": "k1", "DINGTALK_APP_SECRET": "s1", "DINGTALK_API_URL": "URL"}

FILE_CASES: dict[str, FileCase] = {
    "telegram": FileCase(
        brings=by_webhook(
            "telegram", lambda url: telegram_update(1, "", document={"file_id": "d1", "file_name": "plan.pdf"})
        ),
        values={"TELEGRAM_BOT_TOKEN": "77:abc", "TELEGRAM_BASE_URL": "URL"},
        name="plan.pdf",
        answers={"/bot77:abc/getFile": {"ok": True, "result": {"file_path": "documents/a b.pdf"}}},
        file="/file/bot77:abc/documents/a%20b.pdf",
    ),
    "slack": FileCase(
        brings=by_webhook("slack", _slack),
        values={"SLACK_BOT_TOKEN": "xoxb-1", "SLACK_BASE_URL": "URL/api"},
        name="plan.pdf",
        file="/files-pri/T1-F1/download/plan.pdf",
        authorization="Bearer xoxb-1",
    ),
    "whatsapp_cloud": FileCase(
        brings=by_webhook("whatsapp_cloud", _whatsapp),
        values={
            "WHATSAPP_CLOUD_PHONE_NUMBER_ID": "1",
            "WHATSAPP_CLOUD_ACCESS_TOKEN": "t1",
            "WHATSAPP_CLOUD_BASE_URL": "URL/v23.0",
        },
        name="plan.pdf",
        answers={"/v23.0/1479537139650973": {"url": "URL/whatsapp_business/attachments/?mid=1&hash=2", "file_size": 9}},
        file="/whatsapp_business/attachments/?mid=1&hash=2",
        authorization="Bearer t1",
    ),
    "signal": FileCase(
        brings=_signal,
        values={"SIGNAL_HTTP_URL": "URL", "SIGNAL_ACCOUNT": "+15550000000"},
        name="plan.pdf",
        file="/api/v1/rpc",
        packs=_in_json,
    ),
    "line": FileCase(
        brings=by_webhook(
            "line",
            lambda url: line_events("", message={"id": "44457", "type": "file", "fileName": "plan.pdf", "fileSize": 9}),
        ),
        values={"LINE_CHANNEL_ACCESS_TOKEN": "t1", "LINE_DATA_URL": "URL"},
        name="plan.pdf",
        file="/v2/bot/message/44457/content",
        authorization="Bearer t1",
    ),
    "mattermost": FileCase(
        brings=_mattermost,
        values={"MATTERMOST_URL": "URL", "MATTERMOST_TOKEN": "t1"},
        name="plan.pdf",
        file="/api/v4/files/f1abc",
        authorization="Bearer t1",
    ),
    "matrix": FileCase(
        brings=_matrix,
        values={"MATRIX_HOMESERVER": "URL", "MATRIX_ACCESS_TOKEN": "t1"},
        name="plan.pdf",
        file="/_matrix/client/v1/media/download/example.org/AbC_1",
        authorization="Bearer t1",
    ),
    "ntfy": FileCase(
        brings=_ntfy,
        values={"NTFY_SERVER_URL": "URL", "NTFY_TOKEN": "t1"},
        name="plan.pdf",
        file="/file/f1.pdf",
        authorization="Bearer t1",
    ),
    "homeassistant": FileCase(
        brings=_homeassistant,
        values={"HASS_URL": "URL", "HASS_TOKEN": "t1"},
        kind=MediaKind.IMAGE,
        name="door.jpg",
        file="/local/door.jpg",
        authorization="Bearer t1",
    ),
    "feishu": FileCase(
        brings=by_webhook(
            "feishu",
            lambda url: feishu_event(
                "",
                message_type="file",
                content=json.dumps({"file_key": "file_v2_1", "file_name": "plan.pdf"}),
            ),
        ),
        values={"FEISHU_APP_ID": "a1", "FEISHU_APP_SECRET": "s1", "FEISHU_BASE_URL": "URL"},
        name="plan.pdf",
        answers={"/open-apis/auth/v3/tenant_access_token/internal": {"code": 0, "tenant_access_token": "t1"}},
        file="/open-apis/im/v1/messages/om_1/resources/file_v2_1?type=file",
        authorization="Bearer t1",
    ),
    "google_chat": FileCase(
        brings=by_webhook("google_chat", _google),
        values={"GOOGLE_CHAT_ACCESS_TOKEN": "t1", "GOOGLE_CHAT_BASE_URL": "URL"},
        name="plan.pdf",
        file="/v1/media/ClxzcGFjZXM%3D?alt=media",
        authorization="Bearer t1",
    ),
    "teams": FileCase(
        brings=by_webhook("teams", _teams),
        values={
            "TEAMS_CLIENT_ID": "app-id",
            "TEAMS_CLIENT_SECRET": "s1",
            "TEAMS_SERVICE_URL": "URL/teams",
            "TEAMS_LOGIN_URL": "URL",
        },
        kind=MediaKind.IMAGE,
        name="plan.png",
        answers={"/botframework.com/oauth2/v2.0/token": {"access_token": "t1"}},
        file="/v3/attachments/0-wus/views/original",
        authorization="Bearer t1",
    ),
    "dingtalk": FileCase(
        brings=by_webhook(
            "dingtalk",
            lambda url: dingtalk_message("", msgtype="file", content={"downloadCode": "dc1", "fileName": "plan.pdf"}),
        ),
        values={"DINGTALK_WEBHOOK_URL": "https://oapi.dingtalk.com/robot/send?access_token=x", **_DINGTALK},
        name="plan.pdf",
        answers={
            "/v1.0/oauth2/accessToken": {"accessToken": "t1", "expireIn": 7200},
            "/v1.0/robot/messageFiles/download": {"downloadUrl": "URL/bucket/plan.pdf?Signature=s"},
        },
        file="/bucket/plan.pdf?Signature=s",
    ),
    "wecom_callback": FileCase(
        brings=by_webhook(
            "wecom_callback", lambda url: wecom_message("", MsgType="file", MediaId="m1", FileName="plan.pdf")
        ),
        values={**_WECOM, "WECOM_BASE_URL": "URL"},
        name="plan.pdf",
        answers={"/cgi-bin/gettoken?corpid=c1&corpsecret=s1": {"errcode": 0, "access_token": "t1"}},
        file="/cgi-bin/media/get?access_token=t1&media_id=m1",
        heads=('Content-Disposition: attachment; filename="plan.pdf"',),
    ),
    "sms": FileCase(
        brings=by_webhook(
            "sms",
            lambda url: sms_form("", MediaUrl0=f"{url}/2010-04-01/Media/ME1", MediaContentType0="application/pdf"),
        ),
        values={**_TWILIO, "TWILIO_BASE_URL": "URL"},
        file="/2010-04-01/Media/ME1",
        authorization="Basic " + base64.b64encode(b"AC1:t1").decode(),
    ),
}
"""By the platform's name. Mail is read over IMAP, and attachments of Discord are at its own names alone: both are in
the suite by themselves."""
