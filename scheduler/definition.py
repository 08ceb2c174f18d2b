"""The definition of a job as its owner wrote it: checked once, on entry, for the API, the command line and agents, and
stored."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from hermes_worker.channels.catalog import find_platform
from hermes_worker.channels.targets import ChatRef, TargetError, format_reference, normalize_deliver, parse_targets
from hermes_worker.core.errors import HermesError
from hermes_worker.core.job_policies import CatchUp, Overlap
from hermes_worker.net.urls import UnsafeUrl, parse_http_url
from hermes_worker.safety.threats import scan_job_prompt
from scheduler import policy
from scheduler.grammar import read_record
from scheduler.lifecycle import stops_this_service
from scheduler.schedule import Schedule

NAME_CHARS_MAX = 200
PROMPT_CHARS_MAX = 5_000
LIST_MAX = 50
"""Most skills, toolsets or earlier jobs that one job may name."""


class InvalidJob(HermesError):
    """A job cannot be stored, or cannot run, as it is described; the message is one sentence for its owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The definition of a job. Stored as JSON."""

    prompt: str
    schedule: Mapping[str, Any]
    """The schedule as ``grammar.write_record`` writes it."""
    deliver: Sequence[str] = ("local",)
    origin: Mapping[str, str] | None = None
    """Where the job came from, in Hermes Agent's form: ``platform``, ``chat_id``, ``thread_id`` and further facts about
    the caller. ``origin`` in ``deliver`` means this chat, when it is one."""
    times: int | None = None

    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.ONE
    misfire_grace_s: int | None = None
    failures_max: int | None = None
    iterations_per_day: int | None = None
    tokens_per_day: int | None = None
    cost_usd_per_day: str | None = None
    """A decimal number as text, which JSON keeps exactly."""

    iterations_max: int | None = None
    tokens_max: int | None = None
    cost_usd_max: str | None = None
    """A decimal number as text."""
    wall_s_max: float | None = None
    idle_s_max: float | None = None
    """Seconds without progress; 0 for no limit; ``None`` for the limit of all jobs (``cron.inactivity_timeout``)."""
    approvals: str | None = None
    """What is done about a dangerous command: ``ask``, ``deny`` or ``approve``; ``None`` for the setting."""
    approval_s: float | None = None
    """Seconds that a person has to allow a command, under ``ask``."""
    network: str | None = None
    """The network of its commands and its script: ``open``, ``proxy`` or ``none``, and never more than the setting
    gives; ``None`` for the setting."""

    model: str | None = None
    provider: str | None = None
    """The provider that must be the configured one when the job runs."""
    base_url: str | None = None
    """The address that must be configured for the provider when the job runs."""
    model_snapshot: str | None = None
    """The configured model when an unpinned job was written: a run is refused while another one is configured."""
    provider_snapshot: str | None = None
    toolsets: Sequence[str] | None = None
    directory: str | None = None
    skills: Sequence[str] = ()
    script: str | None = None
    """Relative to ``scripts`` in the home directory of the workers."""
    no_agent: bool = False
    """Whether the script is the whole job; no model is called."""
    context_from: Sequence[str] = ()
    """Jobs whose latest answers go into this one's prompt."""
    attach_to: str | None = None
    """The session that gets every answer as a note."""
    is_agents: bool = False
    """Whether an agent made it: agents may change it, and its limits are those of its maker."""
    wraps: bool = True
    """Whether the job's name stands above what is delivered, and the way to stop it below."""

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        stored = json.loads(text)
        stored["overlap"] = Overlap(stored["overlap"])
        stored["catch_up"] = CatchUp(stored["catch_up"])
        return cls(**stored)

    @property
    def rules(self) -> policy.JobPolicy:
        cost = Decimal(self.cost_usd_per_day) if self.cost_usd_per_day is not None else None
        return policy.JobPolicy(
            overlap=self.overlap,
            catch_up=self.catch_up,
            misfire_grace_s=self.misfire_grace_s,
            failures_max=self.failures_max,
            daily_budget=policy.DailyBudget(
                iterations=self.iterations_per_day, tokens=self.tokens_per_day, cost_usd=cost
            ),
        )

    @property
    def is_collected(self) -> bool:
        """Whether a worker must run its script or read its skills before the prompt can be decided."""
        return self.script is not None or bool(self.skills)

    @property
    def targets(self) -> Sequence[str]:
        """The targets: ``deliver``, with what came from this chat going back there. Without such a chat ``origin`` is
        the first home channel, which is known only when something is sent.
        """
        chat = format_origin(self.origin)
        if chat is None:
            return self.deliver
        back = ("origin", chat.partition(":")[0])
        return list(dict.fromkeys(chat if target in back else target for target in self.deliver))

    @property
    def timezone(self) -> str:
        return str(self.schedule.get("timezone") or "UTC")

    def parse_schedule_at(self, now: float) -> Schedule:
        """Parse the schedule as of ``now``, in epoch seconds. Raises ``ScheduleError``."""
        return read_record(self.schedule, now=datetime.fromtimestamp(now, UTC))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A request to create a job, or to change one; ``None`` leaves a field as it is."""

    prompt: str | None = None
    schedule: str | None = None
    name: str | None = None
    deliver: str | Sequence[str] | None = None
    repeat: int | None = None
    timezone: str | None = None
    starts_at: str | None = None
    ends_at: str | None = None
    jitter_s: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of ``JobSpec``, as they came; see ``check_fields``."""


def check_prompt(prompt: str) -> str:
    """Raise ``InvalidJob`` for a prompt that is too long, or tries to take over the agent or to stop the service; else
    return it."""
    if len(prompt) > PROMPT_CHARS_MAX:
        raise InvalidJob(f"A job's prompt has at most {PROMPT_CHARS_MAX} characters, not {len(prompt)}.")
    if (finding := scan_job_prompt(prompt)) is not None:
        raise InvalidJob(finding.message)
    if stops_this_service(prompt):
        raise InvalidJob("Blocked: the prompt contains a command that stops or restarts this service.")
    return prompt


def check_name(name: str) -> str:
    """Check the name of a job. Raises ``InvalidJob``."""
    words = " ".join(name.split())
    if not words or len(words) > NAME_CHARS_MAX:
        raise InvalidJob(f"A job's name has 1 to {NAME_CHARS_MAX} characters.")
    return words


def check_targets(deliver: str | Sequence[str]) -> tuple[str, ...]:
    """Parse the targets, one by one. Raises ``InvalidJob``."""
    try:
        return tuple(format_reference(reference) for reference in parse_targets(normalize_deliver(deliver)))
    except TargetError as error:
        raise InvalidJob(str(error)) from error


def format_origin(origin: Mapping[str, str] | None) -> str | None:
    """Write an origin as a target; ``None`` when nothing can be sent to it, as for one over the API."""
    if origin is None or find_platform(origin["platform"]) is None:
        return None
    return ":".join(filter(None, (origin["platform"], origin["chat_id"], origin.get("thread_id"))))


def check_job(spec: JobSpec) -> JobSpec:
    """Check what only all fields together can get wrong. Raises ``InvalidJob``."""
    if spec.no_agent and spec.script is None:
        raise InvalidJob("A job without an agent needs a script.")
    if not spec.prompt.strip() and not spec.no_agent and not spec.skills:
        raise InvalidJob("The prompt is empty; say what is to be done.")
    if spec.base_url is not None and spec.provider is None:
        raise InvalidJob("base_url needs a provider: name the one that is to be asked there.")
    return spec


def check_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check fields of a ``JobSpec`` as a caller wrote them. ``None``, an empty text and an empty list reset a field to
    its default. Raises ``InvalidJob``."""
    checked = {}
    for name, value in given.items():
        if name not in _CHECKS:
            raise InvalidJob(f"A job has no field {name!r}.")
        is_cleared = value is None or value == "" or value == [] or value == ()
        checked[name] = _DEFAULTS[name] if is_cleared else _CHECKS[name](name, value)
    return checked


# --- one check per field ---------------------------------------------------------------------------------------------


def _make_integer_check(low: int, high: int) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidJob(f"{name} must be a whole number from {low} to {high}.")
        return value

    return check


def _make_seconds_check(low: float, high: float) -> Callable[[str, Any], float]:
    def check(name: str, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidJob(f"{name} must be a number of seconds from {low:g} to {high:g}.")
        return float(value)

    return check


def _make_choice_check(*allowed: str) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if value not in allowed:
            raise InvalidJob(f"{name} must be one of {', '.join(allowed)}.")
        return str(value)

    return check


def _make_form_check(pattern: str, words: str) -> Callable[[str, Any], str]:
    expression = re.compile(pattern)

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or not expression.fullmatch(value):
            raise InvalidJob(f"{name} must be {words}.")
        return value

    return check


def _build_list_check(item: Callable[[str, Any], str]) -> Callable[[str, Any], tuple[str, ...]]:
    def check(name: str, value: Any) -> tuple[str, ...]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or len(items) > LIST_MAX:
            raise InvalidJob(f"{name} must be a list of at most {LIST_MAX} names.")
        return tuple(dict.fromkeys(item(name, entry) for entry in items))

    return check


def _check_yes_or_no(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidJob(f"{name} must be true or false.")
    return value


def _check_dollars(name: str, value: Any) -> str:
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        amount = Decimal(-1)
    if isinstance(value, bool) or not amount.is_finite() or not 0 < amount <= 1_000_000:
        raise InvalidJob(f"{name} must be an amount of US dollars above 0.")
    return str(amount)


def _check_text(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > 4_096 or "\x00" in value:
        raise InvalidJob(f"{name} must be text.")
    return value


ORIGIN_CHARS_MAX = 200
"""Longest field of an origin, in characters."""
_ORIGIN_FIELDS = ("platform", "chat_id", "chat_name", "thread_id", "user_id")


def _check_origin(name: str, value: Any) -> Mapping[str, str]:
    """Check a chat, as a target or in Hermes Agent's fields."""
    if isinstance(value, Mapping):
        given = {key: str(part) for key, part in value.items() if part is not None}
        if not set(given) <= set(_ORIGIN_FIELDS) or any(len(part) > ORIGIN_CHARS_MAX for part in given.values()):
            raise InvalidJob(f"{name} has the fields {', '.join(_ORIGIN_FIELDS)}.")
        value = ":".join(filter(None, (given.get(key) for key in ("platform", "chat_id", "thread_id"))))
    else:
        given = {}
    try:
        (reference,) = parse_targets(_check_text(name, value))
    except (TargetError, ValueError) as error:
        raise InvalidJob(f"{name} must be one chat, such as 'telegram:123': {error}") from error
    if not isinstance(reference, ChatRef) or find_platform(reference.target.platform) is None:
        raise InvalidJob(f"{name} must be one chat, such as 'telegram:123'.")
    target = reference.target
    chat = {"platform": target.platform, "chat_id": target.chat}
    return {**given, **chat, **({"thread_id": target.thread} if target.thread else {})}


def _check_base_url(name: str, value: Any) -> str:
    try:
        return parse_http_url(_check_text(name, value)).url.rstrip("/")
    except UnsafeUrl as error:
        raise InvalidJob(f"{name} cannot be used: {error}") from error


SCRIPT = r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,99}(?:/[A-Za-z0-9_][A-Za-z0-9_. -]{0,99}){0,5}"
"""The form of a script's path. No part of it can be '..'."""
_SCRIPT = re.compile(SCRIPT)


def _check_script(name: str, value: Any) -> str:
    is_plain = isinstance(value, str) and _SCRIPT.fullmatch(value) is not None
    if not is_plain:
        raise InvalidJob("script must be the path of a file below the home directory's 'scripts', such as 'check.sh'.")
    return str(value)


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "overlap": lambda name, value: Overlap(_make_choice_check(*Overlap)(name, value)),
    "catch_up": lambda name, value: CatchUp(_make_choice_check(*CatchUp)(name, value)),
    "misfire_grace_s": _make_integer_check(0, 86_400),
    "failures_max": _make_integer_check(1, 1_000_000),
    "iterations_per_day": _make_integer_check(1, 10**9),
    "tokens_per_day": _make_integer_check(1, 10**15),
    "cost_usd_per_day": _check_dollars,
    "iterations_max": _make_integer_check(1, 100_000),
    "tokens_max": _make_integer_check(1, 10**12),
    "cost_usd_max": _check_dollars,
    "wall_s_max": _make_seconds_check(1, 31 * 86_400),
    "idle_s_max": _make_seconds_check(0, 31 * 86_400),
    "approvals": _make_choice_check("ask", "deny", "approve"),
    "approval_s": _make_seconds_check(1, 31 * 86_400),
    "network": _make_choice_check("open", "proxy", "none"),
    "model": _make_form_check(r"[\w.:/@+-]{1,200}", "the name of a model, without spaces"),
    "provider": _make_form_check(r"[\w.:-]{1,64}", "the name of a provider"),
    "base_url": _check_base_url,
    "origin": _check_origin,
    "toolsets": _build_list_check(_make_form_check(r"[\w.:-]{1,64}", "a list of toolset names")),
    "directory": _check_text,
    "skills": _build_list_check(_make_form_check(r"[A-Za-z0-9_][\w.:-]{0,99}", "a list of skill names")),
    "script": _check_script,
    "no_agent": _check_yes_or_no,
    "context_from": _build_list_check(_make_form_check(r"[0-9a-f]{12}", "a list of job ids")),
    "attach_to": _make_form_check(r"(?!.*\.\.)[!-.0-\[\]-~]{1,256}", "the id of a session"),
    "wraps": _check_yes_or_no,
}
_DEFAULTS = {item.name: item.default for item in fields(JobSpec)}
