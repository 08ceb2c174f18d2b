"""A broker that Sentinels watch, as one URL. Pure.

``redis+sentinel://[user:password@]sentinel:26379[,sentinel:26379 ...]/SERVICE[/DATABASE][?options]``, with
``rediss+sentinel://`` for TLS to servers and Sentinels. User and password are those of the servers; the Sentinels' own
are the options ``sentinel_user`` and ``sentinel_password``. Options ``ssl_...`` are those of redis-py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from hermes_worker.settings.servers import parse_servers_url

SCHEMES = ("redis+sentinel", "rediss+sentinel")
_PORT = 26_379


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelAddresses:
    """The addresses of the Sentinels that know the primary. Holds passwords."""

    addresses: tuple[tuple[str, int], ...]
    service: str
    """What the Sentinels call the primary: ``mymaster`` in most places."""
    database: int
    user: str | None
    password: str | None
    own: Mapping[str, str]
    """``username`` and ``password`` of the Sentinels themselves, if they have any."""
    tls: Mapping[str, str] | None
    """Options ``ssl_...``; ``None`` for no TLS."""

    @property
    def kombu_url(self) -> str:
        """The address in kombu's form: one URL for each Sentinel, separated by semicolons."""
        who = f"{quote(self.user or '', safe='')}:{quote(self.password or '', safe='')}@" if self.password else ""
        query = f"?{urlencode({'ssl_cert_reqs': 'required', **self.tls})}" if self.tls is not None else ""
        return ";".join(
            f"sentinel://{who}{f'[{host}]' if ':' in host else host}:{port}/{self.database}{query}"
            for host, port in self.addresses
        )


def parse_sentinels(url: str) -> SentinelAddresses | None:
    """What a URL of a broker says about Sentinels; ``None`` for a broker that is addressed itself.

    Raises ``ValueError`` for what is no such URL.
    """
    parts = parse_servers_url(url)
    if parts.scheme not in SCHEMES:
        return None
    service, _, database = parts.path.strip("/").partition("/")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    own = {name: options.pop(f"sentinel_{name}", "") for name in ("user", "password")}
    if not service or any(not name.startswith("ssl_") for name in options):
        raise ValueError("no service, or an option that is none")
    return SentinelAddresses(
        addresses=tuple(map(_parse_address, parts.servers)),
        service=unquote(service),
        database=int(database or "0"),
        user=parts.user,
        password=parts.password,
        own=MappingProxyType(
            {key: own[name] for name, key in (("user", "username"), ("password", "password")) if own[name]}
        ),
        tls=MappingProxyType(options) if parts.scheme.startswith("rediss") else None,
    )


def _parse_address(host: str) -> tuple[str, int]:
    parts = urlsplit(f"//{host}")
    if not parts.hostname or parts.port == 0:
        raise ValueError("no address")
    return parts.hostname, parts.port or _PORT
