"""Files of replies: written scripts, and a provider's bytes that are recorded without secrets and played again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from support.fault_server import USAGE_CHUNK, FaultServer, Received, Reply, finish_chunk, text_chunk
from test_scripted_server import ask

from hermes_worker.core.errors import ModelCallError
from hermes_worker.core.messages import build_assistant_body, build_user_body
from hermes_worker.models.scripted.replies import InvalidReplies, ReplyFile, load_replies
from hermes_worker.models.scripted.server import Recording, ScriptedOptions, ScriptedServer

WRITTEN = r"""
- when: Pack order (?P<number>[0-9]+)
  steps:
  - calls: [{name: pack, arguments: {order: "{number}", note: "{i} {other}"}}]
  final: Order {number} is packed.
- when: fails
  steps: [{calls: [{arguments: {}}]}]
"""
KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"


def play(replies: ReplyFile) -> ScriptedServer:
    return ScriptedServer(options=ScriptedOptions(replies=replies))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "replies.yaml"


def test_a_written_script_is_followed_with_what_its_pattern_found(file: Path) -> None:
    file.write_text(WRITTEN)
    user = build_user_body("Hello. Pack order 17, please.")
    with play(load_replies(file)) as server:
        [called] = ask(server, user).tool_requests
        assert (called.name, json.loads(called.arguments)) == ("pack", {"order": "17", "note": "0 {other}"})
        done = build_assistant_body(ask(server, user))
        assert ask(server, user, done).text == "Order 17 is packed."
        again = ask(server, user, done, build_assistant_body(ask(server, user, done)), build_user_body("Pack order 18"))
        assert json.loads(again.tool_requests[0].arguments)["order"] == "18"
        assert "a call needs a name" in ask(server, build_user_body("this fails")).text
        assert "survey" in ask(server, build_user_body("Something else")).text.lower()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[", "cannot be read"),
        ("a: 1", "is no list of entries"),
        ("- {when: '('}", "cannot be used"),
        ("- {final: x}", "cannot be used"),
        ("- {body: x}", "cannot be used"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(file: Path, text: str, sentence: str) -> None:
    file.write_text(text)
    with pytest.raises(InvalidReplies, match=sentence):
        load_replies(file)
    program = [sys.executable, "-m", "hermes_worker.models.scripted", "--replies", str(file)]
    ended = subprocess.run(program, capture_output=True, text=True)
    assert (ended.returncode, sentence in ended.stderr) == (1, True)


def test_bytes_are_recorded_without_secrets_and_played_again(file: Path) -> None:
    asked: list[Received] = []

    def answer(request: Received, reply: Reply) -> None:
        asked.append(request)
        if len(asked) == 1:
            reply.document(429, {"error": {"message": f"Key {KEY} is at its limit", "code": "rate_limit_exceeded"}})
        else:
            said = [text_chunk("Hello "), text_chunk(f"{KEY} and {len(asked)}")]
            reply.sse(*said, finish_chunk(), USAGE_CHUNK, "[DONE]")

    told: list[str] = []
    user = build_user_body(f"Say hello to {KEY}")
    with FaultServer(answer) as provider:
        upstream = provider.base_url.removesuffix("/v1")
        recording = Recording(upstream=upstream, file=file, say=told.append)
        with ScriptedServer(options=ScriptedOptions(recording=recording)) as recorder:
            with pytest.raises(ModelCallError) as refused:
                ask(recorder, user)
            first = ask(recorder, user)
            ask(recorder, user, build_assistant_body(first), build_user_body("And?"))
    assert KEY in first.text, "the client itself gets what the provider says"
    assert refused.value.status == 429
    assert [said.partition(",")[0] for said in told] == [
        "recorded: HTTP 429",
        "recorded: HTTP 200",
        "recorded: HTTP 200",
    ]
    kept = file.read_text()
    assert KEY not in kept
    assert [sorted(one) for one in yaml.safe_load(kept)] == [["body", "path", "replies", "status", "type", "user"]] * 3

    with play(load_replies(file)) as server:
        played = ask(server, user)
        assert (played.text.endswith("and 2"), played.usage, KEY in played.text) == (True, first.usage, False)
        assert ask(server, user).text == played.text, "a repeated request gets the same answer"
        other = build_user_body("Say hello in other words")
        assert ask(server, other).text == played.text, "the only conversation is found by its place"
        assert ask(server, user, build_assistant_body(first), build_user_body("And?")).text.endswith("and 3")
        with pytest.raises(ModelCallError, match="record again"):
            ask(server, user, *[build_assistant_body(first)] * 5, build_user_body("More"))


def test_a_key_of_the_request_is_masked_wherever_it_stands(file: Path) -> None:
    with FaultServer(lambda request, reply: reply.sse(text_chunk("my-own-secret-key-1"), "[DONE]")) as provider:
        recording = Recording(upstream=provider.base_url.removesuffix("/v1"), file=file)
        with ScriptedServer(options=ScriptedOptions(recording=recording)) as recorder:
            body: dict[str, Any] = {"messages": [{"role": "user", "content": "my-own-secret-key-1"}], "stream": True}
            headers = {"Authorization": "Bearer my-own-secret-key-1"}
            answer = httpx.post(f"{recorder.base_url}/chat/completions", json=body, headers=headers)
    assert "my-own-secret-key-1" in answer.text
    assert "my-own-secret-key-1" not in file.read_text()


def test_an_answer_with_a_key_in_pieces_is_not_recorded(file: Path) -> None:
    told: list[str] = []
    pieces = [text_chunk(KEY[:9]), text_chunk(KEY[9:20]), text_chunk(KEY[20:]), finish_chunk(), USAGE_CHUNK, "[DONE]"]
    with FaultServer(lambda request, reply: reply.sse(*pieces)) as provider:
        recording = Recording(upstream=provider.base_url.removesuffix("/v1"), file=file, say=told.append)
        with ScriptedServer(options=ScriptedOptions(recording=recording)) as recorder:
            assert ask(recorder, build_user_body("hello")).text == KEY
    assert "spread over several events" in told[0]
    assert not file.exists()


def test_other_wires_are_played_at_their_own_paths(file: Path) -> None:
    entry = {"user": "hello", "replies": 0, "path": "/v1/messages", "status": 200, "type": "application/json"}
    file.write_text(yaml.safe_dump([{**entry, "body": '{"id": "msg_1"}'}]))
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}
    with play(load_replies(file)) as server:
        address = server.base_url.removesuffix("/v1")
        assert httpx.post(f"{address}/v1/messages", json=body).json() == {"id": "msg_1"}
        assert httpx.post(f"{address}/v1/responses", json={"input": "hello"}).status_code == 400
