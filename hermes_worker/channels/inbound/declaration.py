"""Declare how a platform is listened to: the counterpart of ``catalog.Sending``. ``receiving`` describes what the
references name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

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
    socket_extra: str = ""
    """The optional dependencies that ``socket`` takes: ``pip install hermes-worker[...]``."""
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
