"""May this URL be fetched? The decision only: the caller that connects resolves the name and passes the addresses in.

A URL that a model or an outsider chose can point anywhere: at the metadata service of the cloud, at the database next
door, at this process. The rules are those of the original with three holes closed:

* The caller gets back the addresses that were judged and connects to one of *them*, so that a name which answers
  differently the second time (DNS rebinding) has nothing to gain. Every redirect is a new decision.
* Addresses that carry another inside (IPv4-mapped, translated, NAT64, 6to4, Teredo, ISATAP) are judged by all of them.
* Host names that are numbers in disguise (``0x7f.1``, ``2130706433``) are refused before they are resolved.

The networks are listed here rather than asked of ``ipaddress``, whose answers differ between Python releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

from hermes_worker.core.errors import HermesError

URL_CHARS_MAX = 8_192
DEFAULT_PORTS = {"http": 80, "https": 443}

BLOCKED_HOSTS = frozenset(
    {
        *("metadata.google.internal", "metadata.goog", "instance-data.ec2.internal", "metadata.azure.internal"),
        *("metadata.tencentyun.com", "metadata.platformequinix.com", "metadata.packet.net"),
    }
)

# Ports of protocols that a request line could be smuggled into: the Fetch standard's list (fetch.spec.whatwg.org,
# "port blocking") and the data stores that this product runs beside.
_FETCH_BLOCKED_PORTS = (
    *(0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104, 109),
    *(110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513, 514, 515, 526, 530),
    *(531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993, 995, 1719, 1720, 1723, 2049, 3659, 4045, 4190),
    *(5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080),
)
_DATA_STORE_PORTS = (1433, 1521, 3306, 5432, 6379, 6380, 11211, 27017)
BLOCKED_PORTS = frozenset(_FETCH_BLOCKED_PORTS + _DATA_STORE_PORTS)

# Cloud metadata and link-local: never, whatever the settings allow. 168.63.129.16 is Azure's host agent, 192.0.0.192
# Oracle's metadata service, 100.100.100.200 Alibaba's. AWS answers in fd00:ec2::/32, Google at fd20:ce::254, and
# Scaleway at fd00:42::42.
_METADATA_V4 = tuple(
    IPv4Network(text) for text in ("169.254.0.0/16", "100.100.100.200/32", "192.0.0.192/32", "168.63.129.16/32")
)
_METADATA_V6 = tuple(
    IPv6Network(text) for text in ("fd00:ec2::/32", "fd20:ce::254/128", "fd00:42::42/128", "fe80::/10")
)
_MANY_V4 = tuple(IPv4Network(text) for text in ("224.0.0.0/4", "255.255.255.255/32"))
_MANY_V6 = (IPv6Network("ff00::/8"),)
"""Multicast and broadcast."""
_SERVICES_V4 = frozenset(
    int(IPv4Address(text))
    for text in ("169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "192.0.0.192")
)
"""Services that are looked for at the end of any IPv6 address: a network may translate by a prefix of its own."""

# What IANA's special-purpose registry (iana.org, iana-ipv4-special-registry) does not call globally reachable.
_PRIVATE_V4 = tuple(
    IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24"),
        *("192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4"),
    )
)
_GLOBAL_V6 = IPv6Network("2000::/3")
_SPECIAL_V6 = tuple(IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "3fff::/20"))
_MAPPED_V6 = IPv6Network("::ffff:0:0/96")
_NAT64_V6 = IPv6Network("64:ff9b::/96")
_NAT64_OF_A_SITE = IPv6Network("64:ff9b:1::/48")
_ENDS_IN_IPV4 = (_MAPPED_V6, _NAT64_V6, *(IPv6Network(text) for text in ("::/96", "::ffff:0:0:0/96")))
_SIX_TO_FOUR, _TEREDO = IPv6Network("2002::/16"), IPv6Network("2001::/32")
_ISATAP = (0x00005EFE, 0x02005EFE)
"""The bits before the IPv4 address in the interface identifier of ISATAP (RFC 5214, 6.1)."""

_LOW_32 = (1 << 32) - 1


def _spell_all(v4: Iterable[IPv4Network], v6: Iterable[IPv6Network]) -> Iterator[tuple[int, int]]:
    """Every way to write an address of these networks in 128 bits, as a mask and what is left under it."""
    yield from ((int(network.netmask), int(network.network_address)) for network in v6)
    for network in v4:
        mask, value = int(network.netmask), int(network.network_address)
        for holder in _ENDS_IN_IPV4:
            yield _carry(holder, mask, value)
        for before in _ISATAP:
            yield _LOW_32 << 32 | mask, before << 32 | value
        yield _carry(_SIX_TO_FOUR, mask << 80, value << 80)
        yield _carry(_TEREDO, mask << 64, value << 64)
        yield _carry(_TEREDO, mask, ~value & mask)
        yield _carry(_NAT64_OF_A_SITE, mask, value)
        # RFC 6052, 2.2: behind a prefix of 48, 56 or 64 bits, and around the eight bits from the 64th on.
        for shift in (40, 32, 24):
            yield _carry(_NAT64_OF_A_SITE, _spread_octet(mask << shift), _spread_octet(value << shift))


def _carry(holder: IPv6Network, mask: int, value: int) -> tuple[int, int]:
    return int(holder.netmask) | mask, int(holder.network_address) | value


def _spread_octet(bits: int) -> int:
    return bits >> 56 << 64 | bits & (1 << 56) - 1


METADATA_SPELLINGS = (
    *_spell_all(_METADATA_V4, _METADATA_V6),
    *((_LOW_32, address) for address in _SERVICES_V4),
)
"""What no command reaches, in every spelling, as pairs: an address is one if its 128 bits (an IPv4 address counts as
``::ffff:0:0/96``) and the first number are the second. Multicast is none of them."""
_MANY_SPELLINGS = tuple(_spell_all(_MANY_V4, _MANY_V6))

_NUMERIC_HOST = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+)){0,3}")
_CONTROL_OR_SPACE = re.compile(r"[\x00-\x20\x7f-\xa0\\]")


class UnsafeUrl(HermesError):
    """A URL that must not be fetched; the message says why and does not repeat credentials."""


class PrivateUrl(UnsafeUrl):
    """A URL of the local network or of this machine, which an operator may allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlPolicy:
    """The addresses that an installation allows."""

    allows_private: bool = False
    """Addresses of the local network and of this machine (``security.allow_private_urls``). Metadata and link-local
    addresses stay refused."""


_LENIENT = UrlPolicy(allows_private=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpUrl:
    """A URL that may be resolved."""

    url: str
    scheme: str
    host: str
    """The host as it is resolved: lower case, IDNA-encoded, without brackets and trailing dot."""
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SafeUrl:
    """A URL that may be fetched, from these addresses and no other."""

    target: HttpUrl
    addresses: tuple[str, ...]


def parse_http_url(url: str) -> HttpUrl:
    """Parse a URL and decide what can be decided before the name is resolved. Raises ``UnsafeUrl``."""
    parts = _split_url(url)
    scheme = parts.scheme.lower()
    if scheme not in DEFAULT_PORTS:
        raise UnsafeUrl(f"Only http and https URLs can be fetched, not {scheme[:20]!r}.")
    if parts.username is not None or parts.password is not None:
        raise UnsafeUrl("A URL must not contain a user name or a password; send credentials in a header.")
    host = _normalize_host(parts.hostname)
    _check_name(host)
    return HttpUrl(url=url, scheme=scheme, host=host, port=_find_port(parts, scheme))


def check_addresses(target: HttpUrl, addresses: Iterable[str], policy: UrlPolicy) -> tuple[str, ...]:
    """Every address a name resolves to must be allowed: one bad answer spoils the name. Raises ``UnsafeUrl``."""
    found = tuple(addresses)
    if not found:
        raise UnsafeUrl(f"The host {target.host!r} does not resolve.")
    for address in found:
        refusal = find_address_refusal(address, policy)
        if refusal is not None:
            kind = PrivateUrl if find_address_refusal(address, _LENIENT) is None else UnsafeUrl
            raise kind(f"The host {target.host!r} is refused: {refusal}.")
    return found


def find_address_refusal(address: str, policy: UrlPolicy) -> str | None:
    """Why an address must not be connected to; ``None`` when it may."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return f"{address[:60]!r} is not an address"
    bits = int(parsed) if isinstance(parsed, IPv6Address) else int(_MAPPED_V6.network_address) | int(parsed)
    if any(bits & mask == value for mask, value in (*METADATA_SPELLINGS, *_MANY_SPELLINGS)):
        return f"{address} is a metadata, link-local or multicast address"
    if policy.allows_private:
        return None
    is_public = _is_public(IPv4Address(bits & _LOW_32)) if _is_translation(parsed) else _is_public(parsed)
    return None if is_public else f"{address} is not a public address"


def _split_url(url: str) -> SplitResult:
    if len(url) > URL_CHARS_MAX:
        raise UnsafeUrl(f"A URL has at most {URL_CHARS_MAX} characters.")
    # urlsplit drops tabs and newlines and reads a backslash as part of the host: parsers disagree, so we do not guess.
    if _CONTROL_OR_SPACE.search(url):
        raise UnsafeUrl("A URL must not contain spaces, control characters or backslashes; percent-encode them.")
    try:
        return urlsplit(url)
    except ValueError:
        raise UnsafeUrl("The URL cannot be read; check brackets and port.") from None


def _normalize_host(hostname: str | None) -> str:
    host = (hostname or "").rstrip(".")
    if not host:
        raise UnsafeUrl("The URL has no host.")
    if ":" in host:
        if "%" in host or _parse_address(host) is None:
            raise UnsafeUrl(f"{host[:60]!r} is not an address.")
        return host
    try:
        return host.encode("idna").decode("ascii").lower().rstrip(".")
    except UnicodeError:
        raise UnsafeUrl(f"The host name {host[:60]!r} is not valid.") from None


def _check_name(host: str) -> None:
    if _NUMERIC_HOST.fullmatch(host) and _parse_address(host) is None:
        raise UnsafeUrl(f"The host {host[:60]!r} is an address in disguise; write it as four decimal numbers.")
    if not re.fullmatch(r"[a-z0-9._:-]+", host):
        raise UnsafeUrl(f"The host name {host[:60]!r} is not valid.")
    for blocked in BLOCKED_HOSTS:
        if host == blocked or host.endswith(f".{blocked}"):
            raise UnsafeUrl(f"The host {host!r} is blocked.")
    # An address needs no resolving, so who only reads a URL (a job's, a target's) refuses it as early as a name.
    if _parse_address(host) is not None and (refusal := find_address_refusal(host, _LENIENT)) is not None:
        raise UnsafeUrl(f"The host {host!r} is refused: {refusal}.")


def _find_port(parts: SplitResult, scheme: str) -> int:
    try:
        port = parts.port if parts.port is not None else DEFAULT_PORTS[scheme]
    except ValueError:
        raise UnsafeUrl("The port of the URL is not a number from 1 to 65535.") from None
    if port in BLOCKED_PORTS:
        raise UnsafeUrl(f"Port {port} is not one that web servers use.")
    return port


def _parse_address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _is_translation(address: IPv4Address | IPv6Address) -> bool:
    """Only another spelling of the IPv4 address inside. NAT64 is how an IPv6-only cluster reaches IPv4 hosts."""
    if not isinstance(address, IPv6Address):
        return False
    return address.ipv4_mapped is not None or address in _NAT64_V6


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _PRIVATE_V4)
    if address not in _GLOBAL_V6 or any(address in network for network in _SPECIAL_V6):
        return False
    return address.sixtofour is None or _is_public(address.sixtofour)
