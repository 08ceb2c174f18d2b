"""The kinds of values that settings may hold: parsers from text or YAML to a checked value, each with the words that
say what it takes.

Pure. A parser raises ``ValueError`` or ``TypeError`` for what it does not take; ``settings`` makes a sentence of that.
"""

from __future__ import annotations

import hmac
import json
import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType
from typing import Generic, NamedTuple, NoReturn, TypeVar
from urllib.parse import parse_qs, urlsplit

from hermes_worker.core.artifact_patterns import PATTERNS_MAX, explain_wrong_pattern
from hermes_worker.core.pricing import parse_own_price
from hermes_worker.core.principals import InvalidName, require_tenant_name
from hermes_worker.core.retention_rules import InvalidRule, parse_rules
from hermes_worker.settings.sentinels import parse_sentinels
from hermes_worker.settings.servers import parse_servers_url

__all__ = [
    "APPROVALS_MODE",
    "BROKER_URL",
    "DATABASE_URL",
    "DIRECTORY",
    "FALLBACKS",
    "FAULT_PLAN",
    "FILE",
    "HOST",
    "MODEL_SHARES",
    "NO_OPTIONS",
    "PROVIDER_OPTIONS",
    "RETENTION_RULES",
    "SECRET",
    "SECRETS",
    "SERVER_KEY",
    "TENANT_KEYS",
    "TEXT_KEYS",
    "UMASK",
    "WEB_URL",
    "NamedModel",
    "ProviderOptions",
    "Secret",
    "SettingKind",
    "TenantKey",
    "command_lines",
    "convert_socket_url",
    "integer",
    "list_of_names",
    "number",
    "one_of",
    "optional_integer",
    "optional_number",
    "parse_named_model",
    "text_matching",
]

_T = TypeVar("_T")


class Secret:
    """A string that shows itself only to who asks with ``reveal``: not in ``repr``, ``str``, a log or a pickle."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret('***')"

    def __str__(self) -> str:
        return "***"

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        """Takes the same time wherever the two differ."""
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash(self._value)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not pickled; hand settings to other processes with as_environ")


@dataclass(frozen=True, slots=True)
class SettingKind(Generic[_T]):
    """What values a setting takes."""

    allowed: str
    """Completes the sentence "... must be"."""
    parse: Callable[[object], _T]
    render: Callable[[_T], str] = str
    """Back to text that ``parse`` takes."""
    is_quotable: bool = True
    """Whether a message may show a wrong value."""
    is_secret: bool = False
    """Whether the value is a secret, or has one in it. ``role_secrets`` says who gets it."""
    pattern: str = ""
    """What every text that ``parse`` takes matches as a whole, for the Helm chart, which judges values before anything
    starts. Empty: no pattern says it."""
    ranges: tuple[tuple[float, float], ...] = ()
    """The numbers that ``parse`` takes, from and to; empty for what is no number."""


def _as_text(raw: object) -> str:
    if isinstance(raw, Secret):
        raw = raw.reveal()
    if isinstance(raw, PathLike):
        raw = fspath(raw)
    if not isinstance(raw, str | int | float) or isinstance(raw, bool):
        raise TypeError
    return str(raw).strip()


def _as_word(raw: object) -> str:
    """Text that can stand in a URL, a header or a file: printable, without white space."""
    text = _as_text(raw)
    if not text or not text.isprintable() or any(c.isspace() for c in text):
        raise ValueError
    return text


_SWITCH_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def _as_switch(raw: object) -> bool:
    word = raw if isinstance(raw, bool) else _SWITCH_WORDS.get(_as_text(raw).lower())
    if word is None:
        raise ValueError
    return word


SWITCH: SettingKind[bool] = SettingKind(
    "true or false",
    _as_switch,
    lambda value: "true" if value else "false",
    pattern=f"(?i){'|'.join(_SWITCH_WORDS)}",
)

# --- plain values ----------------------------------------------------------------------------------------------------


def text_matching(pattern: str, allowed: str, *, fold: Callable[[str], str] = str) -> SettingKind[str]:
    """Text of one form; ``fold`` brings different spellings together."""
    compiled = re.compile(pattern)

    def parse(raw: object) -> str:
        text = fold(_as_text(raw))
        if not compiled.fullmatch(text):
            raise ValueError
        return text

    return SettingKind(allowed, parse, pattern=pattern if fold is str else f"(?i){pattern}")


def one_of(*values: str, fold: Callable[[str], str] = str.lower) -> SettingKind[str]:
    """One of a closed list, in any case."""
    return text_matching("|".join(map(re.escape, values)), f"one of {', '.join(values)}", fold=fold)


# Python allows one underscore between two digits of a number.
_DIGITS = "[0-9]+(_[0-9]+)*"


def number(minimum: float, maximum: float, unit: str) -> SettingKind[float]:
    def parse(raw: object) -> float:
        value = float(_as_text(raw))
        if not (math.isfinite(value) and minimum <= value <= maximum):
            raise ValueError
        return value

    return SettingKind(
        f"a number of {unit} from {_render_number(minimum)} to {_render_number(maximum)}",
        parse,
        _render_number,
        pattern=rf"[+-]?({_DIGITS}\.?({_DIGITS})?|\.{_DIGITS})([eE][+-]?{_DIGITS})?",
        ranges=((minimum, maximum),),
    )


def optional_number(minimum: float, maximum: float, unit: str) -> SettingKind[float | None]:
    """A number, or 0 that becomes ``None``: no limit."""
    limited = number(minimum, maximum, unit)

    def parse(raw: object) -> float | None:
        return None if float(_as_text(raw)) == 0 else limited.parse(raw)

    return _allow_zero(limited, ", or 0 for no limit", parse)


def _allow_zero(limited: SettingKind[_T], words: str, parse: Callable[[object], _T | None]) -> SettingKind[_T | None]:
    """Build the kind that also takes 0, which ``parse`` turns into ``None``."""
    return SettingKind(
        f"{limited.allowed}{words}",
        parse,
        lambda value: "0" if value is None else limited.render(value),
        pattern=limited.pattern,
        ranges=((0, 0), *limited.ranges),
    )


def _render_number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)


def integer(minimum: int, maximum: int) -> SettingKind[int]:
    def parse(raw: object) -> int:
        value = int(_as_text(raw))
        if not minimum <= value <= maximum:
            raise ValueError
        return value

    return SettingKind(
        f"a whole number from {minimum} to {maximum}",
        parse,
        pattern=f"[+-]?{_DIGITS}",
        ranges=((minimum, maximum),),
    )


def list_of_names(pattern: str, what: str) -> SettingKind[tuple[str, ...]]:
    """A list of names: a YAML or JSON list, or text with commas. Keeps the first of equal names."""
    compiled = re.compile(pattern)

    def parse(raw: object) -> tuple[str, ...]:
        found = tuple(_as_text(item) for item in _as_list(raw))
        if not all(compiled.fullmatch(name) for name in found):
            raise ValueError
        return tuple(dict.fromkeys(found))

    return SettingKind(f"a list of {what}, in YAML or separated by commas", parse, ",".join)


def command_lines() -> SettingKind[tuple[str, ...]]:
    """A list of commands with their arguments, quoted as for a shell."""
    listed = list_of_names(r"[^,\x00-\x1f]{1,1000}", "commands")

    def parse(raw: object) -> tuple[str, ...]:
        found = listed.parse(raw)
        if not all(shlex.split(line) for line in found):
            raise ValueError
        return found

    return SettingKind(f"{listed.allowed}, each quoted as for a shell", parse, listed.render)


def optional_integer(minimum: int, maximum: int) -> SettingKind[int | None]:
    """A whole number, or 0 that becomes ``None``: not set."""
    limited = integer(minimum, maximum)

    def parse(raw: object) -> int | None:
        return None if int(_as_text(raw)) == 0 else limited.parse(raw)

    return _allow_zero(limited, ", or 0", parse)


_FALLBACK = re.compile(r"([a-z][\w.-]{0,63}):([\w.:/@+-]{1,200})")
_BEFORE_ADDRESS = re.compile(r"@(?=https?://)")
_BEFORE_KEY = re.compile(r"\$(?=\w+_API_KEY(?:_\d{1,2})?$)")


class NamedModel(NamedTuple):
    """The parts of ``provider:model@address$KEY_VARIABLE``, of which the last two may be missing."""

    provider: str
    model: str
    address: str | None
    key_variable: str | None
    """The environment variable that holds the key, in place of the provider's usual ones."""


def parse_named_model(text: str) -> NamedModel:
    """Parse ``provider:model@address$KEY_VARIABLE``. Raises ``ValueError`` for any other text."""
    rest, *key = _BEFORE_KEY.split(text, maxsplit=1)
    named, *address = _BEFORE_ADDRESS.split(rest, maxsplit=1)
    parts = _FALLBACK.fullmatch(named)
    if parts is None:
        raise ValueError
    return NamedModel(parts[1], parts[2], _parse_web_url(address[0]) if address else None, key[0] if key else None)


def _parse_fallbacks(raw: object) -> tuple[str, ...]:
    """``provider:model`` with or without ``@address`` and ``$KEY_VARIABLE``, or the mappings of the original."""
    found = tuple(_parse_fallback(item) for item in ([raw] if isinstance(raw, dict) else _as_list(raw)))
    for text in found:
        parse_named_model(text)
    return tuple(dict.fromkeys(found))


def _parse_retention_rules(raw: object) -> tuple[str, ...]:
    written = tuple(_as_text(item) for item in _as_list(raw))
    try:
        parse_rules(written)
    except InvalidRule as error:
        raise ValueError from error
    return written


def _parse_artifact_patterns(raw: object) -> tuple[str, ...]:
    found = tuple(_as_text(item) for item in _as_list(raw))
    if len(found) > PATTERNS_MAX or any(explain_wrong_pattern(pattern) for pattern in found):
        raise ValueError
    return found


def _parse_prices(raw: object) -> tuple[str, ...]:
    found = tuple(_as_text(item) for item in _as_list(raw))
    for text in found:
        parse_own_price(text)
    return found


def _parse_model_shares(raw: object) -> tuple[tuple[str, float], ...]:
    pairs = raw.items() if isinstance(raw, dict) else (_as_text(item).partition("=")[::2] for item in _as_list(raw))
    return tuple(_parse_model_share(_as_text(pattern), share) for pattern, share in pairs)


def _parse_model_share(pattern: str, raw: object) -> tuple[str, float]:
    share = float(str(raw))
    if not re.fullmatch(r"[A-Za-z0-9_.:/@+*?-]{1,200}", pattern) or not 0.1 <= share <= 0.95:
        raise ValueError
    return pattern, share


def _parse_fallback(item: object) -> str:
    if not isinstance(item, dict):
        return _as_text(item)
    if set(item) - {"base_url", "key_env"} != {"provider", "model"}:
        raise ValueError
    address = f"@{_as_text(item['base_url'])}" if item.get("base_url") else ""
    key = f"${_as_text(item['key_env'])}" if item.get("key_env") else ""
    return f"{_as_text(item['provider']).lower()}:{_as_text(item['model'])}{address}{key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderOptions:
    """What the operator says of one provider beyond whom to ask and with which key."""

    region: str = ""
    service_tier: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of every request, beside the row's; they replace row headers of the same name."""
    body: Mapping[str, object] = field(default_factory=dict)
    """Fields of every request's JSON, likewise."""


NO_OPTIONS = ProviderOptions()

_VARIABLE_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,99}")
_PROVIDER_NAME = re.compile(r"[a-z][\w.-]{0,63}")
_PLAIN_WORD = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_HEADER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
_HEADERS_OF_OURS = frozenset(
    {"authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie"}
) | frozenset({"host", "connection", "content-length", "content-type", "transfer-encoding"})
"""Credentials have settings of their own, which not every process gets; the rest is the client's to say."""
_OPTIONS_CHARS_MAX = 32_768


def _parse_provider_options(raw: object) -> tuple[tuple[str, ProviderOptions], ...]:
    """A mapping by name of provider, as YAML or as JSON."""
    document = json.loads(_as_text(raw)) if isinstance(raw, str) else raw
    if not isinstance(document, Mapping) or len(json.dumps(document)) > _OPTIONS_CHARS_MAX:
        raise ValueError
    return tuple(
        (_require_match(_PROVIDER_NAME, name), _parse_options(said)) for name, said in sorted(document.items())
    )


def _parse_options(said: object) -> ProviderOptions:
    if not isinstance(said, Mapping) or set(said) - {item.name for item in fields(ProviderOptions)}:
        raise ValueError
    headers, body = said.get("headers") or {}, said.get("body") or {}
    if not isinstance(headers, Mapping) or not isinstance(body, Mapping):
        raise ValueError
    return ProviderOptions(
        region=_require_match(_PLAIN_WORD, said["region"]) if said.get("region") else "",
        service_tier=_require_match(_PLAIN_WORD, said["service_tier"]) if said.get("service_tier") else "",
        headers=MappingProxyType(
            {_parse_header_name(name): _parse_header_value(value) for name, value in headers.items()}
        ),
        body=MappingProxyType({_as_text(name): value for name, value in body.items()}),
    )


def _parse_variables(raw: object) -> tuple[tuple[str, str], ...]:
    """A mapping by name of variable, as YAML or as JSON."""
    document = json.loads(_as_text(raw)) if isinstance(raw, str) else raw
    if not isinstance(document, Mapping) or len(json.dumps(document)) > _OPTIONS_CHARS_MAX:
        raise ValueError
    return tuple(
        (_require_match(_VARIABLE_NAME, name), _parse_scalar(value)) for name, value in sorted(document.items())
    )


def _parse_scalar(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError


def _require_match(pattern: re.Pattern[str], raw: object) -> str:
    text = _as_text(raw)
    if not pattern.fullmatch(text):
        raise ValueError
    return text


def _parse_header_name(raw: object) -> str:
    name = _require_match(_HEADER_NAME, raw)
    if name.lower() in _HEADERS_OF_OURS:
        raise ValueError
    return name


def _parse_header_value(raw: object) -> str:
    text = _as_text(raw)
    if not text.isascii() or not text.isprintable():
        raise ValueError
    return text


def _render_provider_options(value: tuple[tuple[str, ProviderOptions], ...]) -> str:
    said = {
        name: {
            item.name: dict(part) if isinstance(part, Mapping) else part
            for item in fields(ProviderOptions)
            if (part := getattr(options, item.name))
        }
        for name, options in value
    }
    return json.dumps(said, sort_keys=True) if said else ""


def _as_list(raw: object) -> list[object] | tuple[object, ...]:
    if isinstance(raw, str):
        text = raw.strip()
        raw = json.loads(text) if text.startswith("[") else [part for part in text.split(",") if part.strip()]
    if not isinstance(raw, list | tuple):
        raise TypeError
    return raw


def _parse_directory(raw: object) -> Path:
    text = _as_text(raw)
    if not text or "\0" in text:
        raise ValueError
    return Path(text).expanduser().absolute()


def _parse_umask(raw: object) -> int:
    # YAML takes 022 for 18, and 22 for itself: a number does not say what was meant.
    if not isinstance(raw, str) or not re.fullmatch(r"0?[0-7]{3}", raw.strip()):
        raise ValueError
    return int(raw, 8)


def _parse_fault_plan(raw: object) -> str:
    from hermes_worker.system.faults import parse_faults

    text = _as_text(raw)
    parse_faults(text)
    return text


def _parse_approvals_mode(raw: object) -> str:
    if raw is False:
        return "off"  # what YAML makes of a bare ``off``
    text = _as_text(raw).lower()
    if text not in ("manual", "smart", "off"):
        raise ValueError
    return text


FALLBACKS: SettingKind[tuple[str, ...]] = SettingKind(
    "a list of provider:model, provider:model@address or either with $NAME_OF_AN_API_KEY behind it, or of mappings with"
    " provider, model, base_url and key_env",
    _parse_fallbacks,
    ",".join,
    is_quotable=False,  # an address may hold a password, which is what is wrong with it
)
PROVIDER_OPTIONS: SettingKind[tuple[tuple[str, ProviderOptions], ...]] = SettingKind(
    "a mapping from names of providers to region, service_tier, headers (no credentials) and body",
    _parse_provider_options,
    _render_provider_options,
    is_quotable=False,  # what it holds was meant for somebody else
)
VARIABLES: SettingKind[tuple[tuple[str, str], ...]] = SettingKind(
    "a mapping from names of variables to texts, numbers or switches",
    _parse_variables,
    lambda value: json.dumps(dict(value)) if value else "",
    is_quotable=False,
)
PRICES: SettingKind[tuple[str, ...]] = SettingKind(
    "a list of provider:model=input/output[/cache read[/cache write]] in US dollars for a million tokens",
    _parse_prices,
    ",".join,
)
MODEL_SHARES: SettingKind[tuple[tuple[str, float], ...]] = SettingKind(
    "a list of model=share, such as gpt-5.4*=0.85, with shares from 0.1 to 0.95",
    _parse_model_shares,
    lambda value: ",".join(f"{pattern}={share:g}" for pattern, share in value),
)
RETENTION_RULES: SettingKind[tuple[str, ...]] = SettingKind(
    "a list of kind=rule, such as runs=365d/100000 or transcripts=never", _parse_retention_rules, ",".join
)
ARTIFACT_PATTERNS: SettingKind[tuple[str, ...]] = SettingKind(
    f"a list of at most {PATTERNS_MAX} patterns of paths below the workspace, such as *.csv or reports/**",
    _parse_artifact_patterns,
    ",".join,
)
APPROVALS_MODE = SettingKind("manual, smart or off", _parse_approvals_mode, pattern="(?i)manual|smart|off")
DIRECTORY = SettingKind("a directory", _parse_directory)
FILE = SettingKind("a file", _parse_directory)
UMASK: SettingKind[int] = SettingKind(
    "three octal digits in quotes, such as '022'", _parse_umask, lambda value: f"{value:03o}"
)
FAULT_PLAN = SettingKind("a fault plan", _parse_fault_plan)
HOST = text_matching(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}|\[?[0-9A-Fa-f:.]+\]?", "a host name or IP address")


# --- secrets ---------------------------------------------------------------------------------------------------------

_SERVER_KEY_CHARS_MIN = 16
"""What the original asks of its API key."""


def _parse_secret(raw: object) -> Secret:
    text = _as_word(raw)
    if not text.isascii():
        # It goes into a header, where other characters have no agreed encoding.
        raise ValueError
    return Secret(text)


def _parse_server_key(raw: object) -> Secret:
    secret = _parse_secret(raw)
    if len(secret.reveal()) < _SERVER_KEY_CHARS_MIN:
        raise ValueError
    return secret


SECRET = SettingKind(
    "printable ASCII text without spaces", _parse_secret, Secret.reveal, is_quotable=False, is_secret=True
)
SECRETS: SettingKind[tuple[Secret, ...]] = SettingKind(
    "a list of keys without spaces, in YAML or separated by commas",
    lambda raw: tuple(dict.fromkeys(_parse_secret(item) for item in _as_list(raw))),
    lambda keys: ",".join(key.reveal() for key in keys),
    is_quotable=False,
    is_secret=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantKey:
    """A provider's key that belongs to a tenant."""

    tenant: str
    provider: str
    """The provider's name or alias in the catalogue."""
    key: Secret


def _parse_tenant_keys(raw: object) -> tuple[TenantKey, ...]:
    found = []
    for item in _as_list(raw):
        place, separator, key = str(item).partition("=")
        tenant, slash, provider = place.strip().partition("/")
        if not (separator and slash and provider.strip()):
            raise ValueError
        try:
            owner = require_tenant_name(tenant)
        except InvalidName:
            raise ValueError from None
        found.append(TenantKey(tenant=owner, provider=provider.strip(), key=_parse_secret(key.strip())))
    return tuple(dict.fromkeys(found))


TENANT_KEYS: SettingKind[tuple[TenantKey, ...]] = SettingKind(
    "a list of TENANT/PROVIDER=KEY, in YAML or separated by commas",
    _parse_tenant_keys,
    lambda keys: ",".join(f"{each.tenant}/{each.provider}={each.key.reveal()}" for each in keys),
    is_quotable=False,
    is_secret=True,
)
_TEXT_KEY_CHARS_MIN = 32
NO_TEXT_KEY = "clear"
"""In place of a key: texts are not encrypted."""


def _parse_text_keys(raw: object) -> tuple[Secret, ...]:
    items = (
        raw.replace(",", " ").split() if isinstance(raw, str) and not raw.lstrip().startswith("[") else _as_list(raw)
    )
    keys = tuple(dict.fromkeys(_parse_secret(item) for item in items))
    if any(len(key.reveal()) < _TEXT_KEY_CHARS_MIN and key.reveal() != NO_TEXT_KEY for key in keys):
        raise ValueError
    return keys


TEXT_KEYS: SettingKind[tuple[Secret, ...]] = SettingKind(
    f"keys of at least {_TEXT_KEY_CHARS_MIN} printable ASCII characters, or the word {NO_TEXT_KEY}, separated by "
    "commas or line ends",
    _parse_text_keys,
    lambda keys: ",".join(key.reveal() for key in keys),
    is_quotable=False,
    is_secret=True,
)
SERVER_KEY = SettingKind(
    f"at least {_SERVER_KEY_CHARS_MIN} printable ASCII characters without spaces",
    _parse_server_key,
    Secret.reveal,
    is_quotable=False,
    is_secret=True,
)


# --- addresses: never shown in messages, because a wrong one may hold a password all the same -----------------------

_SOCKET_SCHEMES = ("redis+socket", "unix")


def _parse_web_url(raw: object) -> str:
    text = _as_word(raw).rstrip("/")
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or parts.fragment:
        raise ValueError
    _require_port(parts.port)
    return text


def _parse_database_url(raw: object) -> str:
    text = _as_word(raw)
    scheme, separator, rest = text.partition("://")
    if separator and scheme in ("postgresql", "postgresql+psycopg"):
        # SQLAlchemy would take plain ``postgresql`` for psycopg2, which we do not install.
        return f"postgresql+psycopg://{_prefer_primary(rest)}"
    path, query_mark, query = rest.removeprefix("/").partition("?")
    if scheme != "sqlite" or not rest.startswith("/") or path in ("", ":memory:") or path.startswith("file:"):
        raise ValueError
    # The path must mean the same file in every process of the fleet, wherever each was started.
    return f"sqlite:///{Path(path).absolute()}{query_mark}{query}"


def _prefer_primary(rest: str) -> str:
    """What follows ``://``. Of several servers the one is meant that takes writes, unless the URL says otherwise: they
    are ``a:5432,b:5432`` as libpq writes them, or ``?host=a:5432&host=b:5432`` as SQLAlchemy does."""
    url = parse_servers_url(f"//{rest}")
    for server in url.servers:
        _require_port(urlsplit(f"//{server}").port)
    several = [f"host={server}" for server in url.servers if len(url.servers) > 1]
    query = [*filter(None, url.query.split("&")), *several]
    names = [part.partition("=")[0] for part in query]
    if names.count("host") < 2:
        return rest
    chosen = [] if "target_session_attrs" in names else ["target_session_attrs=read-write"]
    who = f"{url.who}@" if url.who else ""
    return f"{who}{'' if several else url.servers[0]}{url.path}?{'&'.join([*query, *chosen])}"


def _parse_broker_url(raw: object) -> str:
    text = _as_word(raw)
    if parse_sentinels(text) is not None:
        return text
    parts = urlsplit(text)
    is_socket = parts.scheme in _SOCKET_SCHEMES
    if is_socket and (parts.hostname or len(parts.path) < 2):
        raise ValueError
    if not is_socket and (parts.scheme not in ("redis", "rediss") or not parts.hostname):
        raise ValueError
    _require_port(parts.port)
    _ = _parse_database_number("" if is_socket else parts.path, parts.query)
    return text


def _require_port(port: int | None) -> None:
    if port == 0:
        raise ValueError


def _parse_database_number(path: str, query: str) -> int:
    options = parse_qs(query)
    text = path.strip("/") or options.get("virtual_host", options.get("db", ["0"]))[0]
    return int(text.strip("/"))


def convert_socket_url(url: str, scheme: str, database_option: str) -> str:
    """A broker URL in the spelling of one client library, if it names a socket; other URLs unchanged.

    redis-py: ``unix://[user:password@]/path?db=0``. kombu: ``redis+socket://[user:password@]/path?virtual_host=0``.
    """
    parts = urlsplit(url)
    if parts.scheme not in _SOCKET_SCHEMES:
        return url
    return f"{scheme}://{parts.netloc}{parts.path}?{database_option}={_parse_database_number('', parts.query)}"


def _parse_container_engine(raw: object) -> str:
    text = _as_word(raw)
    parts = urlsplit(text)
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError
    if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/"):
        return text
    if parts.scheme != "tcp" or not parts.hostname or parts.port is None or parts.path not in ("", "/"):
        raise ValueError
    _require_port(parts.port)
    return text.rstrip("/")


CONTAINER_ENGINE = SettingKind("unix:///PATH or tcp://HOST:PORT", _parse_container_engine)
WEB_URL = SettingKind(
    "an http:// or https:// URL without user name or password",
    _parse_web_url,
    is_quotable=False,
    pattern=r"(?i)https?://\S+",
)
DATABASE_URL = SettingKind(
    "a postgresql+psycopg://, postgresql:// or sqlite:/// URL (a file, not :memory:)",
    _parse_database_url,
    is_quotable=False,
    is_secret=True,
)
BROKER_URL = SettingKind(
    "a redis://, rediss://, redis+socket:// or unix:// URL with a numbered database, or a redis+sentinel:// or "
    "rediss+sentinel:// URL with the name of a service",
    _parse_broker_url,
    is_quotable=False,
    is_secret=True,
)
