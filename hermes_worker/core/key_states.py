"""Decide whether a provider's key may be used at all, over the whole fleet. Pure.

A key that has no money, that its provider refuses, or whose server is out of order is *closed*: no model call is begun
with it, except for one *probe* at a time. A probe is the due model call of some run. When it succeeds the key is open
again; when it fails the next one waits longer.

*Evidence* closes a key: failures that say something about the key and not about one request. One answer is enough to
say that there is no money; that a key is refused or a server out of order takes several runs, none of whose calls were
answered meanwhile. So no single run closes a key for others by what it asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from hermes_worker.core.errors import Classification, FailureKind

EVIDENCE_MAX = 16
"""Pieces of evidence that are kept; more say nothing new."""
PARKED_S = 300.0
"""Seconds after which a run that waits for a closed key tries again by itself, even if it was not woken."""
_JITTER_PART = 0.2
_DOUBLINGS_MAX = 32


class KeyCondition(StrEnum):
    OPEN = "open"
    NO_MONEY = "no_money"
    REFUSED = "refused"
    """The provider does not know the key, or has locked it."""
    DOWN = "down"
    """Its server does not answer, or answers with errors of its own."""

    @property
    def text(self) -> str:
        """A sentence for people about what is wrong with a key."""
        return _TEXTS[self]


_TEXTS: Mapping[KeyCondition, str] = {
    KeyCondition.OPEN: "may be used",
    KeyCondition.NO_MONEY: "has no money",
    KeyCondition.REFUSED: "is refused by its provider",
    KeyCondition.DOWN: "leads to a server that is out of order",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRules:
    """When a key is closed, and how often it is probed, which the settings ``model.probe_*`` say."""

    runs_needed: int = 3
    """Runs that must have seen a refusal or an outage, at least 1. One run is enough when the provider says that
    there is no money."""
    window_s: float = 120.0
    """Seconds for which evidence counts."""
    span_s: float = 5.0
    """Least seconds that an outage has lasted: longer than a process may use a stale state, so a success in between is
    known."""
    probe_first_s: float = 15.0
    probe_max_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A run's encounter with a failure that says something about the key."""

    condition: KeyCondition
    run: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The meaning of a failed request for its key."""

    condition: KeyCondition | None = None
    """``None`` when it says nothing."""
    is_about_request: bool = False
    """A smaller request might have been answered, so one run's word is not enough."""
    is_answer: bool = False
    """The server works: it answered, if only with a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyState:
    """The state of a key. Times are epoch seconds by the database's clock."""

    condition: KeyCondition = KeyCondition.OPEN
    epoch: int = 0
    """How often the key was closed, or closed for another reason."""
    since: float | None = None
    """When it came into this condition; ``None`` for a key that was never closed."""
    evidence: tuple[Evidence, ...] = ()
    """The evidence against an open key."""
    probes: int = 0
    """How many probes have failed since it was closed."""
    probe_at: float | None = None
    """When the next probe may begin; ``None`` while the key is open."""

    @property
    def is_closed(self) -> bool:
        return self.condition is not KeyCondition.OPEN


_OUTAGES = (FailureKind.UNREACHABLE, FailureKind.TIMEOUT, FailureKind.SERVER_ERROR, FailureKind.OVERLOADED)
_NEVER_ASKED = (FailureKind.INTERRUPTED, FailureKind.CONFIGURATION, FailureKind.SSL_CERT_VERIFICATION)
_ABOUT_REQUEST = ("fewer max_tokens", "can only afford", "reduce max_tokens", "lower max_tokens")
"""OpenRouter's words (its documentation of error 402, 2026) for a request that costs more than what is left."""


def decide_finding(failure: Classification) -> Finding:
    """Decide what ``failure`` says about the key that was used. Total. A 403 says nothing, because it may be about one
    model."""
    kind = failure.kind
    if kind is FailureKind.BILLING:
        said = failure.message.lower()
        is_small = any(words in said for words in _ABOUT_REQUEST)
        return Finding(condition=KeyCondition.NO_MONEY, is_about_request=is_small, is_answer=True)
    if kind is FailureKind.AUTH_PERMANENT or (kind is FailureKind.AUTH and failure.status == 401):
        return Finding(condition=KeyCondition.REFUSED, is_answer=True)
    if kind in _OUTAGES:
        return Finding(condition=KeyCondition.DOWN)
    is_answer = kind not in _NEVER_ASKED and failure.status is not None and failure.status < 500
    return Finding(is_answer=is_answer)


def apply_failure(
    state: KeyState, found: Finding, run: str, now: float, rules: KeyRules, jitter: float = 0.0
) -> KeyState:
    """The state after a call of ``run``, which was no probe, failed. ``jitter`` is a random number, 0 <= jitter < 1. A
    closed key stays as it is: a call that began before it was closed says nothing new."""
    if state.is_closed or found.condition is None:
        return state
    evidence = _add_evidence(state.evidence, Evidence(condition=found.condition, run=run, at=now), rules)
    same = [each for each in evidence if each.condition is found.condition]
    is_said_by_one = found.condition is KeyCondition.NO_MONEY and not found.is_about_request
    is_outage = found.condition is KeyCondition.DOWN
    has_lasted = not is_outage or now - min(each.at for each in same) >= rules.span_s
    if is_said_by_one or (len(same) >= rules.runs_needed and has_lasted):
        return _close(state, found.condition, now, rules, jitter)
    return replace(state, evidence=evidence)


def apply_answer(state: KeyState) -> KeyState:
    """The state after a call that was no probe was answered: the evidence against an open key is dropped. A closed key
    stays closed, since the call may have begun before that."""
    return state if state.is_closed else replace(state, evidence=())


def apply_probe_answer(state: KeyState, now: float) -> KeyState:
    """The state after a probe was answered, or an operator opened the key."""
    if not state.is_closed:
        return replace(state, evidence=())
    return KeyState(condition=KeyCondition.OPEN, epoch=state.epoch, since=now)


def apply_probe_failure(state: KeyState, found: Finding, now: float, rules: KeyRules, jitter: float = 0.0) -> KeyState:
    """The state after a probe failed. A failure that says nothing about the key says at least whether the server works;
    if that was not the question, the next run probes, no later than this one did."""
    if not state.is_closed:
        return state
    if found.condition is None:
        if state.condition is KeyCondition.DOWN and found.is_answer:
            return apply_probe_answer(state, now)
        return replace(state, probe_at=now + compute_probe_wait_s(state.probes, rules, jitter))
    probes = min(state.probes + 1, 1_000)
    again = replace(state, probes=probes, probe_at=now + compute_probe_wait_s(probes, rules, jitter))
    if found.condition in (state.condition, KeyCondition.DOWN):
        return again  # an outage does not mean that a key has credit again
    return replace(again, condition=found.condition, epoch=state.epoch + 1, since=now)


def apply_probe_release(state: KeyState, now: float, wait_s: float) -> KeyState:
    """The state after a probe was given back before anything was sent."""
    return replace(state, probe_at=now + max(0.5, wait_s)) if state.is_closed else state


def compute_probe_wait_s(probes: int, rules: KeyRules, jitter: float = 0.0) -> float:
    """Seconds before the probe that follows ``probes`` failed ones: doubling, up to ``probe_max_s``, and up to a fifth
    more."""
    doubled: float = rules.probe_first_s * 2.0 ** min(max(probes, 0), _DOUBLINGS_MAX)
    return float(min(doubled, rules.probe_max_s) * (1 + _JITTER_PART * jitter))


def _close(state: KeyState, condition: KeyCondition, now: float, rules: KeyRules, jitter: float) -> KeyState:
    return KeyState(
        condition=condition, epoch=state.epoch + 1, since=now, probe_at=now + compute_probe_wait_s(0, rules, jitter)
    )


def _add_evidence(evidence: Iterable[Evidence], new: Evidence, rules: KeyRules) -> tuple[Evidence, ...]:
    """The evidence that still counts, with ``new``: the first of each run, up to ``EVIDENCE_MAX``."""
    kept = [each for each in evidence if new.at - rules.window_s < each.at <= new.at]
    is_known = any(each.run == new.run and each.condition is new.condition for each in kept)
    if is_known:
        return tuple(kept)
    if len(kept) >= EVIDENCE_MAX:
        kept.remove(min(kept, key=lambda each: each.at))
    return (*kept, new)


def dump_evidence(evidence: Sequence[Evidence]) -> list[list[object]]:
    """Dump evidence as JSON values."""
    return [[each.condition.value, each.run, each.at] for each in evidence]


def parse_evidence(document: object) -> tuple[Evidence, ...]:
    """Parse what ``dump_evidence`` wrote; invalid entries are left out."""
    found: list[Evidence] = []
    for each in document if isinstance(document, list) else ():
        match each:
            case [str(condition), str(run), int() | float() as at] if condition in _TEXTS:
                found.append(Evidence(condition=KeyCondition(condition), run=run, at=float(at)))
            case _:
                continue
    return tuple(found[:EVIDENCE_MAX])
