"""``/v1/responses/compact``, ``/v1/responses/input_tokens`` and ``/v1/embeddings`` with the stock SDK. The test is the
worker, and the service that makes embeddings."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest
from answering import answering
from serving import Served
from support.store import Store

from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.settings import Secret, Settings

SAID = ModelReply(text="The short of it.", usage=Usage(input=3, output=2))


@pytest.fixture
def sdk(api: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{api.url}/v1", api_key=api.key, max_retries=0, timeout=60)


def test_a_conversation_in_short_stands_for_it_in_a_later_request(sdk: openai.OpenAI, store: Store) -> None:
    given: Any = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello, Ada."},
        {"role": "user", "content": "I like figs."},
    ]
    with answering(store, SAID) as runs:
        short = sdk.responses.compact(model="gpt-5.5", input=given)
        after: Any = [*[item.to_dict() for item in short.output], {"role": "user", "content": "What is my name?"}]
        sdk.responses.create(model="gpt-5.5", input=after)
    assert (short.object, short.usage.total_tokens, len(runs)) == ("response.compaction", 5, 2)
    said = [body["content"] for body in store.bodies(runs[1])]
    assert "My name is Ada." in said and said[-2] == "What is my name?"


def test_a_response_is_compacted_with_what_was_said_before_it(sdk: openai.OpenAI, store: Store) -> None:
    with answering(store, ModelReply(text="Hello, Ada."), SAID, ModelReply(text="Ada.")) as runs:
        first = sdk.responses.create(model="gpt-5.5", input="My name is Ada.")
        short = sdk.responses.compact(model="gpt-5.5", previous_response_id=first.id)
        after: Any = [*short.output, {"role": "user", "content": "And now?"}]
        sdk.responses.create(model="gpt-5.5", input=after)
    said = [body["content"] for body in store.bodies(runs[2])]
    assert said[0] == "My name is Ada." and said[1].startswith("Hello, Ada.")


def test_what_is_no_conversation_in_short_is_refused_or_passed_over(sdk: openai.OpenAI, store: Store) -> None:
    asked = {"role": "user", "content": "Hello"}
    given: Any
    for content in ("hw1.%%%", "hw1.e30=", "hw1.WzFd"):
        given = [{"type": "compaction", "encrypted_content": content}, asked]
        with pytest.raises(openai.BadRequestError, match="it was changed"):
            sdk.responses.create(model="x", input=given)
    with pytest.raises(openai.BadRequestError, match="nothing to summarise"):
        sdk.responses.compact(model="gpt-5.5")
    with pytest.raises(openai.NotFoundError):
        sdk.responses.compact(model="gpt-5.5", previous_response_id=f"resp_{'0' * 32}")
    with answering(store, SAID):
        given = [{"type": "compaction", "encrypted_content": "gAAA"}, asked]
        sdk.responses.create(model="x", input=given)


def test_tokens_are_estimated_and_nothing_is_begun(sdk: openai.OpenAI, store: Store) -> None:
    with answering(store, SAID) as runs:
        first = sdk.responses.create(model="gpt-5.5", input="word " * 400, conversation="talk")
    short = sdk.responses.input_tokens.count(model="gpt-5.5", input="Hello").input_tokens
    longer = sdk.responses.input_tokens.count(model="gpt-5.5", input="word " * 4_000).input_tokens
    assert longer > short + 3_000 > 3_000
    more: Any
    for more in ({"previous_response_id": first.id}, {"conversation": "talk"}, {"instructions": "word " * 400}):
        assert sdk.responses.input_tokens.count(model="gpt-5.5", input="Hello", **more).input_tokens > short + 300
    assert len(runs) == 1


# --- embeddings ------------------------------------------------------------------------------------------------------


@contextmanager
def service(status: int = 200) -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """A service with OpenAI's ``/embeddings``, and what it was asked with which key."""
    asked: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.headers["Authorization"], document))
            data = [{"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}]
            usage = {"prompt_tokens": 2, "total_tokens": 2}
            body = json.dumps({"object": "list", "data": data, "model": "small", "usage": usage}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def asking(settings: Settings, serve: Callable[..., Served], url: str) -> openai.OpenAI:
    chosen = replace(settings.server, embeddings_url=url, embeddings_key=Secret("sk-embed"))
    api = serve(replace(settings, server=chosen))
    return openai.OpenAI(base_url=f"{api.url}/v1", api_key=api.key, max_retries=0, timeout=60)


def test_embeddings_are_those_of_the_service(settings: Settings, serve: Callable[..., Served]) -> None:
    with service() as (url, asked):
        sdk = asking(settings, serve, url)
        made = sdk.embeddings.create(model="small", input=["fig"], encoding_format="float", dimensions=2)
    assert (made.data[0].embedding, made.usage.total_tokens) == ([0.5, 1.0], 2)
    wanted = {"input": ["fig"], "model": "small", "encoding_format": "float", "dimensions": 2}
    assert asked == [("Bearer sk-embed", wanted)]


def test_a_refusal_of_the_service_is_one_and_its_words_are_not_repeated(
    settings: Settings, serve: Callable[..., Served]
) -> None:
    for status, kind in (
        (422, openai.BadRequestError),
        (429, openai.RateLimitError),
        (401, openai.InternalServerError),
    ):
        with service(status) as (url, _), pytest.raises(kind) as refused:
            asking(settings, serve, url).embeddings.create(model="small", input="fig")
        assert str(status) in str(refused.value) and 'embedding"' not in str(refused.value)
    with pytest.raises(openai.InternalServerError, match="could not be reached"):
        asking(settings, serve, "http://127.0.0.1:9/v1").embeddings.create(model="small", input="fig")


def test_without_a_service_embeddings_are_refused(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="HERMES_EMBEDDINGS_URL"):
        sdk.embeddings.create(model="small", input="fig")
