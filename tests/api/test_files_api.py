"""OpenAI's files: uploaded, listed and named in messages by the stock SDK, on both kinds of database."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
import sqlalchemy as sa
from answering import answering
from serving import Served
from support.fault_server import FaultServer, Received, Reply
from support.migrated import bring_up
from support.store import Store
from support.turns import Turns

from hermes_worker.core.retention_rules import RetentionKind, RetentionRule
from hermes_worker.features.retention.erasure_rows import Erasures
from hermes_worker.features.retention.erasure_rules import Person
from hermes_worker.features.retention.export_rows import export_rows
from hermes_worker.features.retention.hold_rows import Retention
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.settings import ArtifactSettings, DatabaseSettings, Secret, Settings
from hermes_worker.store.access.audit import AuditLog
from hermes_worker.store.access.principals import KeyScope, Tenants
from hermes_worker.store.tables import artifacts, blobs

NOTES = b"# Notes\nThe heron is grey.\n"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
RULES = {kind: RetentionRule() for kind in RetentionKind}


@pytest.fixture
def settings(settings: Settings, database_url: str) -> Settings:
    bring_up(database_url)
    return replace(settings, database=DatabaseSettings(url=database_url))


@pytest.fixture
def sdk(api: Served) -> openai.OpenAI:
    return client_of(api, api.key)


def client_of(api: Served, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{api.url}/v1", api_key=key, max_retries=0, timeout=None)


def upload(sdk: openai.OpenAI, name: str = "notes.md", content: bytes = NOTES, **more: Any) -> str:
    return sdk.files.create(file=(name, content), purpose="user_data", **more).id


@pytest.fixture
def provider() -> Iterator[FaultServer]:
    """A model that says the same to everybody, and keeps what it was sent."""

    def answer(request: Received, reply: Reply) -> None:
        delta = {"index": 0, "delta": {"role": "assistant", "content": "Grey."}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [delta]}
        reply.sse({**chunk, "usage": usage}, "[DONE]")

    with FaultServer(answer) as running:
        yield running


def test_a_file_is_uploaded_listed_read_and_deleted(sdk: openai.OpenAI) -> None:
    made = sdk.files.create(file=("notes.md", NOTES), purpose="user_data")
    assert (made.object, made.bytes, made.filename, made.purpose) == ("file", len(NOTES), "notes.md", "user_data")
    assert (made.status, made.expires_at) == ("processed", None)
    assert sdk.files.retrieve(made.id) == made
    assert sdk.files.content(made.id).read() == NOTES
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    short = sdk.files.create(file=("a.png", PIXEL), purpose="vision", expires_after=expiry)
    assert short.expires_at is not None and short.expires_at - short.created_at in (3600, 3601)

    assert [file.id for file in sdk.files.list()] == [short.id, made.id]
    assert [file.id for file in sdk.files.list(purpose="vision")] == [short.id]
    page = sdk.files.list(limit=1, order="asc")
    assert ([file.id for file in page.data], page.has_more) == ([made.id], True)
    assert [file.id for file in page] == [made.id, short.id], "the SDK's own paging"

    gone = sdk.files.delete(made.id)
    assert (gone.id, gone.deleted) == (made.id, True)
    for ask in (sdk.files.retrieve, sdk.files.content, sdk.files.delete):
        with pytest.raises(openai.NotFoundError, match="No such File object"):
            ask(made.id)


def test_uploads_and_deletions_are_in_the_audit_log(api: Served, sdk: openai.OpenAI) -> None:
    made = upload(sdk)
    sdk.files.delete(made)
    rows = [row for row in AuditLog(api.client.database).list_actions("default") if row.subject == made]
    facts = {"purpose": "user_data", "size": len(NOTES)}
    assert [(row.act, row.before, row.after) for row in rows] == [
        ("file.upload", {}, facts),
        ("file.delete", facts, {}),
    ]
    assert {row.address for row in rows} == {"127.0.0.1"}


def test_the_file_reaches_the_provider(sdk: openai.OpenAI, store: Store, provider: FaultServer) -> None:
    text, picture = upload(sdk), upload(sdk, "a.png", PIXEL)

    def play(run_id: str) -> None:
        Turns.over(store, provider.base_url).finish(run_id)

    asked = {"type": "input_text", "text": "Which colour?"}
    said: Any = [
        {
            "role": "user",
            "content": [
                asked,
                {"type": "input_file", "file_id": text},
                {"type": "input_image", "file_id": picture, "detail": "low"},
            ],
        }
    ]
    chat: Any = [{"role": "user", "content": [{"type": "file", "file": {"file_id": text}}]}]
    with answering(store, play):
        assert sdk.responses.create(model="m", input=said).output_text == "Grey."
        assert sdk.chat.completions.create(model="m", messages=chat).choices[0].message.content == "Grey."
    first, second = [request.document["messages"][-1]["content"] for request in provider.requests]
    shown = f"[file notes.md]\n{NOTES.decode()}\n[end of notes.md]"
    url = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
    assert first == [
        {"type": "text", "text": "Which colour?"},
        {"type": "text", "text": shown},
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
    ]
    assert second == shown


def test_a_conversation_and_its_count_take_files(sdk: openai.OpenAI, http: httpx.Client) -> None:
    items: Any = [{"role": "user", "content": [{"type": "input_file", "file_id": upload(sdk)}]}]
    conversation = sdk.conversations.create(items=items)
    sdk.conversations.items.create(conversation.id, items=items)
    kept = sdk.conversations.items.list(conversation.id).to_dict()
    assert json.dumps(kept).count("The heron is grey.") == 2
    assert sdk.responses.input_tokens.count(model="m", input=items).input_tokens > 0


def test_what_is_refused_says_why(sdk: openai.OpenAI, http: httpx.Client) -> None:
    with pytest.raises(openai.BadRequestError, match="must be one of user_data, assistants, vision"):
        sdk.files.create(file=("a.jsonl", b"{}"), purpose="fine-tune")
    expiry: Any = {"anchor": "created_at", "seconds": 5}
    with pytest.raises(openai.BadRequestError, match="its seconds are 3600 to 2592000"):
        upload(sdk, expires_after=expiry)
    with pytest.raises(openai.BadRequestError, match="there is no file 'file-x'"):
        sdk.files.list(after="file-x")
    messages: Any = [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-x"}}]}]
    with pytest.raises(openai.BadRequestError, match="No such File object: file-x") as wrong:
        sdk.chat.completions.create(model="m", messages=messages)
    assert wrong.value.param == "messages[0].content[0].file_id"
    pdf: Any = [{"role": "user", "content": [{"type": "input_file", "file_id": upload(sdk, "a.pdf", b"%PDF\xff")}]}]
    with pytest.raises(openai.BadRequestError, match="only texts in UTF-8 and pictures"):
        sdk.responses.create(model="m", input=pdf)
    for kind, words in (
        ("application/json", "must be multipart/form-data"),
        ("multipart/form-data", "Invalid multipart/form-data: Missing boundary"),
    ):
        answer = http.post("/v1/files", content=b"{}", headers={"Content-Type": kind})
        assert words in answer.json()["error"]["message"], answer.text
    assert http.post("/v1/files", data={"purpose": "vision"}, files={"x": b""}).json()["error"]["param"] == "file"


def test_files_count_against_the_artifacts_quota(serve: Callable[..., Served], settings: Settings) -> None:
    api = serve(replace(settings, artifacts=ArtifactSettings(file_mb_max=2, run_mb_max=3)))
    sdk = client_of(api, api.key)
    with pytest.raises(openai.APIStatusError, match="A file has at most 2 MB here") as large:
        upload(sdk, content=b"x" * (2 * 1024**2 + 1))
    assert large.value.status_code == 413
    first = upload(sdk, content=b"x" * 2 * 1024**2)
    with pytest.raises(openai.APIStatusError, match="together may have 3 MB") as full:
        upload(sdk, content=b"y" * 2 * 1024**2)
    assert full.value.status_code == 413
    sdk.files.delete(first)
    upload(sdk, content=b"y" * 2 * 1024**2)


def test_a_file_is_its_tenants(serve: Callable[..., Served], settings: Settings) -> None:
    api = serve(replace(settings, server=replace(settings.server, key=Secret("test-key-0123456789"))))
    tenants = Tenants(api.client.database)
    tenants.create_tenant("acme")
    keys = {
        name: tenants.create_key(tenant, name, scopes).token
        for name, tenant, scopes in (
            ("ann", "acme", [KeyScope.RUNS_READ, KeyScope.RUNS_WRITE]),
            ("reader", "acme", [KeyScope.RUNS_READ]),
            ("bob", "default", [KeyScope.RUNS_READ, KeyScope.RUNS_WRITE]),
        )
    }
    ann, reader, bob = (client_of(api, keys[name]) for name in ("ann", "reader", "bob"))
    made = upload(ann)
    assert reader.files.content(made).read() == NOTES
    for ask in (lambda: upload(reader), lambda: reader.files.delete(made)):
        with pytest.raises(openai.PermissionDeniedError):
            ask()
    assert list(bob.files.list()) == []
    messages: Any = [{"role": "user", "content": [{"type": "input_file", "file_id": made}]}]
    with pytest.raises(openai.BadRequestError, match="No such File object"):
        bob.responses.create(model="m", input=messages)
    for answer in (lambda: bob.files.retrieve(made), lambda: bob.files.delete(made)):
        with pytest.raises(openai.NotFoundError):
            answer()


def test_a_hold_keeps_files_and_time_ends_them(sdk: openai.OpenAI, store: Store) -> None:
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    short, made = upload(sdk, expires_after=expiry), upload(sdk, content=b"kept\n")
    retention = Retention(store.database, RULES)
    hold = retention.place_hold("default", reason="court", by="test")
    with pytest.raises(openai.ConflictError, match="a legal hold keeps the files of this tenant"):
        sdk.files.delete(made)
    with store.database.write() as connection:
        connection.execute(
            sa.update(artifacts).where(artifacts.c.artifact_id == short).values(expires_at=artifacts.c.created_at - 1)
        )
    assert [file.id for file in sdk.files.list()] == [made], "one whose time is over is not there"
    assert list_kept(store) == {short, made}
    prune(store)
    assert list_kept(store) == {short, made}
    retention.release("default", hold.number)
    prune(store)
    assert list_kept(store) == {made}
    with store.database.write() as connection:
        connection.execute(sa.update(artifacts).values(created_at=artifacts.c.created_at - 100_000))
    prune(store, {**RULES, RetentionKind.ARTIFACTS: RetentionRule(age_s=86_400)})
    assert list_kept(store) == set()


def prune(store: Store, rules: dict[RetentionKind, RetentionRule] = RULES) -> None:
    for _ in Pruner(store.database, rules).prune_stepwise():
        pass


def list_kept(store: Store) -> set[str]:
    with store.database.read() as connection:
        return set(connection.execute(sa.select(artifacts.c.artifact_id)).scalars())


@pytest.mark.parametrize("whom", [Person(holders=("ann",)), Person(is_everybody=True)])
def test_an_export_has_the_files_and_an_erasure_deletes_them(api: Served, store: Store, whom: Person) -> None:
    tenants = Tenants(store.database)
    tenants.create_tenant("acme")
    scopes = [KeyScope.RUNS_READ, KeyScope.RUNS_WRITE]
    upload(client_of(api, tenants.create_key("acme", "ann", scopes).token))
    other = client_of(api, tenants.create_key("acme", "bob", scopes).token)
    upload(other, content=b"of bob\n")
    rows = [row.row for row in export_rows(store.database, "acme", whom)]
    bodies = {row["body"] for row in rows if "body" in row}
    assert base64.b64encode(NOTES).decode() in bodies
    assert (base64.b64encode(b"of bob\n").decode() in bodies) is whom.is_everybody
    erasures = Erasures(store.database)
    erasure = erasures.begin("acme", whom, by="test")
    for _ in erasures.delete_stepwise(erasure):
        pass
    assert erasures.finish(erasure).erased["artifacts"] == (2 if whom.is_everybody else 1)
    with store.database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(blobs)).scalar() == len(list_kept(store))
    if not whom.is_everybody:
        assert [file.bytes for file in other.files.list()] == [7]
