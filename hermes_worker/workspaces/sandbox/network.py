"""The network that a command may reach, as a value. Pure: nothing here resolves or connects.

The network is chosen for each command by where its run came from. A job may ask for less than that, never for more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.net.urls import HttpUrl, UnsafeUrl, parse_http_url


class Network(StrEnum):
    """The networks that commands can have, from wide to narrow."""

    OPEN = "open"
    """The machine's own network."""
    PROXY = "proxy"
    """Only what the worker's proxy connects to."""
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressRules:
    """The targets that the proxy connects to."""

    hosts: tuple[str, ...] = ()
    """Names, and ``*.suffix`` for everything under a name; empty for every public host."""
    ports: frozenset[int] = frozenset({80, 443})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """The origin of a command."""

    source: str = "cli"
    """``cli``, ``api``, ``cron`` or ``webhook``: who asked for the first run of the chain."""
    asked: str | None = None
    """The network that its job asked for."""
    tenant: str = DEFAULT_TENANT
    """The tenant of the run: commands of other tenants than the default one have the proxy at most and see system
    directories only.
    """

    @property
    def is_guest(self) -> bool:
        """Whether the run belongs to another tenant than the default one."""
        return self.tenant != DEFAULT_TENANT


UNKNOWN: Final = "unknown"
"""The source of runs that an older version accepted."""
PEOPLE: Final = RunOrigin()
"""The origin of commands of a person at this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRules:
    """The network that an installation gives to each kind of origin."""

    people: Network = Network.OPEN
    """For a person who types at this machine."""
    api: Network | None = None
    """For callers of the API; ``None`` for what people have, and the proxy at most when other machines can connect to
    it.
    """
    unattended: Network | None = None
    """For jobs, webhooks and other runs that no person asks for; ``None`` for the proxy, or less if people have less.
    """
    is_api_local: bool = True
    """Only this machine can connect to the API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkAccess:
    """The network of one command."""

    network: Network
    is_required: bool
    """Whether it was asked for explicitly, so that a machine that cannot give it refuses the command."""


def find_refusal(rules: NetworkRules, origin: RunOrigin, given: Network) -> str | None:
    """The reason why a command from ``origin`` is refused where every command has the network ``given``; ``None`` when
    it may run.
    """
    access = decide_access(rules, origin)
    if not access.is_required or choose_narrower(access.network, given) is given:
        return None
    return (
        f"commands of this run have the network {access.network.value!r} at most, and there they have {given.value!r}"
    )


_WIDTH: Final = tuple(reversed(Network))


def choose_narrower(one: Network, other: Network) -> Network:
    return min(one, other, key=_WIDTH.index)


def decide_access(rules: NetworkRules, origin: RunOrigin) -> NetworkAccess:
    """The network for a command from ``origin``. Unknown sources count as unattended."""
    chosen, usual = _find_rule(rules, origin.source)
    network = usual if chosen is None else chosen
    is_required = chosen is not None or network is rules.people
    if origin.is_guest:
        network, is_required = choose_narrower(network, Network.PROXY), True
    if origin.asked is not None and choose_narrower(network, Network(origin.asked)) is not network:
        network, is_required = Network(origin.asked), True
    return NetworkAccess(network=network, is_required=is_required and network is not Network.OPEN)


def _find_rule(rules: NetworkRules, source: str) -> tuple[Network | None, Network]:
    """The network that was chosen for ``source`` (``None`` for none), and its default."""
    guarded = choose_narrower(rules.people, Network.PROXY)
    match source:
        case "cli":
            return rules.people, rules.people
        case "api":
            return rules.api, rules.people if rules.is_api_local else guarded
        case _:
            return rules.unattended, guarded


PROXY_PORT: Final = 3128
"""The port at which a confined command finds the proxy, on an address of its own."""
_PROXY_URL: Final = f"http://127.0.0.1:{PROXY_PORT}"
_HERE: Final = "localhost,127.0.0.1,::1"

PROXY_VARIABLES: Mapping[str, str] = MappingProxyType(
    {name: _PROXY_URL for plain in ("http_proxy", "https_proxy", "all_proxy") for name in (plain, plain.upper())}
    | {"no_proxy": _HERE, "NO_PROXY": _HERE, "NODE_USE_ENV_PROXY": "1"}
)
"""The variables that tell programs of the proxy: curl, git, pip, npm, Go and Rust read these."""

_AUTHORITY: Final = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[^\s:/?#@\[\]]{1,253}):([0-9]{1,5})")


def parse_tunnel_target(authority: str, egress: EgressRules) -> HttpUrl:
    """The target of ``CONNECT authority``, before its name is resolved. Raises ``UnsafeUrl``."""
    if _AUTHORITY.fullmatch(authority) is None:
        raise UnsafeUrl("CONNECT needs a host and a port, such as example.org:443.")
    return _require_allowed(parse_http_url(f"https://{authority}/"), egress)


def parse_plain_target(url: str, egress: EgressRules) -> HttpUrl:
    """The target of a request for ``url``, before its name is resolved. Raises ``UnsafeUrl``."""
    target = parse_http_url(url)
    if target.scheme != "http":
        raise UnsafeUrl("An https URL is fetched through CONNECT.")
    return _require_allowed(target, egress)


def _require_allowed(target: HttpUrl, egress: EgressRules) -> HttpUrl:
    if target.port not in egress.ports:
        ports = ", ".join(str(port) for port in sorted(egress.ports))
        raise UnsafeUrl(f"Port {target.port} cannot be reached from here; allowed are {ports}.")
    if egress.hosts and not any(_matches(target.host, pattern.lower()) for pattern in egress.hosts):
        raise UnsafeUrl(f"The host {target.host!r} is not among those that can be reached from here.")
    return target


def _matches(host: str, pattern: str) -> bool:
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern
