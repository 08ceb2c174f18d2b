"""A webhook route: who may send events to it, which of them it accepts, and what is done with them."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hermes_worker.channels.catalog import find_platform
from hermes_worker.channels.targets import TargetError, format_reference, normalize_deliver, parse_targets
from hermes_worker.core.errors import HermesError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.features.webhooks.rules.filters import FilterError, check_filter
from hermes_worker.features.webhooks.rules.template import PLACEHOLDER

NO_AUTH = "INSECURE_NO_AUTH"
"""In place of a secret: every program on this machine may send events, an agent's command with a network too. A server
that listens beyond the machine refuses them."""
RATE_PER_MIN = 30
BODY_BYTES_MAX = 1_048_576
PROMPT_CHARS_MAX = 100_000
SECRET_CHARS_MIN = 16

SKILLS_MAX = 50

_SKILL = re.compile(r"[A-Za-z0-9_][\w.:-]{0,99}")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_NOTHING = ("", "log")
"""The targets that Hermes Agent has for delivering nowhere."""


class RouteError(HermesError):
    """A route cannot be as it was written; the message is one sentence for the person who wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route. Stored as JSON, the secret beside it."""

    name: str
    secret: str = field(repr=False)
    prompt: str = ""
    """A template (``template.render``); empty for one that shows the payload."""
    events: Sequence[str] = ()
    """The types of events that it accepts; empty for all."""
    filters: Sequence[Mapping[str, Any]] = ()
    """The conditions on the payload, all of which must hold (``filters.does_match``)."""
    deliver: Sequence[str] = ()
    """Targets of the answer. A chat may be taken from the payload: ``telegram:{chat.id}``."""
    deliver_only: bool = False
    """Whether the prompt is delivered as it is, without a run."""
    skills: Sequence[str] = ()
    """The first of them that exists is put before the prompt."""
    toolsets: Sequence[str] = ()
    model: str | None = None
    rate_per_min: int = RATE_PER_MIN
    description: str = ""
    enabled: bool = True

    def to_json(self) -> str:
        """Write the route without its name and its secret."""
        document = asdict(self)
        del document["name"], document["secret"]
        return dump_canonical_json(document)

    @classmethod
    def from_json(cls, name: str, secret: str, text: str) -> Route:
        document = json.loads(text)
        known = {key: document[key] for key in cls.__slots__ if key in document}
        return cls(**{**known, "name": name, "secret": secret})


def make_secret() -> str:
    return secrets.token_urlsafe(32)


def validate_route(route: Route) -> Route:
    """Validate a route, and split its targets. Raises ``RouteError``."""
    if not _NAME.fullmatch(route.name):
        raise RouteError(f"A route's name is 1 to 64 lower-case letters, digits, '-' and '_', not {route.name[:80]!r}.")
    if route.secret != NO_AUTH and len(route.secret) < SECRET_CHARS_MIN:
        raise RouteError(f"A secret has at least {SECRET_CHARS_MIN} characters; leave it out to get one.")
    if len(route.prompt) > PROMPT_CHARS_MAX:
        raise RouteError(f"A prompt has at most {PROMPT_CHARS_MAX} characters.")
    if len(route.skills) > SKILLS_MAX or not all(_SKILL.fullmatch(name) for name in route.skills):
        raise RouteError(f"Skills are at most {SKILLS_MAX} names of letters, digits and any of _ . : -")
    if not 1 <= route.rate_per_min <= 10_000:
        raise RouteError("The rate is from 1 to 10000 events a minute.")
    try:
        for spec in route.filters:
            check_filter(spec)
    except FilterError as error:
        raise RouteError(f"The filter cannot be used: {error}") from None
    deliver = _parse_targets(route.deliver)
    if route.deliver_only and not deliver:
        raise RouteError("A route that only delivers needs a target; name one with --deliver.")
    return Route.from_json(
        route.name, route.secret, dump_canonical_json({**json.loads(route.to_json()), "deliver": deliver})
    )


def _parse_targets(deliver: Sequence[str]) -> list[str]:
    found: list[str] = []
    for target in deliver:
        if target.strip().lower() in _NOTHING:
            continue
        if PLACEHOLDER.search(target):
            found.append(_validate_template(target))
            continue
        try:
            found += [format_reference(reference) for reference in parse_targets(normalize_deliver(target))]
        except TargetError as error:
            raise RouteError(str(error)) from None
    return list(dict.fromkeys(found))


def _validate_template(target: str) -> str:
    """Validate a target in which the sender of an event chooses a part: only which chat of a platform, never an
    address. Raises ``RouteError``."""
    platform, _, chat = target.strip().partition(":")
    if find_platform(platform) is None or PLACEHOLDER.search(platform) or "," in chat or not chat:
        raise RouteError(
            f"{target[:80]!r} cannot be a target: parts of the payload may only stand in the chat of one platform, as "
            "in 'telegram:{chat.id}'."
        )
    return f"{platform}:{chat}"
