"""Jobs in requests and answers."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any

from pydantic import BaseModel, Field, WithJsonSchema

from hermes_worker.api.formats import NOT_BLANK, TextFormat, build_text_schema, text, text_or_nothing
from hermes_worker.api.schema import WHOLE
from hermes_worker.channels.targets import TARGETS_MAX
from hermes_worker.core.job_policies import CatchUp, Overlap
from hermes_worker.core.principals import USER_HEADER
from scheduler import jobs as work
from scheduler.definition import LIST_MAX, NAME_CHARS_MAX, ORIGIN_CHARS_MAX, PROMPT_CHARS_MAX, SCRIPT
from scheduler.grammar import JITTER_S_MAX

REPEAT_MAX = 1_000_000_000
_DAYS_S = 31 * 86_400


# The annotations below only describe: the values are checked with the job, and an empty one resets a field to its


def _form(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^({pattern})?$"})


def _one_of(*words: str) -> WithJsonSchema:
    return WithJsonSchema({"enum": [*words, ""]})


def _list_of(pattern: str) -> WithJsonSchema:
    item = {"type": "string", "pattern": f"^{pattern}$"}
    return WithJsonSchema({"type": "array", "maxItems": LIST_MAX, "items": item})


def _declare_range(low: float, high: float, kind: str = "integer") -> WithJsonSchema:
    return WithJsonSchema({"type": kind, "minimum": low, "maximum": high})


_DOLLARS = WithJsonSchema(
    {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000}, {"enum": [""]}]},
)
_CHAT = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "platform": build_text_schema(TextFormat.PLATFORM),
        "chat_id": build_text_schema(TextFormat.CHAT_PART, minLength=1, maxLength=ORIGIN_CHARS_MAX),
        "thread_id": {
            "anyOf": [
                build_text_schema(TextFormat.CHAT_PART, minLength=1, maxLength=ORIGIN_CHARS_MAX),
                {"type": "null"},
            ]
        },
        "chat_name": {"type": ["string", "null"], "maxLength": ORIGIN_CHARS_MAX},
        "user_id": {"type": ["string", "null"], "maxLength": ORIGIN_CHARS_MAX},
    },
    "required": ["platform", "chat_id"],
}
_WORD = "[A-Za-z0-9_.:-]{1,64}"
_SKILL = "[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}"
_JOB_ID = "[0-9a-f]{12}"
_SESSION = r"(?!.*\.\.)[!-.0-\[\]-~]{1,256}"


class JobBody(BaseModel, extra="forbid", strict=True):
    """What a request may say of a job."""

    name: (
        Annotated[
            str,
            Field(max_length=NAME_CHARS_MAX),
            WithJsonSchema({"type": "string", "maxLength": NAME_CHARS_MAX, "pattern": NOT_BLANK}),
        ]
        | None
    ) = None
    schedule: Annotated[str, text(TextFormat.SCHEDULE)] | None = Field(
        None, description="When it runs: 'every 5m', '0 9 * * *', '2027-01-01T09:00'."
    )
    prompt: (
        Annotated[str, Field(max_length=PROMPT_CHARS_MAX), text(TextFormat.JOB_PROMPT, maxLength=PROMPT_CHARS_MAX)]
        | None
    ) = None
    deliver: (
        Annotated[str, text_or_nothing(TextFormat.TARGETS)]
        | Annotated[list[Annotated[str, text(TextFormat.TARGETS)]], Field(max_length=TARGETS_MAX)]
        | None
    ) = Field(None, description="Targets that are sent the answer: 'telegram:123'.")
    repeat: Annotated[int, Field(ge=1, le=REPEAT_MAX), WHOLE] | None = None
    timezone: Annotated[str, text_or_nothing(TextFormat.TIMEZONE)] | None = Field(
        None, description="IANA name of the clock to go by."
    )
    starts_at: Annotated[str, text_or_nothing(TextFormat.TIMESTAMP)] | None = None
    ends_at: Annotated[str, text_or_nothing(TextFormat.TIMESTAMP)] | None = None
    jitter_s: Annotated[int, WHOLE, _declare_range(0, JITTER_S_MAX)] | None = None
    enabled: bool | None = None
    skill: Annotated[str, _form(_SKILL)] | None = Field(
        None, description="One of 'skills', which counts if both are given."
    )
    skills: Annotated[list[str], _list_of(_SKILL)] | None = None
    model: Annotated[str, _form("[A-Za-z0-9_.:/@+-]{1,200}")] | None = None
    provider: Annotated[str, _form(_WORD)] | None = None
    base_url: Annotated[str, text_or_nothing(TextFormat.HTTP_URL)] | None = Field(
        None, description="A condition, as the provider, which it needs."
    )
    origin: (
        Annotated[str, text_or_nothing(TextFormat.CHAT)]
        | Annotated[dict[str, str | None], WithJsonSchema(_CHAT)]
        | None
    ) = Field(None, description="One chat, such as 'telegram:123'.")
    enabled_toolsets: Annotated[list[str], _list_of(_WORD)] | None = None
    workspace: Annotated[str, _form(".{1,4096}")] | None = Field(
        None,
        description="Absolute path of a directory of the server's machine that the job works in. Only for the person "
        f"at that machine: with the installation's own key and '{USER_HEADER}'.",
    )
    script: Annotated[str, _form(SCRIPT)] | None = Field(
        None, description="A file below the home directory's 'scripts'."
    )
    no_agent: bool | None = Field(None, description="The script is the job; it needs one.")
    context_from: Annotated[list[str], _list_of(_JOB_ID)] | None = Field(None, description="Jobs that there are.")
    attach_to_session: Annotated[str, _form(_SESSION)] | None = None
    wrap_response: bool | None = None
    overlap: Annotated[str, _one_of(*Overlap)] | None = None
    catch_up: Annotated[str, _one_of(*CatchUp)] | None = None
    misfire_grace_s: Annotated[int, WHOLE, _declare_range(0, 86_400)] | None = None
    failures_max: Annotated[int, WHOLE, _declare_range(1, 1_000_000)] | None = None
    iterations_max: Annotated[int, WHOLE, _declare_range(1, 100_000)] | None = None
    tokens_max: Annotated[int, WHOLE, _declare_range(1, 10**12)] | None = None
    wall_s_max: Annotated[float, _declare_range(1, _DAYS_S, "number")] | None = None
    idle_s_max: Annotated[float, _declare_range(0, _DAYS_S, "number")] | None = None
    iterations_per_day: Annotated[int, WHOLE, _declare_range(1, 10**9)] | None = None
    tokens_per_day: Annotated[int, WHOLE, _declare_range(1, 10**15)] | None = None
    cost_usd_per_day: Annotated[float | str, _DOLLARS] | None = None
    cost_usd_max: Annotated[float | str, _DOLLARS] | None = None
    approvals: Annotated[str, _one_of("ask", "deny", "approve")] | None = None
    approval_s: Annotated[float, _declare_range(1, _DAYS_S, "number")] | None = None
    network: Annotated[str, _one_of("open", "proxy", "none")] | None = None

    @property
    def as_request(self) -> work.JobRequest:
        said = {name: getattr(self, name) for name in self.model_fields_set - {"enabled"}}
        if said.get("repeat", 1) is None:
            said["repeat"] = 0  # no limit
        if "skills" in said:
            said.pop("skill", None)  # two names of one thing, of which this is the older
        plain = {name: said.pop(name) for name in _REQUEST_FIELDS & said.keys()}
        return work.JobRequest(**plain, more={_OUR_NAMES.get(name, name): value for name, value in said.items()})


_REQUEST_FIELDS = frozenset(item.name for item in fields(work.JobRequest)) - {"more"}
_OUR_NAMES = {
    "skill": "skills",
    "workspace": "directory",
    "enabled_toolsets": "toolsets",
    "attach_to_session": "attach_to",
    "wrap_response": "wraps",
}
"""Fields whose names in Hermes Agent differ from ours."""


def _declare_body(**more: Any) -> dict[str, Any]:
    schema = {**JobBody.model_json_schema(), **more}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


_GIVEN = {"type": "string", "minLength": 1}
_SOME = {"type": "array", "minItems": 1, "items": {}}


def _require_fields(**fields: Any) -> dict[str, Any]:
    return {"required": [*fields], "properties": fields}


def _forbid_field(name: str, *empty: Any) -> dict[str, Any]:
    return {"properties": {name: {"enum": [None, *empty]}}}


_AGREEING = [
    {
        "anyOf": [
            _require_fields(prompt={"type": "string", "pattern": NOT_BLANK}),
            _require_fields(skills=_SOME),
            _require_fields(no_agent={"const": True}),
        ]
    },
    {"anyOf": [_forbid_field("no_agent", False), _require_fields(script=_GIVEN)]},
    {"anyOf": [_forbid_field("base_url", ""), _require_fields(provider=_GIVEN)]},
]
"""Schemas for what only the fields of a new job together can get wrong. What a change leaves a job with depends on what
the job was."""
_PLAIN = JobBody.model_json_schema()["properties"]
NEW_JOB = _declare_body(
    required=["name", "schedule"],
    allOf=_AGREEING,
    properties={
        **_PLAIN,
        "name": {"type": "string", "maxLength": NAME_CHARS_MAX, "pattern": NOT_BLANK},
        "schedule": build_text_schema(TextFormat.SCHEDULE, description=_PLAIN["schedule"]["description"]),
    },
)
CHANGED_JOB = _declare_body(minProperties=1)
