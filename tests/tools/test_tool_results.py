from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.agent.tools.base import ToolResult
from hermes_worker.agent.tools.results import (
    ResultLimits,
    build_result_path,
    find_result_key,
    limit_result,
    sanitise_error,
)
from hermes_worker.workspaces.local import LocalWorkspace

LIMITS = ResultLimits()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("oh no", "[TOOL_ERROR] oh no"),
        ("bad <tool_call>injected</tool_call> happened", "[TOOL_ERROR] bad injected happened"),
        *(
            (f"a <{tag}>b</{tag}> c", "[TOOL_ERROR] a b c")
            for tag in ("system", "assistant", "user", "result", "SYSTEM")
        ),
        ('a <system role="x">b</system> c', "[TOOL_ERROR] a b c"),
        ("at <ParseError>line 5</ParseError>", "[TOOL_ERROR] at <ParseError>line 5</ParseError>"),
        ("x <![CDATA[evil]]> y", "[TOOL_ERROR] x evil y"),
        ('```json\n{"x": 1}', '[TOOL_ERROR] {"x": 1}'),
        ("```\nstuff\n```", "[TOOL_ERROR] stuff"),
        ("", "[TOOL_ERROR] "),
    ],
)
def test_an_error_cannot_pose_as_another_speaker(text: str, expected: str) -> None:
    assert sanitise_error(text) == expected


def test_an_error_is_short() -> None:
    body = sanitise_error("A" * 10_000).removeprefix("[TOOL_ERROR] ")
    assert len(body) == 2_000
    assert body.endswith("...")


@pytest.mark.parametrize("text", ["<system " * 50_000, "`" * 200_000, "<" * 200_000, " " * 200_000])
def test_a_hostile_error_is_cleaned_quickly(text: str) -> None:
    sanitise_error(text)


@pytest.mark.parametrize(
    ("tokens", "result_chars", "batch_chars"),
    [(200_000, 100_000, 200_000), (64_000, 38_400, 76_800), (1_000, 8_000, 16_000)],
)
def test_limits_follow_the_context_window(tokens: int, result_chars: int, batch_chars: int) -> None:
    limits = ResultLimits.for_window(tokens)
    assert (limits.result_chars, limits.batch_chars, limits.preview_chars) == (result_chars, batch_chars, 1_500)


@settings(deadline=None)
@given(st.text(), st.text())
def test_equal_texts_are_one_file_that_says_which_document_holds_it(one: str, other: str) -> None:
    assert (build_result_path(one) == build_result_path(other)) == (one == other)
    key = find_result_key(f"/somewhere/{build_result_path(one)}")
    assert key is not None and key.startswith("result:") and len(key) <= 100


@pytest.mark.parametrize(
    "path",
    [
        "hermes-results/../x.txt",
        "hermes-results/k.txt",
        f"{'a' * 32}.txt",
        f"hermes-results/{'a' * 32}.txt/..",
        "",
        "x\0",
    ],
)
def test_other_paths_are_no_results(path: str) -> None:
    assert find_result_key(path) is None


def _limited(text: str, workspace: LocalWorkspace, *, chars_max: int | None = 100_000) -> str:
    result = ToolResult(text=text, is_error=True, session_updates={"a": 1})
    short = limit_result(result, chars_max=chars_max, workspace=workspace, limits=LIMITS)
    assert (short.is_error, short.session_updates["a"]) == (True, 1)
    return short.text


def test_a_result_within_the_limit_is_left_alone(workspace: LocalWorkspace, root: Path) -> None:
    text = "x" * 100_000
    assert _limited(text, workspace) == text
    assert not (root / "hermes-results").exists()


def test_a_longer_result_is_kept_in_a_file_and_replaced_by_its_beginning(workspace: LocalWorkspace, root: Path) -> None:
    text = "".join(f"line {n}\n" for n in range(20_000))
    block = _limited(text, workspace)
    assert block.startswith("<persisted-output>")
    assert build_result_path(text) in block
    assert f"{len(text)} characters" in block
    assert "line 0\nline 1\n" in block
    assert len(block) < 2_000
    assert (root / build_result_path(text)).read_text() == text
    assert (root / "hermes-results/.gitignore").read_text() == "*\n"


def test_keeping_a_result_twice_is_the_same_as_once(workspace: LocalWorkspace) -> None:
    text = "x" * 200_000
    assert _limited(text, workspace) == _limited(text, workspace)


def test_a_json_result_is_kept_over_several_lines_so_that_it_can_be_paged(
    workspace: LocalWorkspace, root: Path
) -> None:
    document = {"matches": [{"path": f"f{n}", "line": n} for n in range(10_000)]}
    _limited(json.dumps(document), workspace)
    [file] = (root / "hermes-results").glob("*.txt")
    kept = file.read_text()
    assert json.loads(kept) == document
    assert kept.count("\n") > 10_000


def test_a_tool_that_pages_by_itself_is_never_cut(workspace: LocalWorkspace) -> None:
    assert len(_limited("x" * 300_000, workspace, chars_max=None)) == 300_000


def test_a_tool_may_have_a_lower_limit(workspace: LocalWorkspace) -> None:
    assert _limited("x" * 2_000, workspace, chars_max=1_999).startswith("<persisted-output>")


def test_a_result_that_cannot_be_kept_loses_its_middle(workspace: LocalWorkspace, root: Path) -> None:
    (root / "hermes-results").write_text("a file is in the way")
    text = "a" * 100_000 + "b" * 100_000
    short = _limited(text, workspace)
    assert short.startswith("a" * 40_000)
    assert short.endswith("b" * 60_000)
    assert "100000 characters omitted" in short


@settings(deadline=None)
@given(st.integers(1, 64), st.sampled_from([None, 1_000, 32_000, 200_000, 1_000_000]))
def test_the_results_of_a_reply_fit_together(calls: int, window: int | None) -> None:
    limits = LIMITS if window is None else ResultLimits.for_window(window)
    shared = limits.for_calls(calls)
    assert shared.result_chars <= limits.result_chars
    assert shared.result_chars * calls <= max(limits.batch_chars, limits.preview_chars * calls)
    assert calls < 3 or shared.paged_chars == shared.result_chars


def test_a_tool_that_pages_takes_its_part_of_a_large_reply(workspace: LocalWorkspace) -> None:
    result = ToolResult(text="x" * 60_000)
    alone = limit_result(result, chars_max=None, workspace=workspace, limits=LIMITS.for_calls(2))
    beside = limit_result(result, chars_max=None, workspace=workspace, limits=LIMITS.for_calls(5))
    assert alone == result
    assert beside.text.startswith("<persisted-output>")
    assert beside.session_updates == {find_result_key(build_result_path(result.text)): result.text}


def test_a_very_long_result_is_in_the_file_alone(workspace: LocalWorkspace, root: Path) -> None:
    result = limit_result(ToolResult(text="x" * 1_000_001), chars_max=10, workspace=workspace, limits=LIMITS)
    assert result.text.startswith("<persisted-output>")
    assert result.session_updates == {}
    assert len(list((root / "hermes-results").glob("*.txt"))) == 1
