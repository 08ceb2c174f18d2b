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
    read_file: Reference | None = None
    signing_keys: Reference | None = None
    acknowledge: Reference | None = None
    identify: Reference | None = None
    presses: tuple[str, ...] = ()
    """The fields that, when they are set, let presses of buttons come to a webhook, although the account is listened to
    otherwise. Then there is a ``receive`` that reads nothing else."""
    poll_s: float = 0.0
    """Seconds between two looks; 0 where the platform itself holds a look until there is something."""
    is_unverified: bool = False
    """It was tried only with a stand-in made from the vendor's documentation; ``doctor`` and docs/gateway.md say so."""
    asks_by_get: bool = False
    """The platform asks with a GET whether the address of a webhook is ours, and ``receive`` knows such a request."""
    pairs: bool = True
    """A stranger who writes directly is given a pairing code; false where that would answer spam (mail)."""

    @property
    def gives_files(self) -> bool:
        """Whether the files that people send can be had."""
        return self.download is not None or self.read_file is not None


_OPTIONAL = ("answer", "fetch", "download", "read_file", "signing_keys", "acknowledge", "identify")
"""What not every platform has; fields of ``Receiving``."""


def receiving_by(
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
    """By a module that has ``Credentials`` and what its modes need by the usual names: ``receive`` for webhooks,
    ``poll`` for polling, ``Socket`` for sockets; ``also`` names of ``answer``, ``fetch`` (then there is no ``poll``),
    ``download`` or ``read_file``, ``signing_keys``, ``acknowledge`` and ``identify`` those that it has. ``elsewhere``
    are the modules of those that stand in another one; with ``presses`` there is a ``receive`` as well."""
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
