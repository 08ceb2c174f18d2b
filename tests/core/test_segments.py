from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.core.segments import SegmentCall, plan_segments


def _safe(name: str) -> SegmentCall:
    return SegmentCall(name=name, is_parallel_safe=True, is_read_only=True)


def _read(path: str) -> SegmentCall:
    return SegmentCall(name="read_file", is_parallel_safe=True, is_read_only=True, path=path)


def _write(path: str) -> SegmentCall:
    return SegmentCall(name="write_file", path=path)


def _patch(path: str) -> SegmentCall:
    return SegmentCall(name="patch", path=path)


SEARCH = _safe("search_files")
EXTRACT = _safe("web_extract")
TERMINAL = SegmentCall(name="terminal")
DELEGATE = SegmentCall(name="delegate_task")
CLARIFY = SegmentCall(name="clarify", is_barrier=True)
BAD_JSON = SegmentCall(name="search_files", is_parallel_safe=True, is_barrier=True)
V4A_PATCH = SegmentCall(name="patch", path=None)

REFERENCE_ROWS = [
    ("two reads of different files", [_read("/w/a"), _read("/w/b")], (0, 0)),
    ("a read, then a write of it, then another read", [_read("/w/a"), _write("/w/a"), _read("/w/b")], (0, 1, 1)),
    ("a terminal call between searches", [SEARCH, TERMINAL, SEARCH, EXTRACT], (0, 1, 2, 2)),
    ("a clarify call between searches", [SEARCH, CLARIFY, SEARCH], (0, 1, 2)),
    ("two writes, then a patch of the folder", [_write("/w/a/b"), _write("/w/a/c"), _patch("/w/a")], (0, 0, 1)),
    ("unreadable arguments first", [BAD_JSON, SEARCH, SEARCH], (0, 1, 1)),
    ("two delegations", [DELEGATE, DELEGATE], (0, 1)),
]


@pytest.mark.parametrize(("calls", "expected"), [row[1:] for row in REFERENCE_ROWS], ids=[r[0] for r in REFERENCE_ROWS])
def test_the_planner_agrees_with_the_reference(calls: list[SegmentCall], expected: tuple[int, ...]) -> None:
    assert plan_segments(calls) == expected


def test_no_calls_need_no_segment() -> None:
    assert plan_segments([]) == ()


def test_reads_of_one_file_run_beside_each_other() -> None:
    assert plan_segments([_read("/w/a"), _read("/w/a"), _read("/w/a")]) == (0, 0, 0)


def test_a_patch_without_a_single_path_runs_alone() -> None:
    assert plan_segments([_read("/w/a"), V4A_PATCH, _read("/w/b")]) == (0, 1, 2)


def test_a_common_prefix_of_two_names_is_not_an_overlap() -> None:
    assert plan_segments([_write("/w/a"), _write("/w/ab")]) == (0, 0)


def test_dots_in_a_path_do_not_hide_an_overlap() -> None:
    assert plan_segments([_write("/w/x/../a"), _write("/w/a/.")]) == (0, 1)


_paths = st.sampled_from(["/w", "/w/a", "/w/a/b", "/w/ab", "/w/c", "/v"])
_calls = st.builds(
    SegmentCall,
    name=st.sampled_from(["t", "u"]),
    is_parallel_safe=st.booleans(),
    is_barrier=st.booleans(),
    path=st.none() | _paths,
    is_read_only=st.booleans(),
)
_batches = st.lists(_calls, max_size=12)


@settings(deadline=None)
@given(_batches)
def test_the_order_of_the_calls_is_kept_without_gaps(calls: list[SegmentCall]) -> None:
    segments = plan_segments(calls)
    assert len(segments) == len(calls)
    assert sorted(segments) == list(segments)
    assert set(segments) == set(range(max(segments, default=-1) + 1))


@settings(deadline=None)
@given(_batches)
def test_a_barrier_shares_its_segment_with_nobody(calls: list[SegmentCall]) -> None:
    segments = plan_segments(calls)
    for call, segment in zip(calls, segments, strict=True):
        if call.is_barrier or (call.path is None and not call.is_parallel_safe):
            assert segments.count(segment) == 1


@settings(deadline=None)
@given(_batches)
def test_calls_of_one_segment_never_touch_each_others_paths(calls: list[SegmentCall]) -> None:
    segments = plan_segments(calls)
    placed = [(call, segment) for call, segment in zip(calls, segments, strict=True) if call.path is not None]
    for index, (call, segment) in enumerate(placed):
        for other, other_segment in placed[:index]:
            if segment == other_segment and not (call.is_read_only and other.is_read_only):
                assert not f"{call.path}/".startswith(f"{other.path}/")
                assert not f"{other.path}/".startswith(f"{call.path}/")


@settings(deadline=None)
@given(_batches)
def test_a_new_segment_is_opened_only_for_a_reason(calls: list[SegmentCall]) -> None:
    segments = plan_segments(calls)
    for index in range(1, len(calls)):
        if segments[index] == segments[index - 1]:
            continue
        before = [call for call, segment in zip(calls, segments, strict=True) if segment == segments[index - 1]]
        assert plan_segments([*before, calls[index]]) == (*(0 for _ in before), 1)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from([SEARCH, TERMINAL, CLARIFY, V4A_PATCH]),
            st.sampled_from(["/w", "/w/a", "/w/a/b", "/w/c", "/x"]).flatmap(
                lambda path: st.sampled_from([_read(path), _write(path), _patch(path)])
            ),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_calls_that_run_at_once_never_meet_on_a_path_and_never_pass_a_barrier(calls: list[SegmentCall]) -> None:
    """With threads: what the planner lets run together does run together, and each looks around."""
    segments = plan_segments(calls)
    at_work: set[int] = set()
    ended: set[int] = set()
    wrong: list[str] = []
    lock = threading.Lock()

    def run(position: int, together: threading.Barrier) -> None:
        with lock:
            at_work.add(position)
        together.wait(10)
        with lock:
            for other in at_work - {position}:
                if _meets(calls[position], calls[other]):
                    wrong.append(f"{position} and {other} are at work at once")
            if missing := {earlier for earlier in range(position) if segments[earlier] < segments[position]} - ended:
                wrong.append(f"{position} runs before {missing}")
        together.wait(10)
        with lock:
            at_work.discard(position)
            ended.add(position)

    for segment in range(segments[-1] + 1):
        members = [position for position, of in enumerate(segments) if of == segment]
        together = threading.Barrier(len(members))
        with ThreadPoolExecutor(len(members)) as pool:
            for future in [pool.submit(run, position, together) for position in members]:
                future.result()
    assert wrong == []
    assert len(ended) == len(calls)


def _meets(one: SegmentCall, other: SegmentCall) -> bool:
    """Whether two calls must not be at work at once, said anew and not by the planner's own words."""
    if not (one.may_share and other.may_share):
        return True
    if one.path is None or other.path is None or (one.is_read_only and other.is_read_only):
        return False
    first, second = one.path.split("/"), other.path.split("/")
    return all(a == b for a, b in zip(first, second, strict=False))
