"""The text that a finished job delivers, and when it delivers none.

A job that has nothing new answers ``[SILENT]``, and nothing is sent. That holds for successes only: a failure is always
delivered, summarised in a line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hermes_worker.core.errors import FailureKind

SUMMARY_CHARS_MAX = 180
RULE = "-" * 13

_TOKENS = frozenset({"[SILENT]", "SILENT", "NO_REPLY", "NO REPLY"})
_EMPTY_ANSWERS = frozenset({"(no response generated)", "(empty response)", "(no response)", "none"})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLabel:
    """The id and the name by which a job is called in what it sends."""

    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """The end of a job's run. ``failure`` is ``None`` for a success."""

    response: str
    failure: str | None = None
    failure_kind: FailureKind | None = None


def is_silent(response: str) -> bool:
    """Whether a successful answer asks to send nothing. A token counts as the whole answer, alone on the first or last
    line, or as ``[SILENT]`` at the very beginning; in the middle of a sentence it does not."""
    lines = [" ".join(line.split()).upper() for line in response.splitlines() if line.strip()]
    if not lines:
        return False
    return lines[0] in _TOKENS or lines[-1] in _TOKENS or lines[0].startswith("[SILENT]")


def is_empty(response: str) -> bool:
    """Whether nothing was said, which is a failure: a job that has nothing to say answers ``[SILENT]``."""
    return not response.strip() or response.strip().lower() in _EMPTY_ANSWERS


def render_delivery(job: JobLabel, outcome: JobOutcome, *, is_wrapped: bool = True) -> str | None:
    """Write the text for the targets of the job; ``None`` when there is nothing to send."""
    if outcome.failure is not None:
        summary = summarize_failure(outcome.failure, outcome.failure_kind)
        content = f"⚠️ Job '{_flatten_text(job.name)}' failed: {summary}"
    elif is_silent(outcome.response):
        return None
    else:
        content = outcome.response.strip()
    return wrap_content(job, content) if is_wrapped else content


def wrap_content(job: JobLabel, content: str) -> str:
    """Put ``content`` between a header that names the job and a line that tells how to stop it."""
    header = f"Cronjob Response: {_flatten_text(job.name)}\n(job_id: {job.id})\n{RULE}"
    return f"{header}\n\n{content}\n\nTo stop this job: hermes-worker cron remove {job.id}"


def summarize_failure(message: str, kind: FailureKind | None = None) -> str:
    """Summarise a failure in one line of at most 180 characters. Known causes are put in words that say what to do."""
    known = _KNOWN_KINDS.get(kind) if kind is not None else None
    if known is not None:
        return known
    for pattern, words in _KNOWN_MESSAGES:
        if pattern.search(message):
            return words
    return _shorten(_EXCEPTION_PREFIX.sub("", _flatten_text(message))) or "no reason was given"


_WEEKLY_LIMIT = "the weekly limit of the model provider is used up; it resets by itself"
_QUOTA = "the quota of the model provider is used up; check its plan and billing"
_RATE_LIMIT = "the model provider's rate limit was reached; the next run tries again"
_TIMEOUT = "it timed out"
_AUTH = "the model provider refused the credentials; check the API key"

_KNOWN_KINDS = {
    FailureKind.RATE_LIMIT: _RATE_LIMIT,
    FailureKind.UPSTREAM_RATE_LIMIT: _RATE_LIMIT,
    FailureKind.BILLING: _QUOTA,
    FailureKind.TIMEOUT: _TIMEOUT,
    FailureKind.AUTH: _AUTH,
    FailureKind.AUTH_PERMANENT: _AUTH,
}

_KNOWN_MESSAGES = tuple(
    (re.compile(expression, re.IGNORECASE), words)
    for expression, words in (
        (r"\bweekly\b.{0,40}\blimit", _WEEKLY_LIMIT),
        (r"\b(?:insufficient[_ ]quota|exceeded your (?:current )?quota|quota exceeded|usage limit)", _QUOTA),
        (r"(?<![\w.])429(?![\w.])|\brate[\s_-]?limit|\btoo many requests\b", _RATE_LIMIT),
        (r"\btime(?:d)?[\s_-]?out\b|\b\w*Timeout(?:Error)?\b", _TIMEOUT),
        (r"(?<![\w.])40[13](?![\w.])|\bauthenticat|\b(?:un)?authoriz", _AUTH),
    )
)
_EXCEPTION_PREFIX = re.compile(r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Failure|Lost|Interrupt):\s*)+")


def _shorten(text: str) -> str:
    return text if len(text) <= SUMMARY_CHARS_MAX else text[: SUMMARY_CHARS_MAX - 1].rstrip() + "…"


def _flatten_text(text: str) -> str:
    return " ".join(text.split())
