"""Decide the next reply of the scripted model. Pure: the transcript and the tools offered decide, and nothing else, so
any replica gives the same answer and a repeated request the same bytes.

A script in the user's message is followed (``script``). Otherwise the model surveys the user's directory: it lists the
files and the git history, looks for marked lines and big files, reads what it found, writes ``hermes-report.md`` and
ends with a summary. Each call's id says what the call is for, which is how the next reply knows what has been done;
tools that are not offered and results that say nothing only make the report shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hermes_worker.models.scripted.reply import Reply, ScriptedCall
from hermes_worker.models.scripted.report import CHANGES_MAX, render_answer, render_report
from hermes_worker.models.scripted.script import InvalidScript, find_active_script
from hermes_worker.models.scripted.survey import REPORT_PATH, Survey, make_call_id, read_call_kind, read_survey
from hermes_worker.models.scripted.transcript import Row, ScriptedTurn, read_current_turn, read_tool_schemas

FILES_MAX = 400
"""How many files one listing asks for: short enough to be shown whole."""
MARKS_MAX = 50
READS_MAX = 4
_SURVEY_TIMEOUT_S = 60

_LOG = "git --no-pager log --oneline -n 15"
_STATUS = f"git status --short | head -n {CHANGES_MAX}"
# Nothing of the user's or of a result's goes into a command line.
_SIZES = (
    "find . -type f -not -path '*/.*' -not -path '*/node_modules/*' -size -10240k -exec wc -lc {} + "
    "| sort -k2,2 -rn | head -n 12"
)
_READMES = ("README.md", "README.rst", "README.txt", "README", "readme.md")


def choose_next_reply(messages: Sequence[Row], tools: object) -> Reply:
    """The reply to this conversation. Total: any rows and any tools get one."""
    try:
        script = find_active_script(messages)
        if script is not None:
            return script.take_next_reply()
    except InvalidScript as error:
        return Reply(text=f"The script cannot be followed: {error}.")
    return _build_survey_reply(read_current_turn(messages), read_tool_schemas(tools))


def _build_survey_reply(turn: ScriptedTurn, offered: Mapping[str, frozenset[str]]) -> Reply:
    survey = read_survey(turn)
    done = {read_call_kind(call) for call in turn.calls}
    for phase in _PHASES:
        if done.isdisjoint(phase.kinds):
            calls = tuple(_select_offered_calls(phase.plan(turn, survey), offered, turn))
            if calls:
                return Reply(text=phase.says, calls=calls)
    return Reply(text=render_answer(survey, turn.request, could_write="write_file" in offered))


@dataclass(frozen=True, slots=True, kw_only=True)
class _WantedCall:
    """A call a phase would make if the tool is offered."""

    role: str
    tool: str
    arguments: Mapping[str, object]


def _select_offered_calls(
    wishes: Iterator[_WantedCall], offered: Mapping[str, frozenset[str]], turn: ScriptedTurn
) -> Iterator[ScriptedCall]:
    for wish in wishes:
        if wish.tool in offered:
            arguments = dict(wish.arguments)
            if wish.tool == "terminal" and "timeout" in offered["terminal"]:
                arguments["timeout"] = _SURVEY_TIMEOUT_S
            yield ScriptedCall(id=make_call_id(wish.role, turn), name=wish.tool, arguments=arguments)


def _plan_look(turn: ScriptedTurn, survey: Survey) -> Iterator[_WantedCall]:
    everything = {"pattern": "*", "target": "files", "path": ".", "limit": FILES_MAX}
    yield _WantedCall(role="files", tool="search_files", arguments=everything)
    yield _WantedCall(role="log", tool="terminal", arguments={"command": _LOG})
    yield _WantedCall(role="status", tool="terminal", arguments={"command": _STATUS})


def _plan_marks(turn: ScriptedTurn, survey: Survey) -> Iterator[_WantedCall]:
    marked = {"pattern": r"\b(TODO|FIXME|XXX|HACK)\b", "target": "content", "path": ".", "limit": MARKS_MAX}
    yield _WantedCall(role="marks", tool="search_files", arguments=marked)


def _plan_read(turn: ScriptedTurn, survey: Survey) -> Iterator[_WantedCall]:
    for number, (path, offset, limit) in enumerate(_list_passages(survey)):
        arguments = {"path": path, "offset": offset, "limit": limit}
        yield _WantedCall(role=f"read{number}", tool="read_file", arguments=arguments)
    yield _WantedCall(role="sizes", tool="terminal", arguments={"command": _SIZES})


def _list_passages(survey: Survey) -> list[tuple[str, int, int]]:
    """Path, first line and number of lines of each passage worth reading: how the README begins, and the first marked
    line of each file that has one.
    """
    readme = next((name for name in _READMES if name in (survey.files or ())), None)
    passages = {readme: (readme, 1, 20)} if readme else {}
    for mark in survey.marks or ():
        if len(passages) < READS_MAX and mark.path not in passages:
            passages[mark.path] = (mark.path, max(1, mark.line - 2), 8)
    return list(passages.values())


def _plan_write(turn: ScriptedTurn, survey: Survey) -> Iterator[_WantedCall]:
    arguments = {"path": REPORT_PATH, "content": render_report(survey, turn.request)}
    yield _WantedCall(role="report", tool="write_file", arguments=arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    says: str
    kinds: frozenset[str]
    """The kinds of its calls: one of them in the transcript means that the phase is over."""
    plan: Callable[[ScriptedTurn, Survey], Iterator[_WantedCall]]


_PHASES = (
    _Phase(
        says="I list the files and look at the history.", kinds=frozenset({"files", "log", "status"}), plan=_plan_look
    ),
    _Phase(says="I look for lines that were marked for later.", kinds=frozenset({"marks"}), plan=_plan_marks),
    _Phase(says="I read what I found and look for big files.", kinds=frozenset({"read", "sizes"}), plan=_plan_read),
    _Phase(says="I write the report.", kinds=frozenset({"report"}), plan=_plan_write),
)
