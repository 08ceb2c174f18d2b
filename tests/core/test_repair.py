from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.core.messages import ToolRequest
from hermes_worker.core.recovery.repair import (
    ArgumentsOutcome,
    assess_arguments,
    drop_repeated_calls,
    dump_arguments,
    repair_tool_name,
)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 50_000, "1" * 10_000, '"' + "\\" * 50_001, "{" * 60_000 + "]" * 60_000 + "x"]
)
def test_hostile_arguments_are_answered_quickly_and_without_an_exception(text: str) -> None:
    assert assess_arguments(text).outcome in (ArgumentsOutcome.TRUNCATED, ArgumentsOutcome.INVALID)


ASSESSED = [
    ('{"a": 1}', ArgumentsOutcome.OK, '{"a":1}'),
    ("", ArgumentsOutcome.OK, "{}"),
    (None, ArgumentsOutcome.OK, "{}"),
    ('{"a":1,}', ArgumentsOutcome.OK, '{"a":1}'),
    ('{"a":1}}', ArgumentsOutcome.OK, '{"a":1}'),
    ('{"a":1}{"b":2}', ArgumentsOutcome.OK, '{"a":1}'),
    ('{"a":"x\ny"}', ArgumentsOutcome.OK, '{"a":"x\\ny"}'),
    ("[1]", ArgumentsOutcome.OK, "[1]"),
    ('{"a": "hal', ArgumentsOutcome.TRUNCATED, '{"a": "hal'),
    ('{"a": 1', ArgumentsOutcome.TRUNCATED, '{"a": 1'),
    ('{"a": {"b": 1', ArgumentsOutcome.TRUNCATED, '{"a": {"b": 1'),
    ('{"a": 1, "b": 2,', ArgumentsOutcome.TRUNCATED, '{"a": 1, "b": 2,'),
    ('{"timeout": 30, "background":', ArgumentsOutcome.TRUNCATED, '{"timeout": 30, "background":'),
    ('{"a":[1]]}', ArgumentsOutcome.OK, '{"a":[1]}'),
    ('{"a": [1, 2, ] , }', ArgumentsOutcome.OK, '{"a":[1,2]}'),
    ('{"a":[1,2}', ArgumentsOutcome.INVALID, '{"a":[1,2}'),
    ('{"a": ",}"}', ArgumentsOutcome.OK, '{"a":",}"}'),
    ("[1, 2][3]", ArgumentsOutcome.OK, "[1,2]"),
    ("  None  ", ArgumentsOutcome.OK, "{}"),
    ("totally not json", ArgumentsOutcome.TRUNCATED, "totally not json"),
    ('{"a":', ArgumentsOutcome.TRUNCATED, '{"a":'),
    ('{"a": [1, 2', ArgumentsOutcome.TRUNCATED, '{"a": [1, 2'),
    ('{"a": {"b": 1}', ArgumentsOutcome.INVALID, '{"a": {"b": 1}'),
    ("{'a': 1}", ArgumentsOutcome.INVALID, "{'a': 1}"),
    ('{"a": [1}', ArgumentsOutcome.INVALID, '{"a": [1}'),
    ('{"a": NaN}', ArgumentsOutcome.INVALID, '{"a": NaN}'),
    ('{"n":1e400}', ArgumentsOutcome.INVALID, '{"n":1e400}'),
    ('{"n":1e400}{"n":1}', ArgumentsOutcome.INVALID, '{"n":1e400}{"n":1}'),
    ({"n": float("inf")}, ArgumentsOutcome.INVALID, '{"n": Infinity}'),
    # In a code fence, as a JSON string, or both.
    ('```json\n{"a": 1}\n```', ArgumentsOutcome.OK, '{"a":1}'),
    ('```{"a": 1}```', ArgumentsOutcome.OK, '{"a":1}'),
    ('\n```JSON\r\n{"a": 1,}\r\n```  ', ArgumentsOutcome.OK, '{"a":1}'),
    ('"{\\"a\\": 1}"', ArgumentsOutcome.OK, '{"a":1}'),
    ('"[1, 2]"', ArgumentsOutcome.OK, "[1,2]"),
    ('```\n"{\\"a\\": 1}"\n```', ArgumentsOutcome.OK, '{"a":1}'),
    ('"```json\\n{\\"a\\": 1}\\n```"', ArgumentsOutcome.OK, '{"a":1}'),
    ('{"a": "```json\\n{}\\n```"}', ArgumentsOutcome.OK, '{"a":"```json\\n{}\\n```"}'),
    ('"a plain string"', ArgumentsOutcome.OK, '"a plain string"'),
    ('"{half of"', ArgumentsOutcome.OK, '"{half of"'),
    ('```json\n{"a": "hal', ArgumentsOutcome.TRUNCATED, '```json\n{"a": "hal'),
    ('```json\n{"a": [1}\n```', ArgumentsOutcome.INVALID, '```json\n{"a": [1}\n```'),
]


@pytest.mark.parametrize(("text", "outcome", "arguments"), ASSESSED)
def test_arguments_are_ok_truncated_or_invalid(text: object, outcome: ArgumentsOutcome, arguments: str) -> None:
    assessment = assess_arguments(text)
    assert (assessment.outcome, assessment.arguments) == (outcome, arguments)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_objects = st.dictionaries(st.text(min_size=1), _json, max_size=4)


_MORE_DIGITS_THAN_PYTHON_READS = "9" * 5_000
_odd_scalars = st.sampled_from(
    ["1e400", "-1e400", "NaN", "Infinity", "-Infinity", _MORE_DIGITS_THAN_PYTHON_READS, '"\\ud800"', '"\ud800"', "\x00"]
)
_odd_texts = st.one_of(
    st.text(),
    st.text(alphabet=st.characters(codec=None, categories=["Cs", "Cc", "Lu", "Ps", "Pe", "Po"])),
    st.builds(lambda scalar: f'{{"n":{scalar}}}', _odd_scalars),
    st.builds(lambda first, second: f'{{"n":{first}}}{{"n":{second}}}', _odd_scalars, _odd_scalars),
    st.builds(
        lambda opener, depth, inner: opener * depth + inner, st.sampled_from("[{"), st.integers(0, 5_000), st.text()
    ),
    st.builds(lambda depth, scalar: "[" * depth + scalar + "]" * depth, st.integers(0, 5_000), _odd_scalars),
)


def _encoded(text: str, times: int, fences: int) -> str:
    for _ in range(times):
        text = json.dumps(text)
    for _ in range(fences):
        text = f"```json\n{text}\n```"
    return text


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(alphabet=st.characters(codec=None)) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(_anything | st.builds(_encoded, _odd_texts, st.integers(0, 4), st.integers(0, 3)))
def test_no_arguments_whatever_raise(received: object) -> None:
    """What is judged usable is JSON that any worker stores and reads back."""
    assessed = assess_arguments(received)
    assert assessed.arguments is not None
    if assessed.outcome is ArgumentsOutcome.OK:
        assert json.loads(assessed.arguments, parse_constant=_never) is not _NOT_JSON
        assert assessed.arguments.encode()
    assert isinstance(dump_arguments(received), str)


_NOT_JSON = object()


def _never(constant: str) -> object:
    raise AssertionError(f"{constant} is not JSON")


def test_arguments_that_refer_to_themselves_are_refused() -> None:
    knot: list[object] = []
    knot.append(knot)
    assert assess_arguments(knot).outcome is not ArgumentsOutcome.OK


def test_a_number_of_more_digits_than_can_be_written_is_refused() -> None:
    for received in (10**5_000, {"n": 10**5_000}, f'{{"n":{_MORE_DIGITS_THAN_PYTHON_READS}}}'):
        assert assess_arguments(received).outcome is not ArgumentsOutcome.OK


@settings(deadline=None)
@given(_objects, st.integers(0, 2), st.integers(0, 1))
def test_a_fence_and_a_second_encoding_change_nothing(value: dict[str, object], times: int, fences: int) -> None:
    text = _encoded(json.dumps(value), times, fences)
    assert assess_arguments(text) == assess_arguments(json.dumps(value))


@settings(deadline=None)
@given(_objects)
def test_valid_arguments_are_never_changed(value: dict[str, object]) -> None:
    text = json.dumps(value)
    assert json.loads(assess_arguments(text).arguments) == json.loads(text)


@settings(deadline=None)
@given(_objects, st.data())
def test_arguments_that_were_cut_off_are_never_executed(value: dict[str, object], data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = text[: data.draw(st.integers(min_value=1, max_value=len(text) - 1))]
    assert assess_arguments(cut).outcome is not ArgumentsOutcome.OK


KNOWN = {"todo", "patch", "browser_click", "web_search", "read_file", "write_file", "terminal", "search_files"}
KNOWN_MCP = KNOWN | {"kb_search", "kb_add", "mcp_docs_kb_get", "mcp_docs_kb_search", "mcp_docs_kb_add"}

NAMES = [
    # The rows of the original.
    ("TERMINAL", "terminal"),
    ("TodoTool_tool", "todo"),
    ("web-search", "web_search"),
    ("PatchTool", "patch"),
    ("write file", "write_file"),
    ('terminal"', "terminal"),
    ("terminall", "terminal"),
    ("read_file<|channel|>", "read_file"),
    ("BrowserClick_tool", "browser_click"),
    ("_tool", None),
    # More of the same families.
    ("patch-tool", "patch"),
    ("ReadFile_tool", "read_file"),
    ("write-file_Tool", "write_file"),
    ("raed_file", "read_file"),
    ("xyz_no_such_tool", None),
    ("ThisIsNotRemotelyARealToolName_tool", None),
    ("", None),
    ("<tool>", None),
    ('"terminal"', None),
    ("x" * 10_000, None),
    # Where the original answers otherwise.
    ("functions.read_file", "read_file"),
    ("mcp_read_file", None),
    ("delete_file", None),
    ("create_file", None),
]


@pytest.mark.parametrize(("name", "expected"), NAMES)
def test_a_badly_written_name_becomes_the_tool_that_was_meant(name: str, expected: str | None) -> None:
    assert repair_tool_name(name, KNOWN) == expected


MCP_NAMES = [
    ("mmcp_docs_kb_get", "mcp_docs_kb_get"),
    ("mcp_mcp_mcp_docs_kb_get", "mcp_docs_kb_get"),
    ("mcp__docs__kb_get", "mcp_docs_kb_get"),
    ("mcp_docs_kb_serach", "mcp_docs_kb_search"),
    ("mcp_docs_kb_aet", None),
    ("kb_aed", None),
    ("kb_saerch", "kb_search"),
    ("docs_kb_get", None),
]


@pytest.mark.parametrize(("name", "expected"), MCP_NAMES)
def test_an_mcp_name_is_repaired_only_inside_its_own_server(name: str, expected: str | None) -> None:
    assert repair_tool_name(name, KNOWN_MCP) == expected


def test_a_repeated_call_is_kept_once() -> None:
    calls = [
        ToolRequest(id="1", name="read_file", arguments='{"path":"a"}'),
        ToolRequest(id="2", name="read_file", arguments='{"path":"b"}'),
        ToolRequest(id="3", name="read_file", arguments='{"path":"a"}'),
        ToolRequest(id="4", name="write_file", arguments='{"path":"a"}'),
    ]
    assert [call.id for call in drop_repeated_calls(calls)] == ["1", "2", "4"]
