"""What a submission may say, and what is asked of it before anything is looked up.

Everything here is decided from the submission alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from hermes_worker.channels.targets import (
    NO_RULES,
    TargetError,
    format_reference,
    normalize_deliver,
    parse_targets,
    require_open_to,
)
from hermes_worker.core.artifact_patterns import PATTERNS_MAX, explain_wrong_pattern
from hermes_worker.core.budget import BudgetMode
from hermes_worker.core.chat_accounts import ChatRules
from hermes_worker.core.client_tools import ClientTool
from hermes_worker.core.errors import HermesError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.principals import DEFAULT_TENANT, OPERATOR, Principal
from hermes_worker.core.priority import LATEST_S, Priority
from hermes_worker.core.spec import Multitask, RunRequest, RunTerms
from hermes_worker.core.tool_schemas import explain_unusable_name
from hermes_worker.store.runs.runs import compute_fingerprint


class InvalidSubmission(HermesError):
    """The submission cannot be accepted; ``field`` names the part of it to change."""

    def __init__(self, submission_field: str, message: str) -> None:
        super().__init__(message)
        self.field = submission_field


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission(RunRequest, RunTerms):
    """A request for a run. ``None`` leaves a choice to the settings."""

    model: str | None = None
    endpoint: str | None = None
    """The name of the server of the model (``models.identity``), where the caller knows better than the settings."""
    toolsets: Sequence[str] | None = None
    iterations_max: int | None = None
    wall_s_max: float | None = None
    cost_usd_max: float | None = None
    budget: BudgetMode | None = None
    """How child runs share the limits."""
    idle_s_max: float | None = None
    """Seconds without progress; 0 for no limit."""
    directory: str | None = None
    """Absolute path of a directory for a new session to work in. Not to be taken from outsiders: who chooses it reads
    and writes there. ``None`` gives the session a directory of its own."""
    principal: Principal = OPERATOR
    """The caller and its tenant: the run belongs to that tenant, and so does all that it causes."""
    skills: Sequence[str] = ()
    """Skills and bundles to follow: their texts stand before ``input``."""
    artifacts: Sequence[str] | None = None
    """Patterns of the files that the run leaves (``features.artifacts.rules``); an empty list for none at all."""
    priority: Priority | None = None
    """``None`` for the normal priority."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of this run, written as in the environment, by key (``core.overrides``)."""
    client_tools: Sequence[ClientTool] = ()
    """Tools of the caller for a new session, whose results it brings itself (``core.client_tools``)."""
    deliver: str | Sequence[str] | None = None
    """Targets that get the answer, in the grammar of ``channels.targets``."""
    request: str | None = None
    """The text that the key stands for, where that is not this submission but what it was made from."""


TAGS_MAX = 16
CLIENT_TOOLS_MAX = 128
TEXT_CHARS_MAX = 1_000_000
"""Longest message. Longer ones are refused, never cut: Hermes Agent cuts at 65,536 and says nothing."""


class _Form(NamedTuple):
    pattern: re.Pattern[str]
    words: str
    """Completes the sentence "... must be"."""


_FORMS: Mapping[str, _Form] = {
    # It fits into a header and never looks like a path.
    "session_id": _Form(
        re.compile(r"(?!.*\.\.)[!-.0-\[\]-~]{1,256}"),
        "1 to 256 printable ASCII characters without spaces, '/', '\\' and '..'",
    ),
    "model": _Form(re.compile(r"[A-Za-z0-9_.:/@+-]{1,200}"), "1 to 200 letters, digits and any of _ . : / @ + -"),
    "idempotency_key": _Form(re.compile(r"(?=.*\S)[\x20-\x7e]{1,256}"), "1 to 256 printable ASCII characters"),
}
"""The forms of the fields that become keys, names and headers."""
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,63}")
_NOT_LATER = frozenset({Multitask.INTERRUPT, Multitask.STEER, Multitask.REJECT})
"""Modes that concern the session as it is now, and so make no sense for a run that begins later."""


def validate(submission: Submission, now: float) -> None:
    """Check what a submission says by itself; ``now`` is the time in epoch seconds. Raises ``InvalidSubmission``."""
    require_valid_forms(submission)
    if isinstance(submission.input, str) and not submission.input.strip():
        raise InvalidSubmission("input", "the message is empty")
    if len(submission.input) > TEXT_CHARS_MAX:
        raise InvalidSubmission("input", f"the message has more than {TEXT_CHARS_MAX} characters")
    _require_valid_tags(submission.tags)
    _require_valid_artifacts(submission.artifacts or ())
    _require_usable_schema(submission)
    _require_valid_times(submission, now)


def require_valid_forms(said: object) -> None:
    """Check those attributes of what was said that become keys, names and headers. Raises ``InvalidSubmission``."""
    for name, form in _FORMS.items():
        value = getattr(said, name, None)
        if value is not None and not form.pattern.fullmatch(value):
            raise InvalidSubmission(name, f"{name} must be {form.words}")


def warm_up() -> None:
    """Import the libraries that check schemas, so that no caller of a lasting process waits for that. Idempotent."""
    from hermes_worker.agent.output import check_schema

    check_schema({"type": "object"})


def _require_usable_schema(submission: Submission) -> None:
    if submission.output_schema is None:
        return
    if submission.multitask is Multitask.STEER:
        raise InvalidSubmission("output_schema", "what is said to a run at work has no answer of its own")
    # Here and not above: it takes long to import, and few runs have a schema.
    from hermes_worker.agent.output import check_schema
    from hermes_worker.agent.tools.schema_time_limit import UnusableSchema

    try:
        check_schema(submission.output_schema)
    except UnusableSchema as error:
        raise InvalidSubmission("output_schema", f"the schema {error}") from None


def _require_valid_tags(tags: Sequence[str]) -> None:
    if len(tags) > TAGS_MAX:
        raise InvalidSubmission("tags", f"a run has at most {TAGS_MAX} tags")
    for tag in tags:
        if not TAG.fullmatch(tag):
            words = "a tag is 1 to 64 letters, digits and any of _ . : / @ + -, and begins with a letter or a digit"
            raise InvalidSubmission("tags", f"{tag[:80]!r} is no tag: {words}")


def _require_valid_artifacts(patterns: Sequence[str]) -> None:
    if len(patterns) > PATTERNS_MAX:
        raise InvalidSubmission("artifacts", f"a run declares at most {PATTERNS_MAX} patterns of artifacts")
    for pattern in patterns:
        if (wrong := explain_wrong_pattern(pattern)) is not None:
            raise InvalidSubmission("artifacts", f"the pattern {pattern[:80]!r} of artifacts {wrong}")


def _require_valid_times(submission: Submission, now: float) -> None:
    if submission.not_before is not None and submission.delay_s is not None:
        raise InvalidSubmission("delay_s", "not_before and delay_s say the same: name one of them")
    begins = now + submission.delay_s if submission.delay_s is not None else submission.not_before
    if begins is not None and not 0 <= begins <= now + LATEST_S:
        field_name = "not_before" if submission.delay_s is None else "delay_s"
        raise InvalidSubmission(field_name, f"a run can be put off by at most {LATEST_S / 86_400:.0f} days")
    if begins is not None and submission.multitask in _NOT_LATER:
        raise InvalidSubmission(
            "multitask",
            f"{submission.multitask.value!r} is about the session as it is now; a run that begins later waits for its "
            "turn in the session: leave 'multitask' out",
        )
    if submission.deadline is not None and submission.deadline <= max(now, begins or 0.0):
        raise InvalidSubmission("deadline", "the deadline has passed before the run can begin")


def require_valid_client_tools(brought: Sequence[ClientTool], taken: Collection[str]) -> None:
    """Check tools that a caller brings for a session in which the names ``taken`` are in use. Raises
    ``InvalidSubmission``."""
    # Here and not above: it takes long to import, and few runs have such tools.
    from hermes_worker.agent.output import SCHEMA_CHARS_MAX, require_usable_parameters
    from hermes_worker.agent.tools.schema_time_limit import UnusableSchema

    if len(brought) > CLIENT_TOOLS_MAX:
        raise InvalidSubmission("tools", f"a session has at most {CLIENT_TOOLS_MAX} tools of its client")
    left = SCHEMA_CHARS_MAX
    seen: set[str] = set()
    for tool in brought:
        if problem := explain_unusable_name(tool.name):
            raise InvalidSubmission("tools", f"the tool {tool.name[:80]!r} {problem}")
        if tool.name in taken or tool.name in seen:
            whose = "two of them are called so" if tool.name in seen else "the agent has a tool of that name"
            raise InvalidSubmission("tools", f"the tool {tool.name!r} needs another name: {whose}")
        seen.add(tool.name)
        try:
            require_usable_parameters(tool.parameters)
        except UnusableSchema as error:
            raise InvalidSubmission("tools", f"the tool {tool.name!r} cannot be used: its schema {error}") from None
        left -= len(dump_canonical_json(tool.parameters)) + len(tool.description)
        if left < 0:
            words = f"all of them together have more than {SCHEMA_CHARS_MAX:,} characters"
            raise InvalidSubmission("tools", f"the tools are too large: {words}")


def list_targets(
    deliver: str | Sequence[str] | None, tenant: str = DEFAULT_TENANT, rules: ChatRules = NO_RULES
) -> list[str]:
    """List the targets, one by one, as they are written. ``rules`` say which chats are the tenant's. Raises
    ``InvalidSubmission``."""
    if not deliver:
        return []
    try:
        references = parse_targets(normalize_deliver(deliver))
        require_open_to(tenant, references, rules)
        return [format_reference(reference) for reference in references]
    except TargetError as error:
        raise InvalidSubmission("deliver", str(error)) from error


_FIRST_FIELDS = {
    "approval_s",
    "approvals",
    "budget",
    "cost_usd_max",
    "directory",
    "files",
    "history",
    "input",
    "instructions",
    "iterations_max",
    "metadata",
    "model",
    "multitask",
    "network",
    "session_id",
    "source",
    "tokens_max",
    "tool_calls_max",
    "toolsets",
    "wall_s_max",
}
"""Fields that count even when they are empty. All others were added later: a submission that names none of them has the
fingerprint that it had before."""


def make_fingerprint(submission: Submission) -> str:
    """Make the fingerprint of what was asked for, not of what the settings made of it: a retry after a change of
    settings is a retry. Empty without a key and a proof."""
    if submission.idempotency_key is None and submission.proof is None:
        return ""
    if submission.request is not None:
        return compute_fingerprint(submission.request)
    asked_for = asdict(submission)
    for name in asked_for.keys() - _FIRST_FIELDS:
        if asked_for[name] in (None, "", [], (), {}):
            del asked_for[name]  # a key from before there was this still fits its request
    for name in ("idempotency_key", "endpoint", "request", "proof", "principal"):
        asked_for.pop(name, None)
    return compute_fingerprint(asked_for)
