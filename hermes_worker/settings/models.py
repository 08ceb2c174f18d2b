"""The settings of which model answers, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from hermes_worker.core.credentials import Strategy
from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import (
    FALLBACKS,
    MODEL_SHARES,
    NO_OPTIONS,
    PRICES,
    PROVIDER_OPTIONS,
    SECRET,
    SECRETS,
    SWITCH,
    TENANT_KEYS,
    WEB_URL,
    ProviderOptions,
    Secret,
    TenantKey,
    integer,
    number,
    one_of,
    optional_integer,
    text_matching,
)

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Which model answers, and where."""

    name: str | None = declare_setting(
        "model.default",
        "HERMES_MODEL",
        text_matching(r"[\w.:/@+-]{1,200}", "a name without spaces"),
        audience="anyone",
        reason="the provider's usual model is not the one that you want; runs are asked of that without it.",
    )
    """Model of runs that name none, as the provider calls it. Not set: the provider's usual one."""
    provider: str | None = declare_setting(
        "model.provider",
        "HERMES_PROVIDER",
        text_matching(r"[a-z][\w.-]{0,63}", "the name of a provider", fold=str.lower),
        audience="anyone",
        reason="keys of several providers are there, or none; the first one found is asked without it.",
    )
    """Who serves the model: a name from the catalogue, `custom` for a server of your own, `scripted` for none. Not set:
    the provider of the base URL, or of the first key found."""
    base_url: str | None = declare_setting(
        "model.base_url",
        "HERMES_BASE_URL",
        WEB_URL,
        audience="anyone",
        reason="a server of your own or a gateway answers; the provider's own address is asked without it.",
    )
    """Address of the API. Not set: the provider's own, or OPENAI_BASE_URL and its like next to their keys."""
    api_key: Secret | None = declare_setting(  # noqa: RUF009 - a field
        "model.api_key",
        "HERMES_API_KEY",
        SECRET,
        audience="anyone",
        reason="the provider needs a key; only the scripted model answers without one.",
    )
    """Key of the API. Not set: OPENAI_API_KEY, ANTHROPIC_API_KEY or OPENROUTER_API_KEY, with their provider; a
    provider's key is never sent to another provider's address."""
    proxy_url: str | None = declare_setting(
        "model.proxy_url",
        "HERMES_MODEL_PROXY",
        WEB_URL,
        audience="operator",
        reason="the network has no other way out; no model can be reached there without it.",
    )
    """A proxy (http://) that all model calls go through. Not set: none, whatever HTTPS_PROXY says."""
    more_keys: tuple[Secret, ...] = declare_setting(
        "model.more_keys",
        "HERMES_MORE_API_KEYS",
        SECRETS,
        (),
        audience="operator",
        reason="one key is not enough; runs wait when its limit is reached without it.",
    )
    """More keys of the same provider, to use when one is spent or refused. Of a provider's usual variables, those
    with a number count too: OPENAI_API_KEY_2 and so on."""
    tenant_keys: tuple[TenantKey, ...] = declare_setting(
        "model.tenant_keys",
        "HERMES_TENANT_KEYS",
        TENANT_KEYS,
        (),
        audience="operator",
        reason="tenants pay for their own models; all use the installation's key without it.",
    )
    """Keys of providers that belong to tenants: `acme/openai=KEY`. A tenant that has any is asked for with these alone,
    and with no key of the installation. Several of one provider make a pool."""
    key_strategy: str = declare_setting(
        "model.key_strategy",
        "HERMES_KEY_STRATEGY",
        one_of(*(strategy.value for strategy in Strategy)),
        Strategy.FILL_FIRST.value,
        audience="operator",
        reason="several keys are to share the load; the first is used until it is spent without it.",
    )
    """Which of several keys a run takes."""
    refresh_tokens: tuple[Secret, ...] = declare_setting(
        "model.refresh_tokens",
        "HERMES_REFRESH_TOKENS",
        SECRETS,
        (),
        audience="operator",
        reason="the provider is used by a login and not by a key; it cannot be asked without it.",
    )
    """Refresh tokens of logins with the provider, used before any key. All workers share the access token through the
    database, encrypted with the refresh token; replace the refresh token here after a new login."""
    token_url: str | None = declare_setting(
        "model.token_url",
        "HERMES_TOKEN_URL",
        WEB_URL,
        audience="operator",
        reason="there are refresh tokens; a start is refused without it.",
    )
    """Where refresh tokens are exchanged (OAuth 2.0); https, or an address of this machine."""
    client_id: str | None = declare_setting(
        "model.client_id",
        "HERMES_OAUTH_CLIENT_ID",
        text_matching(r"[\x21-\x7e]{1,500}", "text without spaces"),
        audience="operator",
        reason="the token server knows clients by an id; it refuses the refresh token without it.",
    )
    """The client that logged in, as the token server knows it."""
    client_secret: Secret | None = declare_setting(  # noqa: RUF009 - a field
        "model.client_secret",
        "HERMES_OAUTH_CLIENT_SECRET",
        SECRET,
        audience="operator",
        reason="the token server gave the client a secret; it refuses the refresh token without it.",
    )
    """Its secret, for the few that have one."""
    api_mode: str | None = declare_setting(
        "model.api_mode",
        "HERMES_API_MODE",
        text_matching(r"[a-z0-9][a-z0-9_-]{0,63}", "the name of a wire", fold=str.lower),
        audience="operator",
        reason="a server speaks another wire than its name says; it refuses requests without it.",
    )
    """How requests are written: `chat_completions`, `codex_responses`, `anthropic_messages`, `bedrock_converse`,
    `gemini_generate`, or a wire that an enabled extension brings. Not set: what the provider and the model speak."""
    window: int | None = declare_setting(
        "model.context_length",
        "HERMES_CONTEXT_LENGTH",
        optional_integer(1_024, 100_000_000),
        audience="operator",
        reason="a server does not tell its window; long conversations fail once before they shrink without it.",
    )
    """Tokens that fit into the model's context window. Not set: 200,000 is assumed until a server reports fewer."""
    output_tokens_max: int | None = declare_setting(
        "model.max_tokens",
        "HERMES_MAX_TOKENS",
        optional_integer(1, 10_000_000),
        audience="operator",
        reason="replies cost too much; a reply may be as long as the provider allows without it.",
    )
    """Output tokens of one reply. Not set: what the provider allows."""
    reasoning_effort: str | None = declare_setting(
        "agent.reasoning_effort",
        "HERMES_REASONING_EFFORT",
        one_of(*_EFFORTS),
        audience="anyone",
        reason="answers are too shallow or too dear; the model thinks as much as it usually does without it.",
    )
    """How much the model thinks; `none` for not at all. Not set: the usual value of the wire."""
    attempts_max: int = declare_setting(
        "agent.api_max_retries",
        "HERMES_API_MAX_RETRIES",
        integer(1, 100),
        3,
        audience="operator",
        reason="fallbacks should come sooner or later; each provider is tried three times without it.",
    )
    """Attempts with one provider before the next one is tried."""
    fallbacks: tuple[str, ...] = declare_setting(
        "fallback_providers",
        "HERMES_FALLBACK_PROVIDERS",
        FALLBACKS,
        (),
        audience="operator",
        reason="runs must go on while a provider is out of order; they wait or fail without it.",
    )
    """Providers to try, in order, when the first one fails for good: `provider:model`, or
    `provider:model@https://address` for an address of its own. Their keys come from their usual variables, or from the
    one that is named behind a `$` (`key_env` in a mapping); one without a key is skipped."""
    providers: tuple[tuple[str, ProviderOptions], ...] = declare_setting(
        "model.providers",
        "HERMES_MODEL_PROVIDERS",
        PROVIDER_OPTIONS,
        (),
        audience="operator",
        reason="a provider needs a region, a header or a body field; its requests cannot have one without it.",
    )
    """What else is said to single providers, by name: `region`, `service_tier`, and `headers` and `body` of every
    request. No place for secrets: every process sees it."""
    compacts: bool = declare_setting(
        "compression.enabled",
        "HERMES_COMPRESSION",
        SWITCH,
        True,
        audience="operator",
        reason="no transcript may be summarised; long conversations are compacted without it.",
    )
    """Whether conversations that grow too long are compacted; otherwise their runs fail."""
    compact_at: float = declare_setting(
        "compression.threshold",
        "HERMES_COMPRESSION_THRESHOLD",
        number(0.1, 0.95, "parts of the window"),
        0.5,
        audience="operator",
        reason="long prompts cost too much, or summaries come too early; half of the window fills without it.",
    )
    """A conversation is compacted when it fills this share of the context window; for windows below 512,000 tokens the
    share is at least 0.75."""
    compact_models_at: tuple[tuple[str, float], ...] = declare_setting(
        "compression.thresholds",
        "HERMES_COMPRESSION_THRESHOLDS",
        MODEL_SHARES,
        (),
        audience="operator",
        reason="models differ in how well they use their window; all have the same share without it.",
    )
    """Such shares of single models, by patterns of their names: `gpt-5.4*=0.85`. The first that fits counts, as it
    is."""
    compact_head_rows: int = declare_setting(
        "compression.protect_first_n",
        "HERMES_COMPRESSION_PROTECT_FIRST_N",
        integer(0, 1_000),
        3,
        audience="operator",
        reason="the task stands in more messages than three; a summary may swallow it without it.",
    )
    """Messages at the beginning of a conversation that its first summary leaves alone."""
    compact_tail_rows: int = declare_setting(
        "compression.protect_last_n",
        "HERMES_COMPRESSION_PROTECT_LAST_N",
        integer(3, 10_000),
        20,
        audience="operator",
        reason="old tool results are needed word for word; all but the newest are shortened without it.",
    )
    """Messages at the end whose tool results are never shown in short."""
    compact_tail_part: float = declare_setting(
        "compression.target_ratio",
        "HERMES_COMPRESSION_TARGET_RATIO",
        number(0.1, 0.8, "parts of the threshold"),
        0.2,
        audience="operator",
        reason="more of the recent conversation must stay as it is; a fifth stays without it.",
    )
    """How much of the threshold the newest messages may fill that a summary leaves alone."""
    compactor: str = declare_setting(
        "compression.compactor",
        "HERMES_COMPACTOR",
        text_matching(r"[a-z0-9][a-z0-9_-]{0,63}", "the name of a compactor"),
        "summary",
        audience="developer",
        reason="an extension brings its own way of compacting; it is not used without it.",
    )
    """How a long conversation is made shorter: `summary`, or a compactor that an enabled extension brings."""
    compression_providers: tuple[str, ...] = declare_setting(
        "model.compression_providers",
        "HERMES_COMPRESSION_PROVIDERS",
        FALLBACKS,
        (),
        audience="operator",
        reason="summaries should cost less; the conversation's own model writes them without it.",
    )
    """Providers that summarise long conversations, in order, as `provider:model`; then the providers of the
    conversation itself. Not set: only those."""
    title_providers: tuple[str, ...] = declare_setting(
        "model.title_providers",
        "HERMES_TITLE_PROVIDERS",
        FALLBACKS,
        (),
        audience="operator",
        reason="sessions should have a title that says what they are about; it is the first words without it.",
    )
    """Providers that find a title for a new session, written the same way. Not set: none; the title is the beginning of
    the input."""
    approval_providers: tuple[str, ...] = declare_setting(
        "model.approval_providers",
        "HERMES_APPROVAL_PROVIDERS",
        FALLBACKS,
        (),
        audience="operator",
        reason="another model should judge commands; the run's own model does so without it.",
    )
    """Providers that judge dangerous commands while `approvals.mode` is `smart`, written the same way."""
    vision_providers: tuple[str, ...] = declare_setting(
        "model.vision_providers",
        "HERMES_VISION_PROVIDERS",
        FALLBACKS,
        (),
        audience="operator",
        reason="the model sees no images; images cannot be described without it.",
    )
    """Providers that describe images (`vision_analyze`), written the same way."""
    web_extract_providers: tuple[str, ...] = declare_setting(
        "model.web_extract_providers",
        "HERMES_WEB_EXTRACT_PROVIDERS",
        FALLBACKS,
        (),
        audience="operator",
        reason="long pages should be summarised for less; they are cut short without it.",
    )
    """Providers that summarise long web pages (`web_extract`), written the same way."""
    requests_per_min: int | None = declare_setting(
        "model.requests_per_min",
        "HERMES_MODEL_REQUESTS_PER_MIN",
        optional_integer(1, 1_000_000),
        audience="operator",
        reason="the provider does not tell its limit; workers meet it and wait for its refusals without it.",
    )
    """Requests per minute that all workers together may make with one key; calls of older runs go first. Not set: what
    the provider says."""
    tokens_per_min: int | None = declare_setting(
        "model.tokens_per_min",
        "HERMES_MODEL_TOKENS_PER_MIN",
        optional_integer(1, 1_000_000_000),
        audience="operator",
        reason="the provider limits tokens and does not tell; workers meet refusals without it.",
    )
    """Input tokens per minute that all workers together may send with one key."""
    in_flight_max: int | None = declare_setting(
        "model.max_concurrency",
        "HERMES_MODEL_MAX_CONCURRENCY",
        optional_integer(1, 1_000_000),
        audience="operator",
        reason="a server of your own answers few at once; it gets all calls at once without it.",
    )
    """Model calls that all workers together may make at the same time with one key. Not set: no limit."""
    probe_first_s: float = declare_setting(
        "model.probe_first_s",
        "HERMES_KEY_PROBE_FIRST_S",
        number(0.5, 3_600.0, "seconds"),
        15.0,
        audience="developer",
        reason="tests of closed keys cannot wait for 15 seconds; they would without it.",
    )
    """When a closed key is tried the first time, with the due call of one waiting run; then after twice as long, and so
    on."""
    probe_max_s: float = declare_setting(
        "model.probe_max_s",
        "HERMES_KEY_PROBE_MAX_S",
        number(1.0, 86_400.0, "seconds"),
        600.0,
        audience="developer",
        reason="tests of closed keys cannot wait for ten minutes; they would without it.",
    )
    """The longest time between two such tries."""
    prices: tuple[str, ...] = declare_setting(
        "model.prices",
        "HERMES_MODEL_PRICES",
        PRICES,
        (),
        audience="operator",
        reason="a model is not in the built-in list, or you pay less; its cost is unknown or wrong without it.",
    )
    """What models cost, as `provider:model=input/output/cache read/cache write` in US dollars for a million tokens; the
    last two may be left out. They win over the built-in list."""
    is_asked_elsewhere: bool = declare_setting(
        "model.asked_elsewhere",
        "HERMES_MODEL_ASKED_ELSEWHERE",
        SWITCH,
        False,
        audience="operator",
        reason="a process starts by itself on a host without the key; it refuses to start without it.",
    )
    """Whether only other processes ask the model, so that this one needs no key: for the API, the scheduler and tools
    workers where each process is started by itself."""
    vendor_keys: Mapping[str, Secret] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    """Every variable of the environment or ``.env`` called ``..._API_KEY``, with or without a number behind it, for
    providers beyond those three; and those of ``PROVIDER_SECRETS``."""

    def find_options(self, *names: str) -> ProviderOptions:
        """What is said to the provider that goes by these names."""
        return next((options for name, options in self.providers if name in names), NO_OPTIONS)

    @property
    def is_scripted(self) -> bool:
        """No provider, key or address is configured: the built-in scripted model answers."""
        if self.provider is not None:
            return self.provider == "scripted"
        return self.api_key is None and self.base_url is None
