import ctypes
import os
from dataclasses import dataclass

import pytest
from support.fault_server import FaultServer, say_hello

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.messages import ModelRequest, build_user_body
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.factory import build_provider
from hermes_worker.models.wires.anthropic_messages import AnthropicMessages
from hermes_worker.models.wires.openai_chat import OpenAIChat
from hermes_worker.models.wires.openai_responses import OpenAIResponses


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    base_url: str | None = None
    api_key: str | None = None
    model: str = "m"
    api_mode: str | None = None
    provider: str | None = None


def endpoint_for(settings: Settings) -> Endpoint:
    provider = build_provider(settings)
    assert isinstance(provider, OpenAIChat)
    return provider.endpoint


def test_a_provider_name_and_a_key_are_enough() -> None:
    endpoint = endpoint_for(Settings(provider="openrouter", api_key="k"))

    assert endpoint.base_url == "https://openrouter.ai/api/v1"
    assert endpoint.headers


def test_an_address_alone_is_enough_for_a_server_of_ones_own() -> None:
    with FaultServer(say_hello) as server:
        provider = build_provider(Settings(base_url=server.base_url))
        request = ModelRequest(model="m", messages=(build_user_body("x"),))

        assert provider.ask(request, on_delta=lambda _: None, abort=AbortSignal()).text == "hello"


def test_an_address_brings_the_rules_of_its_provider() -> None:
    endpoint = endpoint_for(Settings(base_url="https://me.openai.azure.com/openai/v1", api_key="k"))

    assert (endpoint.provider, endpoint.key_header) == ("azure", "api-key")


def test_a_look_alike_address_gets_no_rules_of_a_provider() -> None:
    assert endpoint_for(Settings(base_url="https://api.openai.com.evil.test/v1", api_key="k")).provider == "custom"


def test_the_same_settings_share_one_provider() -> None:
    settings = Settings(provider="groq", api_key="k")

    assert build_provider(settings) is build_provider(Settings(provider="groq", api_key="k"))
    assert build_provider(settings) is not build_provider(Settings(provider="groq", api_key="other"))


def test_a_forked_child_builds_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(provider="groq", api_key="k")
    parent = build_provider(settings)

    monkeypatch.setattr(os, "getpid", lambda: ctypes.c_int32(123456).value)

    assert build_provider(settings) is not parent


def test_local_servers_may_be_silent_for_longer() -> None:
    assert endpoint_for(Settings(provider="ollama")).read_timeout_s == 900
    assert endpoint_for(Settings(provider="groq", api_key="k")).read_timeout_s == 120


@pytest.mark.parametrize(
    ("settings", "wire"),
    [
        (Settings(provider="openai", api_key="k", model="gpt-5"), OpenAIResponses),
        (Settings(provider="xai", api_key="k"), OpenAIResponses),
        (Settings(provider="anthropic", api_key="k"), AnthropicMessages),
        (Settings(provider="minimax", api_key="k"), AnthropicMessages),
        (Settings(base_url="http://127.0.0.1/anthropic"), AnthropicMessages),
        (Settings(api_mode="codex_responses", base_url="http://127.0.0.1/v1"), OpenAIResponses),
        (Settings(provider="groq", api_key="k"), OpenAIChat),
    ],
)
def test_each_provider_is_spoken_to_over_its_wire(settings: Settings, wire: type) -> None:
    assert isinstance(build_provider(settings), wire)


def test_anthropic_is_reached_through_its_compatible_address_on_request() -> None:
    endpoint = endpoint_for(Settings(provider="anthropic", api_key="k", api_mode="chat_completions"))

    assert endpoint.base_url == "https://api.anthropic.com/v1"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (Settings(api_mode="openai", base_url="http://127.0.0.1/v1"), "model.api_mode"),
        (Settings(api_mode="codex_app_server", base_url="https://x.test"), "model.api_mode"),
        (Settings(provider="bedrock", base_url="https://x.test"), "AWS_BEARER_TOKEN_BEDROCK"),
        (Settings(provider="opnai"), "model.provider"),
        (Settings(), "HERMES_BASE_URL"),
        (Settings(provider="azure", api_key="k"), "HERMES_BASE_URL"),
        (Settings(provider="openrouter"), "OPENROUTER_API_KEY"),
        (Settings(provider="openrouter", api_key="  "), "OPENROUTER_API_KEY"),
        (Settings(base_url="localhost:11434"), "HERMES_BASE_URL"),
        (Settings(base_url="ftp://x.test"), "HERMES_BASE_URL"),
        (Settings(base_url="http://x.test:port/v1"), "HERMES_BASE_URL"),
        (Settings(base_url="http://[broken/v1"), "HERMES_BASE_URL"),
        (Settings(base_url="http://x.test:99999/v1"), "HERMES_BASE_URL"),
        (Settings(base_url="http://a b/v1"), "HERMES_BASE_URL"),
        (Settings(base_url="http:///v1"), "HERMES_BASE_URL"),
        (Settings(base_url="http://x.test/v1\r\nX-Injected: yes"), "HERMES_BASE_URL"),
        (Settings(base_url="http://user:hunter2@x.test/v1"), "HERMES_BASE_URL"),
    ],
)
def test_settings_that_cannot_work_name_what_to_change(settings: Settings, named: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        build_provider(settings)

    assert named in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("host", ["x.test", "under_score", "[::1]", "127.0.0.1", "bücher.test", "X.Test"])
def test_addresses_of_every_kind_are_taken(host: str) -> None:
    assert build_provider(Settings(base_url=f"http://{host}:8000/v1", api_key="k"))


@pytest.mark.parametrize("key", ["two words", "line\r\nX-Injected: yes", "tab\tkey", "schlüssel", "nul\0"])
def test_a_key_that_could_break_a_header_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        build_provider(Settings(base_url="http://127.0.0.1:1/v1", api_key=key))

    assert "model.api_key" in str(raised.value)
    assert key not in str(raised.value)


def test_only_plain_proxies_are_taken() -> None:
    with pytest.raises(ConfigurationError, match="proxy"):
        build_provider(Settings(base_url="http://127.0.0.1:1/v1"), proxy_url="socks5://127.0.0.1:1")
