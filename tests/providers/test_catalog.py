import pytest

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.model_families import find_traits, is_host
from hermes_worker.models.catalog import (
    ProviderRow,
    Wire,
    build_provider_address,
    choose_output_cap_parameter,
    find_provider,
    find_provider_by_host,
    find_stated_window,
    is_local,
    list_provider_rows,
    parse_hostname,
    resolve_wire,
    silence_s,
)

# --------------------------------------------------------------------------------------------------------------- rows


def test_every_name_and_alias_means_one_provider() -> None:
    names = [name for row in list_provider_rows().values() for name in (row.name, *row.aliases)]

    assert len(names) == len(set(names))
    assert all(name == name.lower() for name in names)


def test_the_catalogue_holds_the_providers_people_use() -> None:
    wanted = "openrouter openai anthropic google deepseek kimi moonshot qwen dashscope zai glm minimax xai groq"
    wanted += " ollama lmstudio vllm custom azure"

    assert [name for name in wanted.split() if find_provider(name) is None] == []


def test_every_address_is_https_or_on_this_machine() -> None:
    for row in list_provider_rows().values():
        for url in filter(None, (row.base_url, row.chat_base_url)):
            assert url.startswith("https://") or is_local(url), url
            assert not url.endswith("/")


def test_a_provider_that_needs_a_key_says_where_from() -> None:
    assert [row.name for row in list_provider_rows().values() if row.needs_key and not row.key_variables] == []


@pytest.mark.parametrize("row", list_provider_rows().values(), ids=lambda row: row.name)
def test_a_provider_owns_its_own_address(row: ProviderRow) -> None:
    if row.hosts and row.base_url:
        assert find_provider_by_host(row.base_url) is row


def test_every_row_says_where_it_was_read() -> None:
    assert [row.name for row in list_provider_rows().values() if not row.source.strip()] == []


def test_a_provider_without_a_common_address_says_what_its_address_looks_like() -> None:
    without = [
        row for row in list_provider_rows().values() if not row.base_url and row.name not in ("custom", "scripted")
    ]
    assert [row.name for row in without if not row.address_form] == []


@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        ("https://opencode.ai/zen/v1", "opencode-zen"),
        ("https://opencode.ai/zen/go/v1", "opencode-go"),
        ("https://coding-intl.dashscope.aliyuncs.com/v1", "alibaba-coding-plan"),
        ("https://dashscope-us.aliyuncs.com/compatible-mode/v1", "qwen"),
        ("https://api.minimaxi.com/v1", "minimax-cn"),
        ("https://chatgpt.com/backend-api/codex", "openai-codex"),
        ("https://eu.api.openai.com/v1", "openai"),
    ],
)
def test_the_narrowest_row_owns_an_address(base_url: str, name: str) -> None:
    row = find_provider_by_host(base_url)
    assert row is not None
    assert row.name == name


def test_an_address_follows_the_region() -> None:
    kimi = list_provider_rows()["kimi"]
    assert (build_provider_address(kimi), build_provider_address(kimi, "cn")) == (
        "https://api.moonshot.ai/v1",
        "https://api.moonshot.cn/v1",
    )
    with pytest.raises(ConfigurationError, match=r"'kimi'.*'mars'.*cn"):
        build_provider_address(kimi, "mars")
    with pytest.raises(ConfigurationError, match=r"'groq'.*model\.base_url"):
        build_provider_address(list_provider_rows()["groq"], "eu")


def test_every_region_of_a_provider_is_an_address_of_its_own() -> None:
    for row in list_provider_rows().values():
        for url in row.regions.values():
            home = find_provider_by_host(url)
            assert url.startswith("https://"), url
            assert home is not None and home.key_variables[-1] in row.key_variables, url


# -------------------------------------------------------------------------------------------------------------- hosts


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("", ""),
        ("api.openai.com", "api.openai.com"),
        ("api.openai.com/v1", "api.openai.com"),
        ("https://API.OpenAI.com/v1", "api.openai.com"),
        ("https://api.openai.com./v1", "api.openai.com"),
        ("https://api.openai.com:443/v1", "api.openai.com"),
        ("https://api.openai.com.example/v1", "api.openai.com.example"),
        ("https://user:secret@evil.test/api.openai.com", "evil.test"),
        ("http://[::1]:11434/v1", "::1"),
        ("https://[broken", ""),
    ],
)
def test_the_host_is_parsed_and_not_searched_for(url: str, host: str) -> None:
    assert parse_hostname(url) == host


@pytest.mark.parametrize(
    ("url", "domain", "matches"),
    [
        ("https://openrouter.ai/api/v1", "openrouter.ai", True),
        ("https://eu.openrouter.ai/api/v1", "openrouter.ai", True),
        ("https://fake-openrouter.ai/v1", "openrouter.ai", False),
        ("https://openrouter.ai.example/v1", "openrouter.ai", False),
        ("https://evil.test/openrouter.ai/v1", "openrouter.ai", False),
        ("https://evil.test?x=openrouter.ai", "openrouter.ai", False),
        ("https://openrouter.ai@evil.test/v1", "openrouter.ai", False),
        ("", "openrouter.ai", False),
    ],
)
def test_look_alikes_do_not_match(url: str, domain: str, matches: bool) -> None:
    assert is_host(parse_hostname(url), domain) is matches


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:11434/v1", True),
        ("http://127.0.0.1:11434/v1", True),
        ("http://[::1]:11434/v1", True),
        ("http://192.168.1.9/v1", True),
        ("http://ollama:11434/v1", True),
        ("http://vllm.models.svc.cluster.local:8000/v1", True),
        ("https://api.openai.com/v1", False),
        ("http://8.8.8.8/v1", False),
        ("http://localhost.evil.test/v1", False),
        ("", False),
    ],
)
def test_local_servers_are_known_by_their_host(url: str, expected: bool) -> None:
    assert is_local(url) is expected


# --------------------------------------------------------------------------------------------------------------- wire


@pytest.mark.parametrize(
    ("api_mode", "provider", "base_url", "model", "wire"),
    [
        # 1: what the user says
        ("chat_completions", "anthropic", "https://api.anthropic.com", "claude", Wire.CHAT_COMPLETIONS),
        ("anthropic_messages", None, "http://127.0.0.1/v1", "m", Wire.ANTHROPIC_MESSAGES),
        ("nonsense", None, "http://127.0.0.1/v1", "m", Wire.CHAT_COMPLETIONS),
        # 2 and 3: by provider
        (None, "openai-codex", "", "m", Wire.CODEX_RESPONSES),
        (None, "xai", "https://api.x.ai/v1", "grok-4", Wire.CODEX_RESPONSES),
        (None, "Grok", "https://api.x.ai/v1", "grok-4", Wire.CODEX_RESPONSES),
        (None, "xai-oauth", "", "m", Wire.CODEX_RESPONSES),
        # 4 and 5: by host, without a provider
        (None, None, "https://chatgpt.com/backend-api/codex", "m", Wire.CODEX_RESPONSES),
        (None, None, "https://chatgpt.com/v1", "m", Wire.CHAT_COMPLETIONS),
        (None, None, "https://evil.test/chatgpt.com/backend-api/codex", "m", Wire.CHAT_COMPLETIONS),
        (None, None, "https://api.x.ai/v1", "grok-4", Wire.CODEX_RESPONSES),
        (None, None, "https://api.x.ai.evil.test/v1", "grok-4", Wire.CHAT_COMPLETIONS),
        (None, "custom", "https://api.x.ai/v1", "grok-4", Wire.CHAT_COMPLETIONS),
        # 6 and 7
        (None, "anthropic", "https://proxy.test/v1", "m", Wire.ANTHROPIC_MESSAGES),
        (None, None, "https://api.anthropic.com", "m", Wire.ANTHROPIC_MESSAGES),
        (None, None, "https://evil.test/api.anthropic.com", "m", Wire.CHAT_COMPLETIONS),
        (None, "minimax", "https://api.minimax.io/anthropic/", "m", Wire.ANTHROPIC_MESSAGES),
        # 8
        (None, "bedrock", "", "m", Wire.BEDROCK_CONVERSE),
        (None, None, "https://bedrock-runtime.us-east-1.amazonaws.com", "m", Wire.BEDROCK_CONVERSE),
        (None, None, "https://bedrock-runtime.amazonaws.com.evil.test", "m", Wire.CHAT_COMPLETIONS),
        # 9
        (None, "openrouter", "https://openrouter.ai/api/v1", "anthropic/claude-sonnet-4.6", Wire.CHAT_COMPLETIONS),
        (None, None, "http://127.0.0.1:11434/v1", "qwen3", Wire.CHAT_COMPLETIONS),
        # models of one provider over different wires
        (None, "opencode-zen", "https://opencode.ai/zen/v1", "claude-sonnet-5", Wire.ANTHROPIC_MESSAGES),
        (None, None, "https://opencode.ai/zen/v1", "gpt-5.4", Wire.CODEX_RESPONSES),
        (None, "opencode-zen", "https://opencode.ai/zen/v1", "kimi-k2.6", Wire.CHAT_COMPLETIONS),
        (None, "opencode-go", "https://opencode.ai/zen/go/v1", "qwen3.6-plus", Wire.ANTHROPIC_MESSAGES),
        # the upgrade of GPT-5
        (None, "openai", "https://api.openai.com/v1", "gpt-4o", Wire.CODEX_RESPONSES),
        (None, None, "https://api.openai.com/v1", "gpt-5", Wire.CODEX_RESPONSES),
        (None, "openrouter", "https://openrouter.ai/api/v1", "openai/gpt-5.4", Wire.CODEX_RESPONSES),
        (None, "openrouter", "https://openrouter.ai/api/v1", "x/local-gpt-5", Wire.CHAT_COMPLETIONS),
        (None, "nous", "https://inference-api.nousresearch.com/v1", "openai/gpt-5", Wire.CHAT_COMPLETIONS),
        (None, "custom", "http://127.0.0.1/v1", "gpt-5", Wire.CHAT_COMPLETIONS),
        (None, None, "https://me.openai.azure.com/openai/v1", "gpt-5", Wire.CHAT_COMPLETIONS),
        (None, "copilot", "https://api.githubcopilot.com", "gpt-5.1", Wire.CODEX_RESPONSES),
        (None, "copilot", "https://api.githubcopilot.com", "gpt-5-mini", Wire.CHAT_COMPLETIONS),
        (None, "copilot", "https://api.githubcopilot.com", "gpt-4.1", Wire.CHAT_COMPLETIONS),
        (None, "copilot", "https://api.githubcopilot.com", "claude-sonnet-4.6", Wire.CHAT_COMPLETIONS),
        ("chat_completions", None, "https://api.openai.com/v1", "gpt-5", Wire.CHAT_COMPLETIONS),
    ],
)
def test_the_wire_follows_the_first_rule_that_holds(
    api_mode: str | None, provider: str | None, base_url: str, model: str, wire: Wire
) -> None:
    assert resolve_wire(api_mode=api_mode, provider=provider, base_url=base_url, model=model).wire is wire


@pytest.mark.parametrize(
    ("base_url", "provider"),
    [
        ("https://chatgpt.com/backend-api/codex", "openai-codex"),
        ("https://api.x.ai/v1", "xai"),
        ("https://api.anthropic.com", "anthropic"),
        ("http://127.0.0.1/v1", ""),
    ],
)
def test_the_host_names_the_provider_where_none_is_given(base_url: str, provider: str) -> None:
    assert resolve_wire(api_mode=None, provider=None, base_url=base_url, model="m").provider == provider


# ---------------------------------------------------------------------------------------------------- by the model


@pytest.mark.parametrize(
    "model",
    [
        *("gpt-4o", "gpt-4o-mini", "gpt-4.1", "gpt-5", "gpt-5.4", "gpt-5-nano", "chatgpt-4o-latest", "GPT-5"),
        *("o1", "o1-mini", "o3", "o3-mini", "o4-mini"),
        *("openai/gpt-5.4", "openai/chatgpt-4o-latest", "openai/o3-mini"),
    ],
)
def test_newer_families_force_the_newer_parameter(model: str) -> None:
    assert find_traits(model).output_cap == "max_completion_tokens"


@pytest.mark.parametrize(
    "model",
    ["gpt-3.5-turbo", "gpt-4", "gpt-4-turbo", "chatgpt", "claude-3-opus", "", "local-gpt-5-clone", "o1x", "olmo-3"],
)
def test_other_families_keep_the_older_parameter(model: str) -> None:
    assert find_traits(model).output_cap != "max_completion_tokens"


@pytest.mark.parametrize(
    ("base_url", "model", "parameter"),
    [
        ("https://api.openai.com/v1", "gpt-4", "max_completion_tokens"),
        ("https://me.openai.azure.com/openai/v1", "my-deployment", "max_completion_tokens"),
        ("https://api.githubcopilot.com", "claude", "max_completion_tokens"),
        ("https://openrouter.ai/api/v1", "openai/gpt-5", "max_completion_tokens"),
        ("https://openrouter.ai/api/v1", "anthropic/claude-sonnet-4.6", "max_tokens"),
        ("https://evil.test/api.openai.com", "m", "max_tokens"),
    ],
)
def test_the_output_limit_is_named_as_the_server_wants(base_url: str, model: str, parameter: str) -> None:
    assert choose_output_cap_parameter(base_url, model) == parameter


@pytest.mark.parametrize(
    ("model", "seconds"),
    [("o3", 600), ("openai/o1-pro", 600), ("deepseek/deepseek-r1", 600), ("qwen3-32b", 180), ("gpt-4", 0), ("", 0)],
)
def test_reasoning_models_may_be_silent_for_longer(model: str, seconds: float) -> None:
    assert silence_s(model) == seconds


def test_a_window_is_stated_by_the_provider_before_the_family() -> None:
    assert find_stated_window("groq", "openai/gpt-oss-120b") == 131_072
    assert find_stated_window("sambanova", "DeepSeek-V3.2") == 32_768
    assert find_stated_window("deepseek", "DeepSeek-V3.2") is None
