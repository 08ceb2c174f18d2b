"""Declare how a platform is listened to: the counterpart of ``catalog.Sending``. ``receiving`` describes what the
references name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from hermes_worker.extension import Reference


class InboundMode(StrEnum):
    """How messages of an account reach us."""

    WEBHOOK = "webhook"
    POLL = "poll"
    SOCKET = "socket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiving:
    """How messages come in from a platform. The process that listens loads the references."""

    modes: tuple[InboundMode, ...]
    """The first is used where the operator names none."""
    credentials: Reference
    variables: Mapping[str, str]
    """Maps fields of the credentials to the environment variables that they are read from."""
    required: Mapping[InboundMode, tuple[str, ...]]
    """Per mode, the fields without which it cannot be used. The account is listened to when those of one mode are set.
    """
    secrets: tuple[str, ...] = ()
    """The fields that hold secrets. Their variables are given to the gateway role."""
    webhook_secrets: tuple[str, ...] = ()
    """The secrets that ``receive``, ``answer`` and ``signing_keys`` need: the API gets these, and no others."""
    receive: Reference | None = None
    answer: Reference | None = None
    poll: Reference | None = None
    fetch: Reference | None = None
    socket: Reference | None = None
    download: Reference | None = None
    read_file: Reference | None = None
    signing_keys: Reference | None = None
    acknowledge: Reference | None = None
    identify: Reference | None = None
    presses: tuple[str, ...] = ()
    """Fields that, when set, let presses of buttons come to a webhook although messages come in another way. Then there
    is a ``receive`` that reads nothing else."""
    poll_s: float = 0.0
    """Seconds between two polls; 0 where the platform itself holds a poll until there is something."""
    is_unverified: bool = False
    """Whether it was tried only against a stand-in made from the vendor's documentation; ``doctor`` and docs/gateway.md
    say so."""
    asks_by_get: bool = False
    """Whether the platform asks with a GET if the address of a webhook is ours, and ``receive`` knows such a request.
    """
    pairs: bool = True
    """Whether a stranger who writes directly gets a pairing code; false where that would answer spam (mail)."""

    @property
    def gives_files(self) -> bool:
        """Whether files that people send can be downloaded."""
        return self.download is not None or self.read_file is not None


_OPTIONAL = ("answer", "fetch", "download", "read_file", "signing_keys", "acknowledge", "identify")
"""Fields of ``Receiving`` that not every platform has."""


def declare_receiving(
    module: str,
    *,
    modes: tuple[InboundMode, ...],
    required: Mapping[InboundMode, tuple[str, ...]],
    variables: Mapping[str, str],
    secrets: tuple[str, ...] = (),
    webhook_secrets: tuple[str, ...] = (),
    also: tuple[str, ...] = (),
    presses: tuple[str, ...] = (),
    poll_s: float = 0.0,
    is_unverified: bool = False,
    asks_by_get: bool = False,
    pairs: bool = True,
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> Receiving:
    """Declare a platform by a module that has ``Credentials`` and the usual names for its modes: ``receive`` for
    webhooks, ``poll`` for polling, ``Socket`` for sockets.

    ``also`` lists further names that it has: ``answer``, ``fetch`` (then there is no ``poll``), ``download`` or
    ``read_file``, ``signing_keys``, ``acknowledge`` and ``identify``. ``elsewhere`` maps names to the modules they
    stand in; with ``presses`` there is a ``receive`` as well.
    """
    has = frozenset(also)

    def named(name: str, is_there: bool) -> Reference | None:
        return f"{elsewhere.get(name, module)}:{name}" if is_there else None

    return Receiving(
        modes=modes,
        credentials=f"{module}:Credentials",
        variables=MappingProxyType(dict(variables)),
        required=MappingProxyType(dict(required)),
        secrets=secrets,
        webhook_secrets=webhook_secrets,
        receive=named("receive", InboundMode.WEBHOOK in modes or bool(presses)),
        poll=named("poll", InboundMode.POLL in modes and "fetch" not in has),
        socket=named("Socket", InboundMode.SOCKET in modes),
        **{name: named(name, name in has) for name in _OPTIONAL},
        presses=presses,
        poll_s=poll_s,
        is_unverified=is_unverified,
        asks_by_get=asks_by_get,
        pairs=pairs,
    )
