"""Bedrock and Gemini as their vendors judge them: requests by botocore and google-genai, our stand-in by their clients.

What every wire does is in ``test_wires.py``. None of this was ever asked of the real services.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.serialize import create_serializer
from dialects import HELLO, Said, ToolUse
from google import genai
from strict_server import StrictServer, body, instead_of_event, status
from support.fault_server import FaultServer, Received, Reply
from vendor_rules import CONVERSE_MODEL, SERVICE, VENDOR_RULES, _with_bytes, converse_events, frame

from hermes_worker.agent.prompt.pipeline import build_messages
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.errors import ConfigurationError, FailureKind, ModelCallError
from hermes_worker.core.messages import (
    Message,
    ModelReply,
    ModelRequest,
    Role,
    build_assistant_body,
    build_tool_body,
    build_user_body,
    dump_canonical_json,
)
from hermes_worker.models.base import Provider
from hermes_worker.models.build import find_endpoint, find_wire_and_endpoint
from hermes_worker.models.catalog import find_provider, list_wire_rows
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.factory import build_provider
from hermes_worker.models.wires import bedrock_converse, gemini_generate
from hermes_worker.models.wires.bedrock_converse import BedrockConverse
from hermes_worker.models.wires.gemini_generate import GeminiGenerate
from hermes_worker.settings import load_settings

SYSTEM = dump_canonical_json({"role": "system", "content": "You are strict."})
TOOL = dump_canonical_json(
    {"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}
)
CALLING = Said(thinking="let me look", text="looking", calls=(ToolUse(id="call_1", name="look", arguments='{"a": 1}'),))
PAIR = "AKIDEXAMPLE:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


@pytest.fixture
def server() -> Iterator[StrictServer]:
    with StrictServer(VENDOR_RULES) as running:
        yield running


def ask(asked: Provider, request: ModelRequest) -> ModelReply:
    return asked.ask(request, on_delta=lambda _: None, abort=AbortSignal())


def stored(wire: str, *bodies: str) -> list[str]:
    rows = [Message(seq=n, role=Role(json.loads(text)["role"]), body=text) for n, text in enumerate(bodies, start=1)]
    return [SYSTEM, *build_messages(rows, list_wire_rows()[wire].needs)]


def bedrock(server: StrictServer, key: str = "bedrock-api-key-0123456789") -> Provider:
    return BedrockConverse(Endpoint(base_url=server.base_url, api_key=key, region="eu-central-1"))


def gemini(server: StrictServer) -> Provider:
    return GeminiGenerate(Endpoint(base_url=server.base_url, api_key="AIza-test-0123456789"))


# ------------------------------------------------------------------------------------- the stand-ins, by their clients


def test_botocore_s_own_client_reads_what_our_stand_in_says(server: StrictServer) -> None:
    server.says(CALLING)
    session = botocore.session.Session()
    client = session.create_client(
        "bedrock-runtime",
        region_name="eu-central-1",
        endpoint_url=server.base_url,
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="secret",
        config=Config(retries={"max_attempts": 1}, proxies={}),
    )
    asked = {"modelId": CONVERSE_MODEL, "messages": [{"role": "user", "content": [{"text": "hello"}]}]}

    events = list(client.converse_stream(**asked)["stream"])

    text = "".join(event.get("contentBlockDelta", {}).get("delta", {}).get("text", "") for event in events)
    assert text == CALLING.text
    assert [name for event in events for name in event] == [name for name, _ in converse_events(CALLING)]
    assert server.refusals == []


def test_google_s_own_client_reads_what_our_stand_in_says(server: StrictServer) -> None:
    server.says(CALLING)
    options = genai.types.HttpOptions(base_url=server.base_url.removesuffix("/v1"), api_version="v1")
    client = genai.Client(api_key="k", http_options=options)

    chunks = list(client.models.generate_content_stream(model="gemini-3-strict", contents="hello"))

    parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts or ()]
    assert "".join(part.text for part in parts if part.text and not part.thought) == CALLING.text
    assert [part.function_call.args for part in parts if part.function_call] == [{"a": 1}]
    assert chunks[-1].usage_metadata.cached_content_token_count == 8
    assert server.refusals == []


# ------------------------------------------------------------------------------------------------------------- bedrock


def test_our_request_is_the_one_that_botocore_would_send(server: StrictServer) -> None:
    server.says(CALLING)
    asked = bedrock(server)
    request = ModelRequest(
        model=CONVERSE_MODEL, messages=(SYSTEM, build_user_body("hi")), tools=(TOOL,), reasoning_effort="high"
    )
    reply = ask(asked, request)
    turn = stored(
        "bedrock_converse", build_user_body("hi"), build_assistant_body(reply), build_tool_body("call_1", "seen")
    )
    server.says(HELLO)
    ask(asked, replace(request, messages=turn, output_tokens_max=500))

    for sent in server.requests:
        operation = SERVICE.operation_model("ConverseStream")
        params = {**_with_bytes(sent.document), "modelId": CONVERSE_MODEL}
        made = create_serializer("rest-json").serialize_to_request(params, operation)
        assert json.loads(made["body"]) == sent.document
        assert sent.head.split(" ")[1] == f"/v1{made['url_path']}"
    assert server.refusals == []
    second = server.requests[-1].document
    assert second["additionalModelRequestFields"]["output_config"] == {"effort": "high"}
    assert second["messages"][1]["content"][0]["reasoningContent"]["reasoningText"]["text"] == "let me look"
    assert second["inferenceConfig"] == {"maxTokens": 500}


def test_a_pair_of_keys_signs_the_request_as_botocore_does(server: StrictServer) -> None:
    ask(
        bedrock(server, f"{PAIR}:session/token=="), ModelRequest(model=CONVERSE_MODEL, messages=(build_user_body("x"),))
    )

    sent = server.requests[0]
    path = sent.head.split(" ")[1]
    again = AWSRequest(
        method="POST",
        url=f"{server.base_url.removesuffix('/v1')}{path}",
        data=sent.body,
        headers={"Content-Type": "application/json"},
    )
    identity, _, secret = PAIR.partition(":")
    signer = SigV4Auth(Credentials(identity, secret, "session/token=="), "bedrock", "eu-central-1")
    at = datetime.strptime(sent.header("X-Amz-Date") or "", "%Y%m%dT%H%M%SZ")
    again.context["timestamp"] = at.strftime("%Y%m%dT%H%M%SZ")
    again.headers["X-Amz-Date"] = again.context["timestamp"]
    again.headers["X-Amz-Security-Token"] = "session/token=="
    signature = signer.signature(signer.string_to_sign(again, signer.canonical_request(again)), again)
    assert (sent.header("Authorization") or "").endswith(f"Signature={signature}")
    assert "/eu-central-1/bedrock/aws4_request" in (sent.header("Authorization") or "")
    assert sent.header("X-Amz-Security-Token") == "session/token=="


def test_no_part_of_a_pair_of_keys_is_in_a_message(server: StrictServer) -> None:
    identity, _, secret = PAIR.partition(":")
    server.faults(status(403, f"The security token {identity} with {secret} is invalid"))

    with pytest.raises(ModelCallError) as raised:
        ask(bedrock(server, PAIR), ModelRequest(model="m", messages=(build_user_body("x"),)))

    assert raised.value.kind is FailureKind.AUTH
    assert secret not in str(raised.value)
    assert identity not in str(raised.value)


def test_the_name_of_an_error_is_read_from_its_header() -> None:
    def refuse(_: Received, reply: Reply) -> None:
        reply.document(429, {"message": "wait"}, "x-amzn-ErrorType: ServiceQuotaExceededException:http://x/")

    with FaultServer(refuse) as server, pytest.raises(ModelCallError) as raised:
        ask(
            BedrockConverse(Endpoint(base_url=server.base_url, api_key="k")),
            ModelRequest(model="m", messages=(build_user_body("x"),)),
        )

    assert raised.value.kind is FailureKind.RATE_LIMIT


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"message": "Too many tokens, please wait before trying again."}, FailureKind.RATE_LIMIT),
        ({"message": "Input is too long for requested model."}, FailureKind.CONTEXT_OVERFLOW),
    ],
)
def test_an_exception_in_a_stream_is_judged_by_its_name_and_text(
    server: StrictServer, said: dict[str, str], kind: FailureKind
) -> None:
    name = "throttlingException" if kind is FailureKind.RATE_LIMIT else "validationException"
    data = frame({":message-type": "exception", ":exception-type": name}, json.dumps(said).encode())
    server.faults(instead_of_event(1, data))

    with pytest.raises(ModelCallError) as raised:
        ask(bedrock(server), ModelRequest(model="m", messages=(build_user_body("x"),)))

    assert raised.value.kind is kind


BROKEN_FRAMES = {
    "a wrong checksum": frame({":event-type": "x"}, b"{}")[:-1] + b"\xff",
    "no JSON": frame({":message-type": "event", ":event-type": "contentBlockDelta"}, b"{not json"),
    "half a header": b"\x00\x00\x00\x20\x00\x00\x00\xff" + b"\x00" * 24,
    "a block nobody began": frame(
        {":message-type": "event", ":event-type": "contentBlockDelta"},
        b'{"contentBlockIndex": 7, "delta": {"toolUse": {"input": "{}"}}}',
    ),
    "a block without a number": frame({":message-type": "event", ":event-type": "contentBlockDelta"}, b"{}"),
}


@pytest.mark.parametrize("name", BROKEN_FRAMES)
def test_a_frame_that_is_no_frame_is_noticed(server: StrictServer, name: str) -> None:
    server.faults(instead_of_event(1, BROKEN_FRAMES[name]))

    with pytest.raises(ModelCallError) as raised:
        ask(bedrock(server), ModelRequest(model="m", messages=(build_user_body("x"),)))

    assert raised.value.kind is FailureKind.SERVER_ERROR


def test_a_model_that_does_not_stream_or_cache_is_asked_in_another_way() -> None:
    paths: list[str] = []

    def answer(request: Received, reply: Reply) -> None:
        paths.append(request.head.split(" ")[1])
        if "cachePoint" in request.body.decode():
            reply.document(400, {"message": "extraneous key [cachePoint] is not permitted"})
        elif paths[-1].endswith("-stream"):
            reply.document(400, {"message": "This action doesn't support streaming: use of stream is not supported."})
        else:
            reply.document(200, VENDOR_RULES["converse"].document(HELLO))

    marked = dump_canonical_json(
        {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}
    )
    with FaultServer(answer) as server:
        asked = BedrockConverse(Endpoint(base_url=server.base_url, api_key="k"))
        for _ in range(2):
            assert ask(asked, ModelRequest(model="m", messages=(marked,))).text == HELLO.text

    assert [path.rpartition("/")[2] for path in paths] == ["converse-stream", "converse-stream", "converse", "converse"]


def test_a_request_without_tools_tells_calls_as_text(server: StrictServer) -> None:
    """The last request of a run that used up its budget has no tools, and its history has calls."""
    call = {"id": "c" * 90, "type": "function", "function": {"name": "look", "arguments": "{}"}}
    rows = (
        dump_canonical_json({"role": "user", "content": "q"}),
        dump_canonical_json({"role": "assistant", "content": None, "tool_calls": [call]}),
        build_tool_body("c" * 90, "seen"),
    )
    asked = bedrock(server)
    ask(asked, ModelRequest(model="m", messages=rows))
    ask(asked, ModelRequest(model="m", messages=rows, tools=(TOOL,)))

    assert b"[called look with {}]" in server.requests[0].body
    used = server.requests[1].document["messages"][1]["content"][0]["toolUse"]["toolUseId"]
    assert len(used) <= 64
    assert server.refusals == []


# -------------------------------------------------------------------------------------------------------------- gemini


def test_what_gemini_signed_goes_back_with_its_call(server: StrictServer) -> None:
    server.says(CALLING)
    asked = gemini(server)
    request = ModelRequest(model="gemini-3-strict", messages=(build_user_body("hi"),), tools=(TOOL,))
    reply = ask(asked, request)
    turn = stored(
        "gemini_generate", build_user_body("hi"), build_assistant_body(reply), build_tool_body("call_1", "seen")
    )
    server.says(HELLO)
    ask(asked, replace(request, messages=turn))

    model_turn = server.requests[-1].document["contents"][1]["parts"]
    signed = next(part for part in model_turn if "functionCall" in part)
    assert signed["thoughtSignature"]
    assert server.refusals == []


def test_a_call_of_another_model_says_that_it_is_not_signed() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    rows = (
        build_user_body("q"),
        dump_canonical_json({"role": "assistant", "content": None, "tool_calls": [call]}),
        build_tool_body("c1", "seen"),
    )
    endpoint = Endpoint(base_url="http://127.0.0.1/v1beta")

    def turn(model: str) -> Any:
        request = ModelRequest(model=model, messages=rows, tools=(TOOL,))
        return json.loads(gemini_generate.build_request_body(request, endpoint, gemini_generate.Dialect()))["contents"][
            1
        ]

    assert turn("gemini-3-pro")["parts"][0]["thoughtSignature"] == "skip_thought_signature_validator"
    assert "thoughtSignature" not in turn("gemini-2.5-pro")["parts"][0]


@pytest.mark.parametrize(
    ("model", "effort", "thinking"),
    [
        ("gemini-3-pro", "xhigh", {"includeThoughts": True, "thinkingLevel": "high"}),
        ("gemini-3.1-flash", "none", {"includeThoughts": True, "thinkingLevel": "low"}),
        ("gemini-2.5-flash", "none", {"includeThoughts": False, "thinkingBudget": 0}),
        ("gemini-2.5-flash", "high", {"includeThoughts": True, "thinkingBudget": 16_000}),
        ("gemini-2.5-flash", None, None),
    ],
)
def test_an_effort_is_a_level_or_a_budget(model: str, effort: str | None, thinking: object) -> None:
    request = ModelRequest(model=model, messages=(build_user_body("x"),), reasoning_effort=effort)
    sent = gemini_generate.build_request_body(request, Endpoint(base_url="http://127.0.0.1"), gemini_generate.Dialect())
    assert json.loads(sent).get("generationConfig", {}).get("thinkingConfig") == thinking


def test_a_prompt_that_is_blocked_is_blocked_content(server: StrictServer) -> None:
    server.faults(body(200, json.dumps({"promptFeedback": {"blockReason": "SAFETY"}}).encode()))

    reply = ask(gemini(server), ModelRequest(model="m", messages=(build_user_body("x"),)))

    assert (reply.text, reply.finish_reason) == ("", "content_filter")


def test_a_call_without_an_id_gets_one_that_every_worker_makes(server: StrictServer) -> None:
    chunk = {
        "candidates": [
            {"content": {"parts": [{"functionCall": {"name": "look", "args": {"b": 1}}}]}, "finishReason": "STOP"}
        ]
    }
    server.faults(*[body(200, json.dumps(chunk).encode())] * 2)

    first, second = (ask(gemini(server), ModelRequest(model="m", messages=(build_user_body("x"),))) for _ in range(2))

    assert first.tool_requests == second.tool_requests
    assert len(first.tool_requests[0].id) == 9


# ------------------------------------------------------------------------------------------------------------ the door


def test_both_come_in_as_extensions_with_their_rows(tmp_path: Path) -> None:
    settings = load_settings(
        {"HERMES_PROVIDER": "aws", "AWS_BEARER_TOKEN_BEDROCK": "k", "HERMES_MODEL": "m"}, home=tmp_path
    )
    wire, endpoint = find_wire_and_endpoint(settings)
    assert (wire, endpoint.base_url) == ("bedrock_converse", "https://bedrock-runtime.us-east-1.amazonaws.com")
    options = '{"bedrock": {"region": "eu-central-1", "service_tier": "flex"}}'
    there = find_endpoint(load_settings({**_environ("bedrock"), "HERMES_MODEL_PROVIDERS": options}, home=tmp_path))
    assert (there.base_url, there.region) == ("https://bedrock-runtime.eu-central-1.amazonaws.com", "eu-central-1")
    assert isinstance(build_provider(_Chosen(provider="gemini-native", api_key="k")), GeminiGenerate)
    row = find_provider("gemini-native")
    assert row is not None
    assert not row.is_called
    assert [name for name, row in list_wire_rows().items() if not row.is_called] == [
        "bedrock_converse",
        "gemini_generate",
    ]


def _environ(provider: str) -> dict[str, str]:
    return {"HERMES_PROVIDER": provider, "BEDROCK_API_KEY": "k", "HERMES_MODEL": "m"}


class _Chosen:
    base_url = api_mode = None
    model = "m"

    def __init__(self, *, provider: str, api_key: str) -> None:
        self.provider, self.api_key = provider, api_key


def test_without_the_extra_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("botocore") or name.endswith("bedrock_converse")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "botocore", None)
    monkeypatch.setitem(sys.modules, "botocore.auth", None)

    with pytest.raises(ConfigurationError, match=r"bedrock_converse.*pip install 'hermes-worker\[bedrock\]'"):
        build_provider(_Chosen(provider="bedrock", api_key="another-key"))


def test_declaring_them_imports_nothing_of_their_vendors() -> None:
    code = (
        "import sys; from hermes_worker.models.catalog import list_provider_rows, list_wire_rows;"
        "assert list_provider_rows()['bedrock'] and list_wire_rows()['gemini_generate'];"
        "assert not {'botocore', 'google.genai', 'httpx2', 'openai'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_images_are_sent_as_bytes_and_what_cannot_be_sent_is_told() -> None:
    png = base64.b64encode(b"\x89PNG").decode()
    rows = (
        dump_canonical_json(
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}},
                    {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
                ],
            }
        ),
    )
    request = ModelRequest(model="m", messages=rows)
    sent = bedrock_converse.build_request_body(request, Endpoint(base_url="http://x"), bedrock_converse.Dialect())
    first, second = json.loads(sent)["messages"][0]["content"]
    assert first == {"image": {"format": "png", "source": {"bytes": png}}}
    assert "https://x.test/a.png" in second["text"]
