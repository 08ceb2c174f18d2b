"""Whether a target can be sent to, as far as credentials decide it.

Workers that deliver have the credentials, and the API has none. So a worker says which variables it has, by their
names, and whoever accepts a target compares them with what the platform needs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hermes_worker.channels.adapters import EMAIL_VARIABLES, choose_values, list_missing_variables
from hermes_worker.channels.catalog import list_platforms
from hermes_worker.channels.targets import ChatRef, PlatformRef, Target, normalize_deliver, parse_targets
from hermes_worker.core.chat_accounts import strip_account_suffix


def list_set_variables(values: Mapping[str, str]) -> frozenset[str]:
    """List the variables of platforms, of every account, that have a value."""
    sendings = (row.sending for row in list_platforms().values() if row.sending is not None)
    known = {*EMAIL_VARIABLES.values(), *(name for sending in sendings for name in sending.variables.values())}
    return frozenset(name for name, value in values.items() if value.strip() and strip_account_suffix(name) in known)


def explain_undeliverable(senders: Collection[Collection[str]], deliver: str | Sequence[str]) -> str | None:
    """Explain which target none of the workers that deliver can send to; ``None`` where each has one, and where no
    worker says what it can. ``senders`` are the variables of each worker. Raises ``TargetError``."""
    if not senders:
        return None
    for reference in parse_targets(normalize_deliver(deliver)):
        match reference:
            case ChatRef(target=target):
                pass
            case PlatformRef(platform=platform):
                target = Target(platform=platform, chat="")
            case _:
                continue
        missing = [_list_missing(target, names) for names in senders]
        if all(missing):
            fewest = min(missing, key=lambda names: len(names))
            return (
                f"nothing can be sent to {target.sender}: no worker that delivers has {', '.join(fewest)}; "
                "set it where the workers start, or choose another target"
            )
    return None


def _list_missing(target: Target, names: Collection[str]) -> list[str]:
    return list_missing_variables(target.platform, choose_values(target, dict.fromkeys(names, "set")))
