"""For each grammar that the API's document names: texts that follow it, to generate requests of."""

from __future__ import annotations

from collections.abc import Mapping
from zoneinfo import available_timezones

import schemathesis
from hypothesis import strategies as st

from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.api.formats import TextFormat
from hermes_worker.channels.catalog import list_platforms
from hermes_worker.safety.threats import scan_job_prompt
from scheduler.grammar import MACROS
from scheduler.lifecycle import stops_this_service

_DAYS = ("monday", "weekday", "weekends", "day", "mon-fri", "tue and thu")
_TIMES = ("08:30", "9am", "noon", "at 18:00", "at 9am and 5pm")
_numbers = st.integers(1, 59)
_years = st.integers(2100, 2900)
_days = st.builds("{:02}-{:02}".format, st.integers(1, 12), st.integers(1, 28))
_clocks = st.builds("{}T{:02}:{:02}".format, _days, st.integers(0, 23), _numbers)
_offsets = st.sampled_from(("", "Z", "+01:00", "-09:30", ":07", ":07+00:00"))
_words = st.from_regex(r"[a-z][a-z0-9]{0,20}", fullmatch=True)

schedules = st.one_of(
    st.sampled_from(sorted(MACROS)),
    st.builds("every {}{}".format, _numbers, st.sampled_from(("m", "h", " days", "h 5m", " minutes"))),
    st.builds("every {} {}".format, st.sampled_from(_DAYS), st.sampled_from(_TIMES)),
    st.builds("{} {} * * mon-fri".format, st.integers(0, 59), st.integers(0, 23)),
    st.builds("*/{} * * * *".format, _numbers),
    st.builds("in {} hours".format, _numbers),
    st.builds("{}m".format, _numbers),
)
"""No single date: whether one is left between a start and an end depends on both, and on the clock."""
timestamps = st.one_of(st.just(""), st.builds("{}-{}{}".format, _years, _clocks, _offsets))
_schemes, _ports = st.sampled_from(("http", "https", "HTTPS")), st.sampled_from(("", ":8443", "."))
urls = st.builds("{}://{}.example{}/{}".format, _schemes, _words, _ports, _words)
chats = st.one_of(
    st.builds("telegram:{}".format, st.integers(1, 10**12)),
    st.builds("telegram:-{}:{}".format, _numbers, _numbers),
    st.builds("email:{}@example.org".format, _words),
    st.builds("slack:#{}".format, _words),
    st.builds("Discord:{}".format, _words),
)
targets = st.one_of(
    st.sampled_from(("local", "origin", "all", "telegram", "Matrix")),
    chats,
    st.builds("webhook:{}".format, urls),
    st.builds("apprise:pover://{}@{}".format, _words, _words),
)

VALID: Mapping[TextFormat, st.SearchStrategy[str]] = {
    TextFormat.SCHEDULE: schedules,
    TextFormat.TIMEZONE: st.sampled_from(sorted(available_timezones() - {"localtime"})),
    TextFormat.TIMESTAMP: timestamps,
    TextFormat.TARGETS: targets,
    TextFormat.CHAT: chats,
    TextFormat.CHAT_PART: st.one_of(_words, st.builds("@{} {}".format, _words, _words), st.builds(str, _numbers)),
    TextFormat.PLATFORM: st.sampled_from(sorted(list_platforms())),
    TextFormat.HTTP_URL: urls,
    TextFormat.TOOLSET: st.sampled_from(sorted(build_default_catalog().toolsets)),
    TextFormat.JOB_PROMPT: st.text().filter(lambda text: not scan_job_prompt(text) and not stops_this_service(text)),
}


def register() -> None:
    """Let schemathesis make requests of them."""
    for kind, texts in VALID.items():
        schemathesis.openapi.format(kind.value, texts)
