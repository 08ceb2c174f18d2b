"""How a platform is listened to, as declarations: the mirror of ``catalog.Sending``. What the references name is
described in ``receiving``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from hermes_worker.extension import Reference


class InboundMode(StrEnum):
    """How an account is listened to."""

    WEBHOOK = "webhook"
    POLL = "poll"
    SOCKET = "socket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiving:
    """How messages come in from a platform. The references are loaded by the process that listens."""

    modes: tuple[InboundMode, ...]
    """The first is used where the operator names none."""
    credentials: Reference
    variables: Mapping[str, str]
    """Fields of the credentials and the environment variables they are read from."""
    required: Mapping[InboundMode, tuple[str, ...]]
    """The fields without which a mode cannot be used. The account is listened to when those of one mode are set."""
    secrets: tuple[str, ...] = ()
    """The fields that hold secrets. Their variables are given to the gateway role."""
    webhook_secrets: tuple[str, ...] = ()
    """Those of them that ``receive``, ``answer`` and ``signing_keys`` need: the API gets these, and no others."""
    receive: Reference | None = None
    answer: Reference | None = None
    poll: Reference | None = None
    fetch: Reference | None = None
    socket: Reference | None = None
    download: Reference | None = None
    signing_keys: Reference | None = None
    acknowledge: Reference | None = None
    identify: Reference | None = None
    poll_s: float = 0.0
    """Seconds between two looks; 0 where the platform itself holds a look until there is something."""
    is_unverified: bool = False
    """It was tried only with a stand-in made from the vendor's documentation; ``doctor`` and docs/gateway.md say so."""
    asks_by_get: bool = False
    """The platform asks with a GET whether the address of a webhook is ours, and ``receive`` knows such a request."""
    pairs: bool = True
    """A stranger who writes directly is given a pairing code; false where that would answer spam (mail)."""


def receiving_by(
    module: str,
    *,
    modes: tuple[InboundMode, ...],
    required: Mapping[InboundMode, tuple[str, ...]],
    variables: Mapping[str, str],
    secrets: tuple[str, ...] = (),
    webhook_secrets: tuple[str, ...] = (),
    also: tuple[str, ...] = (),
    poll_s: float = 0.0,
    is_unverified: bool = False,
    asks_by_get: bool = False,
    pairs: bool = True,
    socket_module: str | None = None,
) -> Receiving:
    """By a module that has ``Credentials`` and what its modes need by the usual names: ``receive`` for webhooks,
    ``poll`` for polling, ``Socket`` for sockets (in ``socket_module``, where that is another one); ``also`` names of
    ``answer``, ``fetch`` (then there is no ``poll``), ``download``, ``signing_keys``, ``acknowledge`` and ``identify``
    those that it has."""
    has = frozenset(also)
    polls = InboundMode.POLL in modes and "fetch" not in has
    return Receiving(
        modes=modes,
        credentials=f"{module}:Credentials",
        variables=MappingProxyType(dict(variables)),
        required=MappingProxyType(dict(required)),
        secrets=secrets,
        webhook_secrets=webhook_secrets,
        receive=f"{module}:receive" if InboundMode.WEBHOOK in modes else None,
        answer=f"{module}:answer" if "answer" in has else None,
        poll=f"{module}:poll" if polls else None,
        fetch=f"{module}:fetch" if "fetch" in has else None,
        socket=f"{socket_module or module}:Socket" if InboundMode.SOCKET in modes else None,
        download=f"{module}:download" if "download" in has else None,
        signing_keys=f"{module}:signing_keys" if "signing_keys" in has else None,
        acknowledge=f"{module}:acknowledge" if "acknowledge" in has else None,
        identify=f"{module}:identify" if "identify" in has else None,
        poll_s=poll_s,
        is_unverified=is_unverified,
        asks_by_get=asks_by_get,
        pairs=pairs,
    )
