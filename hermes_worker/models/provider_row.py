"""The form of a row of the provider catalogue. An extension brings rows of this form, and nothing else of a provider.

A field is a fact about an endpoint that some decision depends on; the decisions read fields and never names. What is
true of a model wherever it is served is a row of ``core.model_families`` instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hermes_worker.core.model_capabilities import STANDARD, Billing, CacheLayout, ThinkingPolicy, WireNeeds
from hermes_worker.extension import WireDeclaration


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRule:
    """Prompts of some models may be marked for the provider's cache."""

    layout: CacheLayout
    families: tuple[str, ...] = ()
    """Names of ``core.model_families``; empty for every model."""
    wire: str | None = None
    """Only on this wire; ``None`` for every wire."""
    is_at_home_only: bool = False
    """Only at the provider's own hosts: a relay elsewhere under its name may refuse marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWire:
    """Some models of a provider are spoken to over another wire than the rest."""

    pattern: str
    """Regular expression; the name behind the last ``/``, in lower case, begins with it."""
    wire: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRow:
    """One provider."""

    name: str
    base_url: str
    """Empty where every user has an address of their own. ``{region}`` in it is replaced by the setting."""
    default_model: str
    """Empty where no name is valid for every user."""
    source: str = ""
    """The documentation page or kept data file from which the address and the variables were read, and when."""
    is_called: bool = False
    """Whether the provider was asked for real with this row. docs/providers.md marks those that were."""

    # --- where it is, and who may ask
    address_form: str = ""
    """The form of an address where ``base_url`` is empty; for messages."""
    aliases: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    """Hosts, with their subdomains, that belong to this provider."""
    host_pattern: str = ""
    """Regular expression of whole host names, where subdomains do not tell."""
    path: str = ""
    """The beginning of an address's path, where one host serves several providers."""
    regions: Mapping[str, str] = field(default_factory=dict)
    """Other addresses of the same provider, by the name that the setting ``model.providers`` gives them."""
    usual_region: str = ""
    """The region in place of ``{region}`` when the settings name none."""
    chat_base_url: str | None = None
    """The address of its chat completions, when ``base_url`` speaks another wire."""
    needs_key: bool = True
    is_own_server: bool = False
    """Whether its users run it: it may have more doors than those of its API, and its key is sent to whatever address
    is configured.
    """
    key_variables: tuple[str, ...] = ()
    """Environment variables that may hold the key, first match wins; empty when no key is needed."""
    key_header: str = "Authorization"
    is_bearer: bool = False
    """Whether it takes keys as bearer tokens on Anthropic's wire too."""

    # --- how it is spoken to
    wire: str | None = None
    """The wire spoken to any server under this name; ``None`` for chat completions."""
    home_wire: str | None = None
    """Spoken at the provider's own hosts only, while others under its name speak chat completions."""
    model_wires: tuple[ModelWire, ...] = ()
    leaves_wire_to_model: bool = True
    """Whether models whose family has a wire of its own are spoken to over it."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, object] = field(default_factory=dict)
    """Fields of every request's JSON."""
    service_tiers: tuple[str, ...] = ()
    """The tiers that the setting ``model.providers`` may ask for; empty where tiers are not known."""
    output_cap: str | None = None
    """The name of the output limit in a chat completion, for every model."""
    sends_stream_options: bool = True
    sends_cache_key: bool = False
    echoes_reasoning: bool = False
    """Whether it wants ``reasoning_content`` back on each assistant row, and rejects its absence."""
    keeps_reasoning_details: bool = False
    """Whether its own hosts want opaque reasoning blocks back."""
    thinking: ThinkingPolicy | None = None
    """What to do with thinking in messages that are sent again over Anthropic's wire; ``None``: it is left out."""
    issuer: str = ""
    """The issuer that signs or seals its reasoning, as transcripts name it; empty for its host."""
    cache_marks: tuple[CacheRule, ...] = ()

    # --- what is known of its models
    is_aggregator: bool = False
    """Whether it serves models of many vendors under ``vendor/model`` names."""
    cuts_silently: bool = False
    """Whether it drops the beginning of what is too long without a word, so that its window must be known before."""
    windows: Mapping[str, int] = field(default_factory=dict)
    """Context windows in tokens by model, in lower case, where it serves less than others do."""
    overflow: tuple[str, ...] = ()
    """Its words for a request that is too long, in lower case, where they differ from the usual ones."""
    billing: Billing = Billing.TOKENS
    price_list: str = ""
    """The provider whose price list counts; empty for its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRow(WireDeclaration):
    """A wire, and what has to be known of it before it is loaded. A plain declaration takes the defaults."""

    needs: WireNeeds = STANDARD
    """What its conversion needs to find in messages."""
    headers: str = ""
    """``package.module:attribute``: what requests to an ``Endpoint`` carry, for the questions that are asked beside
    calls. Empty for a wire whose servers are not asked anything."""
    version_path: str = ""
    """The path between the address and the paths of its API, where the address may leave it out."""
    extra: str = ""
    """The optional dependencies it takes: ``pip install hermes-worker[...]``."""
    is_called: bool = True
    """Whether it was spoken to a service of its vendor for real. Otherwise it is marked "unverified live"."""
