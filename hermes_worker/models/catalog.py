"""The providers we know, as data, and the rules that depend on who answers.

Addresses, key variables and aliases are those of Hermes Agent 0.19 and of the providers' own documentation. A default
model is only what is used when a user names a provider and no model; every one can be replaced in the settings.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import urlsplit

from hermes_worker import installed
from hermes_worker.extension import Extension, Installed, WireDeclaration


class Wire(StrEnum):
    """How requests and replies are written: the names that rules of ours speak of. The values are those of the
    ``api_mode`` setting; extensions may bring more."""

    CHAT_COMPLETIONS = "chat_completions"
    CODEX_RESPONSES = "codex_responses"
    ANTHROPIC_MESSAGES = "anthropic_messages"
    BEDROCK_CONVERSE = "bedrock_converse"
    CODEX_APP_SERVER = "codex_app_server"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRow:
    """One provider."""

    name: str
    base_url: str
    """Empty where every user has an address of their own."""
    default_model: str
    """Empty where no name is valid for everybody."""
    key_variables: tuple[str, ...] = ()
    """Environment variables that may hold the key, first match wins; empty when no key is needed."""
    aliases: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    """Hosts, with their subdomains, that belong to this provider."""
    chat_base_url: str | None = None
    """Where its chat completions are, when ``base_url`` speaks another wire."""
    needs_key: bool = True
    key_header: str = "Authorization"
    headers: Mapping[str, str] = field(default_factory=dict)
    sends_stream_options: bool = True
    sends_cache_key: bool = False
    cuts_silently: bool = False
    """Drops the beginning of what is too long without a word, so its window must be known before."""
    is_aggregator: bool = False
    """Serves models of many vendors under ``vendor/model`` names."""


_ROWS: tuple[ProviderRow, ...] = (
    ProviderRow(
        name="openrouter",
        base_url="https://openrouter.ai/api/v1",
        default_model="anthropic/claude-sonnet-4.6",
        key_variables=("OPENROUTER_API_KEY",),
        aliases=("or",),
        hosts=("openrouter.ai",),
        headers={"X-Title": "Hermes worker"},
        is_aggregator=True,
    ),
    ProviderRow(
        name="openai",
        base_url="https://api.openai.com/v1",
        default_model="gpt-5.4",
        key_variables=("OPENAI_API_KEY",),
        hosts=("api.openai.com",),
        sends_cache_key=True,
    ),
    ProviderRow(
        name="anthropic",
        base_url="https://api.anthropic.com",
        chat_base_url="https://api.anthropic.com/v1",
        default_model="claude-sonnet-4-6",
        key_variables=("ANTHROPIC_API_KEY",),
        aliases=("claude",),
        hosts=("api.anthropic.com",),
    ),
    ProviderRow(
        name="google",
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        default_model="gemini-3-flash-preview",
        key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        aliases=("gemini", "google-gemini", "google-ai-studio"),
        hosts=("generativelanguage.googleapis.com",),
    ),
    ProviderRow(
        name="deepseek",
        base_url="https://api.deepseek.com/v1",
        default_model="deepseek-chat",
        key_variables=("DEEPSEEK_API_KEY",),
        hosts=("api.deepseek.com",),
    ),
    ProviderRow(
        name="kimi",
        base_url="https://api.moonshot.ai/v1",
        default_model="kimi-k2.5",
        key_variables=("KIMI_API_KEY", "MOONSHOT_API_KEY"),
        aliases=("moonshot", "kimi-coding"),
        hosts=("moonshot.ai", "api.kimi.com"),
    ),
    ProviderRow(
        name="kimi-cn",
        base_url="https://api.moonshot.cn/v1",
        default_model="kimi-k2.5",
        key_variables=("KIMI_CN_API_KEY", "MOONSHOT_API_KEY"),
        aliases=("moonshot-cn", "kimi-coding-cn"),
        hosts=("moonshot.cn",),
    ),
    ProviderRow(
        name="qwen",
        base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        default_model="qwen-plus",
        key_variables=("DASHSCOPE_API_KEY",),
        aliases=("dashscope", "alibaba", "alibaba-cloud", "aliyun"),
        hosts=("dashscope-intl.aliyuncs.com", "dashscope.aliyuncs.com"),
    ),
    ProviderRow(
        name="zai",
        base_url="https://api.z.ai/api/paas/v4",
        default_model="glm-5",
        key_variables=("GLM_API_KEY", "ZAI_API_KEY", "Z_AI_API_KEY"),
        aliases=("glm", "z-ai", "z.ai", "zhipu"),
        hosts=("api.z.ai", "open.bigmodel.cn"),
    ),
    ProviderRow(
        name="minimax",
        base_url="https://api.minimax.io/anthropic",
        chat_base_url="https://api.minimax.io/v1",
        default_model="MiniMax-M3",
        key_variables=("MINIMAX_API_KEY",),
        aliases=("mini-max",),
        hosts=("api.minimax.io", "api.minimaxi.com"),
    ),
    ProviderRow(
        name="xai",
        base_url="https://api.x.ai/v1",
        default_model="grok-4",
        key_variables=("XAI_API_KEY",),
        aliases=("grok", "x-ai", "x.ai"),
        hosts=("api.x.ai",),
    ),
    ProviderRow(
        name="groq",
        base_url="https://api.groq.com/openai/v1",
        default_model="openai/gpt-oss-120b",
        key_variables=("GROQ_API_KEY",),
        hosts=("api.groq.com",),
        is_aggregator=True,
    ),
    ProviderRow(
        name="nous",
        base_url="https://inference-api.nousresearch.com/v1",
        default_model="Hermes-4-405B",
        key_variables=("NOUS_API_KEY",),
        aliases=("nousresearch",),
        hosts=("inference-api.nousresearch.com",),
        is_aggregator=True,
    ),
    ProviderRow(
        name="azure",
        base_url="",
        default_model="",
        key_variables=("AZURE_OPENAI_API_KEY",),
        aliases=("azure-openai", "azure-foundry"),
        hosts=("openai.azure.com", "services.ai.azure.com", "cognitiveservices.azure.com"),
        key_header="api-key",
    ),
    ProviderRow(
        name="ollama",
        base_url="http://127.0.0.1:11434/v1",
        default_model="",
        needs_key=False,
        cuts_silently=True,
    ),
    ProviderRow(
        name="lmstudio",
        base_url="http://127.0.0.1:1234/v1",
        default_model="",
        aliases=("lm-studio",),
        needs_key=False,
    ),
    ProviderRow(
        name="vllm",
        base_url="http://127.0.0.1:8000/v1",
        default_model="",
        key_variables=("VLLM_API_KEY",),
        needs_key=False,
    ),
    ProviderRow(
        name="scripted",
        base_url="",  # wherever the stand-in of this installation listens
        default_model="scripted",
        needs_key=False,
    ),
    ProviderRow(
        name="custom",
        base_url="",
        default_model="",
        key_variables=("HERMES_API_KEY",),
        needs_key=False,
    ),
)

EXTENSION = Extension(
    name="providers",
    version="1",
    summary="The built-in providers of models and the ways to speak to them",
    providers=_ROWS,
    wires=(
        WireDeclaration(
            name=Wire.CHAT_COMPLETIONS.value, implementation="hermes_worker.models.wires.openai_chat:OpenAIChat"
        ),
        WireDeclaration(
            name=Wire.CODEX_RESPONSES.value,
            implementation="hermes_worker.models.wires.openai_responses:OpenAIResponses",
        ),
        WireDeclaration(
            name=Wire.ANTHROPIC_MESSAGES.value,
            implementation="hermes_worker.models.wires.anthropic_messages:AnthropicMessages",
        ),
    ),
)


@lru_cache(maxsize=4)
def _rows_of(found: Installed) -> Mapping[str, ProviderRow]:
    return MappingProxyType({row.name: row for row in installed.rows(ProviderRow, found.providers.values())})


@lru_cache(maxsize=4)
def _by_any_name(found: Installed) -> Mapping[str, ProviderRow]:
    return {name.lower(): row for row in _rows_of(found).values() for name in (row.name, *row.aliases)}


def provider_rows() -> Mapping[str, ProviderRow]:
    """The rows of all enabled extensions, by name."""
    return _rows_of(installed.current())


def find_provider(name: str) -> ProviderRow | None:
    """The row with this name or alias, in any case; ``None`` when there is none."""
    return _by_any_name(installed.current()).get(name.strip().lower())


def provider_of_host(base_url: str) -> ProviderRow | None:
    """The row whose host this is; ``None`` for a server of the user's own."""
    return next(
        (row for row in provider_rows().values() if any(host_matches(base_url, host) for host in row.hosts)), None
    )


# ------------------------------------------------------------------------------------------------------------- hosts


def hostname(base_url: str) -> str:
    """The host of an address, lower case, without port and trailing dot; empty when there is none.

    Rules about a provider look at this and never at the text of the address, where anybody may write any name.
    """
    text = base_url.strip()
    try:
        host = urlsplit(text if "://" in text else f"//{text}").hostname
    except ValueError:
        return ""
    return (host or "").removesuffix(".")


def host_matches(base_url: str, domain: str) -> bool:
    """Whether the host is ``domain`` or below it."""
    host = hostname(base_url)
    return host == domain or host.endswith(f".{domain}")


def is_local(base_url: str) -> bool:
    """Whether the host is this machine or a private address, where models are slow and nobody drops idle streams."""
    host = hostname(base_url)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        is_single_label = bool(host) and "." not in host  # a name of this network, such as a compose service
        return is_single_label or host.endswith((".localhost", ".local", ".internal"))
    return address.is_loopback or address.is_private


# -------------------------------------------------------------------------------------------------------------- wire


@dataclass(frozen=True, slots=True, kw_only=True)
class WireChoice:
    wire: str
    provider: str
    """The catalogue's name for it, or what was given in lower case; filled in from the host where none was given."""
    is_explicit: bool
    """The user asked for this wire; nothing may replace it."""


def resolve_wire(*, api_mode: str | None, provider: str | None, base_url: str, model: str) -> WireChoice:
    """Which wire to speak: the table of docs/behaviour.md, "Wires", then its rule for GPT-5. Pure.

    An ``api_mode`` that is no ``Wire`` counts as not given, as in the original; the factory has rejected it before.
    """
    row = find_provider(provider or "")
    name = row.name if row else (provider or "").strip().lower()
    if api_mode and api_mode in {*Wire, *installed.current().wires}:
        return WireChoice(wire=Wire(api_mode) if api_mode in set(Wire) else api_mode, provider=name, is_explicit=True)
    wire, name = _default_wire(name, base_url)
    if wire is Wire.CHAT_COMPLETIONS and _is_upgraded(name, base_url, model):
        wire = Wire.CODEX_RESPONSES
    return WireChoice(wire=wire, provider=name, is_explicit=False)


def _default_wire(provider: str, base_url: str) -> tuple[Wire, str]:
    if provider in ("openai-codex", "xai", "xai-oauth"):
        return Wire.CODEX_RESPONSES, provider
    if not provider and host_matches(base_url, "chatgpt.com") and "/backend-api/codex" in urlsplit(base_url).path:
        return Wire.CODEX_RESPONSES, "openai-codex"
    if not provider and hostname(base_url) == "api.x.ai":
        return Wire.CODEX_RESPONSES, "xai"
    if provider == "anthropic" or (not provider and hostname(base_url) == "api.anthropic.com"):
        return Wire.ANTHROPIC_MESSAGES, "anthropic"
    if base_url.rstrip("/").endswith("/anthropic"):
        return Wire.ANTHROPIC_MESSAGES, provider
    if provider == "bedrock" or _is_bedrock(base_url):
        return Wire.BEDROCK_CONVERSE, provider or "bedrock"
    return Wire.CHAT_COMPLETIONS, provider


def _is_bedrock(base_url: str) -> bool:
    return hostname(base_url).startswith("bedrock-runtime.") and host_matches(base_url, "amazonaws.com")


def _is_upgraded(provider: str, base_url: str, model: str) -> bool:
    """GPT-5 speaks Responses (docs/behaviour.md, "Wires")."""
    if provider in ("nous", "custom") or is_azure(base_url):
        return False
    slug = model.rpartition("/")[2].lower()
    if provider == "copilot":
        return _is_copilot_responses(slug)
    return hostname(base_url) == "api.openai.com" or slug.startswith("gpt-5")


def _is_copilot_responses(slug: str) -> bool:
    major = slug.removeprefix("gpt-").partition(".")[0].partition("-")[0] if slug.startswith("gpt-") else ""
    return major.isdigit() and int(major) >= 5 and not slug.startswith("gpt-5-mini")


def is_azure(base_url: str) -> bool:
    return any(host_matches(base_url, host) for host in provider_rows()["azure"].hosts)


# ------------------------------------------------------------------------------------------------- rules by the model

_NEW_CAP_FAMILIES = ("gpt-4o", "chatgpt-4o", "gpt-4.1", "gpt-5", "o1", "o3", "o4")


def output_cap_parameter(base_url: str, model: str) -> str:
    """The name of the output limit in a chat completion (docs/behaviour.md, "Clients")."""
    if hostname(base_url) == "api.openai.com" or is_azure(base_url) or host_matches(base_url, "githubcopilot.com"):
        return "max_completion_tokens"
    return "max_completion_tokens" if forces_completion_cap(model) else "max_tokens"


def forces_completion_cap(model: str) -> bool:
    """Whether the model's family rejects ``max_tokens`` wherever it is served."""
    slug = model.strip().lower().rpartition("/")[2]
    return any(_is_family(slug, family) for family in _NEW_CAP_FAMILIES)


def _is_family(slug: str, family: str) -> bool:
    """``o1-mini`` is an ``o1``; ``o1x`` and ``gpt-4omni`` are not known."""
    return slug.startswith(family) and not slug[len(family) : len(family) + 1].isalnum()


LOCAL_SILENCE_S = 900.0
"""A local server may chew on a long prompt for minutes before the first byte (docs/behaviour.md, "Time-outs")."""

_SILENCE_S: tuple[tuple[str, float], ...] = (
    ("deepseek-r1", 600.0),
    ("deepseek-reasoner", 600.0),
    ("o1", 600.0),
    ("o3", 600.0),
    ("o4", 600.0),
    ("claude-opus-4", 240.0),
    ("qwen3", 180.0),
    ("qwq", 180.0),
)


def silence_s(model: str) -> float:
    """How long this model may think without a byte; 0 when nothing is known about it (docs/behaviour.md,
    "Time-outs")."""
    slug = model.strip().lower().rpartition("/")[2]
    return next((seconds for family, seconds in _SILENCE_S if _is_family(slug, family)), 0.0)
