"""What becomes of a run when its model or its network misbehaves: over every wire, through the real task body, with a
real database. The rungs, their order and their counts are the original's.

For every fault: the run ends as the ladder says, nothing is charged twice, and the transcript stays one that a strict
server takes.
"""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import replace
from decimal import Decimal

import pytest
import redis
from dialects import API_MODE, HELLO, RULES, Said, ToolUse
from PIL import Image
from strict_server import Fault, StrictServer, body, cut_after, hang_up, reset, status
from support.fault_server import FaultServer, Received, Reply, say_hello
from support.store import Store, check
from support.turns import Turns
from support.valkey import for_administrator

from hermes_worker.core.effects import Iterate
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.pricing import CostStatus
from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_views import RunView
from hermes_worker.models.chain import ModelChoice, ProviderChain
from hermes_worker.models.credentials import CredentialPool
from hermes_worker.models.governor import ConfiguredLimits, Governor
from hermes_worker.stream.live import make_stream_key
from hermes_worker.tasks.iteration.requests import ModelOptions

pytestmark = pytest.mark.usefixtures("no_time_for_short_waits")

EMPTY = Said(text="")
CALL = Said(calls=(ToolUse(id="call_1", name="todo", arguments='{"todos": []}'),))
CUT_CALL = Said(calls=(ToolUse(id="c", name="todo", arguments='{"todos": ["half'),), finish="length")


@pytest.fixture(params=RULES)
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def turns(store: Store, server: StrictServer, wire: str) -> Turns:
    """Over each wire."""
    return Turns.over(store, server.base_url, api_mode=API_MODE[wire])


@pytest.fixture
def chat(store: Store, server: StrictServer) -> Turns:
    """For what has nothing to do with the wire."""
    return Turns.over(store, server.base_url)


def finished(turns: Turns, server: StrictServer, **changes: object) -> RunView:
    run_id = turns.submit(**changes)
    turns.finish(run_id)
    check(turns.store)
    assert server.refusals == []
    return turns.store.views.load_run(run_id)


# ---------------------------------------------------------------------------------------------------- nothing is wrong


def test_a_turn_with_tools_and_thinking_completes(turns: Turns, server: StrictServer) -> None:
    server.says(
        Said(thinking="look first", calls=(ToolUse(id="call_1", name="todo", arguments='{"todos": []}'),)),
        Said(thinking="now I know", text="the answer"),
    )

    view = finished(turns, server)

    assert (view.status, view.exit_reason, view.output) == (RunStatus.COMPLETED, "text_response", "the answer")
    assert view.usage.total == 50
    assert (view.is_completed, view.is_partial, view.is_failed, view.is_interrupted) == (True, False, False, False)


def test_thinking_between_tags_is_kept_out_of_the_answer(chat: Turns, server: StrictServer) -> None:
    server.says(Said(text="<think>secret thoughts</think>\n\nthe answer"))

    view = finished(chat, server)

    assert view.output == "the answer"
    assert chat.store.bodies(view.run_id)[-1]["reasoning"] == "secret thoughts"


def test_thinking_between_tags_is_kept_out_of_what_watchers_see(
    store: Store, server: StrictServer, broker_url: str
) -> None:
    live = redis.Redis.from_url(broker_url, decode_responses=True)
    server.says(Said(text="<think>secret thoughts</think>\n\nthe answer <b>is</b> this"))
    turns = Turns.over(store, server.base_url, live=live)
    run_id = turns.submit()
    store.runs.mark_watched(run_id, 60)
    turns.finish(run_id)

    with redis.Redis.from_url(for_administrator(broker_url), decode_responses=True) as administrator:
        entries = [fields for _, fields in administrator.xrange(make_stream_key(run_id))]
    assert "".join(entry["text"] for entry in entries if entry["kind"] == "text") == "the answer <b>is</b> this"


# ------------------------------------------------------------------------------------------------ faults of the network

PASSING: dict[str, tuple[Fault, ...]] = {
    "a 500": (status(500),),
    "a 502 and a 503": (status(502), status(503)),
    "a 529": (status(529, "Overloaded", "overloaded_error"),),
    "a 408": (status(408),),
    "a 409": (status(409),),
    "a 429": (status(429),),
    "a 429 with a short wait": (status(429, "slow", None, "Retry-After: 0.1"),),
    "a hang-up": (hang_up,),
    "a reset": (reset,),
    "an empty body": (body(200, b""),),
    "a web page": (body(200, b"<html></html>", "text/html"),),
    "a cut before any text": (cut_after(1),),
    "two cuts": (cut_after(0), cut_after(1, "reset")),
}


@pytest.mark.parametrize("name", PASSING)
def test_passing_trouble_does_not_reach_the_user(turns: Turns, server: StrictServer, name: str) -> None:
    server.faults(*PASSING[name])

    view = finished(turns, server)

    assert (view.status, view.output) == (RunStatus.COMPLETED, HELLO.text)
    assert len(server.accepted) == len(PASSING[name]) + 1
    assert view.usage.total == 25, "a call without a reply costs nothing"
    assert [role for role, _ in turns.said(view.run_id)] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("code", "kind", "calls"),
    [
        (400, "format_error", 1),
        (401, "auth", 1),
        (402, "billing", 1),
        (403, "auth", 1),
        (404, "unknown", 1),
        (409, "server_error", 3),
        (413, "payload_too_large", 1),
        (429, "rate_limit", 3),
        (500, "server_error", 3),
        (529, "overloaded", 3),
    ],
)
def test_lasting_trouble_ends_the_run_visibly_after_as_many_calls_as_allowed(
    turns: Turns, server: StrictServer, code: int, kind: str, calls: int
) -> None:
    server.faults(*[status(code, "something that lasts and is longer than thirty characters")] * 10)

    view = finished(turns, server)

    assert (view.status, view.failure_kind) == (RunStatus.FAILED, kind)
    assert view.exit_reason in ("model_call_refused", "all_retries_exhausted_no_response")
    assert len(server.accepted) == calls
    assert view.error is not None and "something that lasts" in view.error
    assert (view.usage.total, view.is_failed) == (0, True)


def test_an_address_where_nothing_is_served_is_refused_at_once_and_named(store: Store, server: StrictServer) -> None:
    wrong = server.base_url.removesuffix("/v1") + "/v2"
    turns = Turns.over(store, wrong)
    run_id = turns.submit()
    turns.finish(run_id)

    view = store.views.load_run(run_id)
    assert (view.status, len(server.requests)) == (RunStatus.FAILED, 1)
    assert f"{wrong}/chat/completions" in (view.error or "")
    assert "HERMES_BASE_URL" in (view.error or "")


def test_the_number_of_attempts_is_a_setting(store: Store, server: StrictServer) -> None:
    server.faults(*[status(500)] * 10)
    turns = Turns.over(store, server.base_url, options=ModelOptions(attempts_max=5))

    finished(turns, server)

    assert len(server.accepted) == 5


def test_a_server_that_is_not_there_gets_a_second_round_after_a_pause(chat: Turns, server: StrictServer) -> None:
    """The primary's transport is given one more chance; the pause is too long to hold a worker."""
    server.faults(*[hang_up] * 20)
    run_id = chat.submit()

    assert chat.finish(run_id) == 1
    assert len(server.accepted) == 6
    assert chat.store.views.load_run(run_id).exit_reason == "all_retries_exhausted_no_response"


def test_a_long_wait_parks_the_run_and_what_was_tried_is_not_forgotten(turns: Turns, server: StrictServer) -> None:
    server.faults(*[status(429, "slow", None, "Retry-After: 60")] * 10)
    run_id = turns.submit()

    assert turns.step(run_id)
    assert turns.store.status(run_id) is RunStatus.WAITING_FOR_CAPACITY
    assert turns.finish(run_id) == 2

    view = turns.store.views.load_run(run_id)
    assert (view.exit_reason, len(server.accepted)) == ("all_retries_exhausted_no_response", 3)


def test_an_overflow_of_what_is_short_fails_as_partial(turns: Turns, server: StrictServer) -> None:
    server.faults(status(400, "prompt is too long: 210000 tokens > 200000 maximum"))

    view = finished(turns, server)

    assert (view.status, view.failure_kind) == (RunStatus.FAILED, "context_overflow")
    assert (view.is_partial, view.is_failed) == (True, True)


# ---------------------------------------------------------------------------------------------------------- compaction

NOTES = Said(text="## Goal\nnumbers were counted")
BIG = "word " * 2_400


def long_conversation(turns: Turns, server: StrictServer, steps: int) -> str:
    """A run that has made so many steps with big results, about to ask once more."""
    server.says(*(Said(calls=(ToolUse(id=f"call_{n}", name="todo"),)) for n in range(2 * steps)))
    run_id = turns.submit(session_id="s", input="count everything")
    for _ in range(steps):
        while isinstance(turns.store.due(run_id)[0], Iterate):
            turns.step(run_id)
        turns.store.settle(run_id, text=BIG)
    server.says(HELLO)
    return run_id


@pytest.mark.parametrize(
    "fault",
    [
        status(400, "prompt is too long: 210000 tokens > 200000 maximum"),
        status(413, "request entity too large"),
        status(400, "This model's maximum context length is 32768 tokens, however you requested 49000 tokens"),
    ],
)
def test_a_conversation_that_is_too_long_is_compacted_and_goes_on(
    turns: Turns, server: StrictServer, fault: Fault
) -> None:
    run_id = long_conversation(turns, server, 16)
    server.faults(fault)
    server.says(NOTES, Said(text="all counted"))
    sent_before = len(server.accepted)
    turns.finish(run_id)

    view = turns.store.views.load_run(run_id)
    assert (view.status, view.output) == (RunStatus.COMPLETED, "all counted")
    refused, summary, answered = map(json.dumps, server.accepted[sent_before:])
    assert "<turns>" in summary
    assert len(answered) < 0.8 * len(refused)
    assert "numbers were counted" in answered
    assert "count everything" in answered, "the request that is worked on survives"
    assert view.iteration == 17, "a compaction costs no iteration"
    assert view.usage.total == (17 + 1) * 25, "the summary is paid for, once"
    assert "session.compress" in turns.store.event_names(run_id)
    assert server.refusals == []
    check(turns.store)


def test_a_conversation_is_compacted_before_it_is_refused(store: Store, server: StrictServer) -> None:
    turns = Turns.over(store, server.base_url, options=ModelOptions(window=40_000))
    run_id = long_conversation(turns, server, 14)

    assert any("<turns>" in json.dumps(sent) for sent in server.accepted)
    longest = max(len(json.dumps(sent["messages"])) // 4 for sent in server.accepted)
    assert longest < 40_000
    turns.finish(run_id)
    following = turns.submit(session_id="s", input="and now?")
    server.says(Said(text="fine"))
    turns.finish(following)

    assert store.views.load_run(following).output == "fine"
    assert "<turns>" not in json.dumps(server.accepted[-1])
    assert server.refusals == []


def test_the_prompt_after_a_compaction_is_the_same_on_every_worker(store: Store, server: StrictServer) -> None:
    run_id = long_conversation(Turns.over(store, server.base_url), server, 16)
    server.faults(status(413, "request entity too large"))
    server.says(NOTES, CALL, Said(text="done"))
    one, other = Turns.over(store, server.base_url), Turns.over(store, server.base_url)
    one.step(run_id)
    other.step(run_id)
    store.settle(run_id, text="more")
    one.finish(run_id)

    before, after = (request.body for request in server.requests[-2:])
    assert after.startswith(before[:-2]), "what was sent once is sent again, byte by byte"


def test_what_cannot_be_made_shorter_fails_as_partial_and_says_what_to_do(chat: Turns, server: StrictServer) -> None:
    server.faults(*[status(413, "request entity too large")] * 9)

    view = finished(chat, server)

    assert (view.failure_kind, view.is_partial) == ("payload_too_large", True)
    assert "cannot be made shorter" in (view.error or "")
    assert len(server.accepted) == 1


def test_a_turn_is_compacted_three_times_at_most(chat: Turns, server: StrictServer) -> None:
    run_id = long_conversation(chat, server, 16)
    server.says(NOTES)
    server.faults(*[status(413, "request entity too large"), lambda s, r, q, p: p.document(200, r.document(NOTES))] * 9)
    chat.finish(run_id)

    view = chat.store.views.load_run(run_id)
    assert (view.status, view.failure_kind) == (RunStatus.FAILED, "payload_too_large")
    assert chat.store.event_names(run_id).count("session.compress") <= 3
    check(chat.store)


def test_without_a_model_for_the_summary_notes_are_cut_from_the_turns(chat: Turns, server: StrictServer) -> None:
    run_id = long_conversation(chat, server, 16)
    server.faults(status(413, "request entity too large"), status(401, "bad key"))
    server.says(Said(text="done"))
    chat.finish(run_id)

    assert chat.store.views.load_run(run_id).output == "done"
    assert "No model wrote these notes" in json.dumps(server.accepted[-1])


def test_a_summary_is_written_by_the_provider_that_is_set_for_it(store: Store, server: StrictServer) -> None:
    with StrictServer() as small, StrictServer() as broken:
        broken.faults(*[status(402, "insufficient credits")] * 9)
        small.says(NOTES)
        own = ProviderChain(
            ModelChoice(base_url=broken.base_url, api_key="k", model="first"),
            [ModelChoice(base_url=small.base_url, api_key="k", model="small", api_mode="anthropic_messages")],
        )
        turns = Turns.over(store, server.base_url, aside={"compression": own})
        run_id = long_conversation(turns, server, 16)
        server.faults(status(413, "request entity too large"))
        turns.finish(run_id)

        assert [sent["model"] for sent in (*broken.accepted, *small.accepted)] == ["first", "small"]
    assert not any("<turns>" in json.dumps(sent) for sent in server.accepted)
    assert "numbers were counted" in json.dumps(server.accepted[-1])
    assert store.views.load_run(run_id).status is RunStatus.COMPLETED


def test_compaction_can_be_switched_off(store: Store, server: StrictServer) -> None:
    turns = Turns.over(store, server.base_url, options=ModelOptions(compacts=False))
    run_id = long_conversation(turns, server, 4)
    server.faults(status(413, "request entity too large"))
    turns.finish(run_id)

    assert "compaction is off" in (store.views.load_run(run_id).error or "")


def test_asking_for_too_much_output_asks_for_less_once(turns: Turns, server: StrictServer) -> None:
    server.faults(status(400, "max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens"))

    view = finished(turns, server)

    assert view.output == HELLO.text
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    limits = [next((sent[name] for name in names if name in sent), None) for sent in server.accepted]
    assert limits[1] == 64_000 - 64


def test_reasoning_that_is_rejected_is_left_out_for_the_rest_of_the_turn(turns: Turns, server: StrictServer) -> None:
    refusals = {
        "anthropic_messages": "messages.1.content.0: Invalid `signature` in `thinking` block",
        "codex_responses": "The encrypted content for item rs_1 could not be verified",
        "chat_completions": "messages.1: Invalid `signature` in `thinking` block",
    }
    wire = turns.parts.models.chain.resolve_route("m", 0).wire.value
    again = Said(thinking="hm", calls=(ToolUse(id="call_2", name="todo"),))
    server.says(Said(thinking="hm", calls=CALL.calls), again, HELLO)
    run_id = turns.submit()
    turns.step(run_id)
    turns.step(run_id)
    server.faults(status(400, refusals[wire]))

    turns.finish(run_id)

    assert turns.store.views.load_run(run_id).output == HELLO.text
    assert "encrypted_content" not in json.dumps(server.accepted[-1].get("input", ""))
    assert "signature" not in json.dumps(server.accepted[-1].get("messages", ""))
    assert server.refusals == []


def test_images_that_a_model_cannot_see_are_left_out(chat: Turns, server: StrictServer) -> None:
    server.faults(status(400, "This model does not support image input: image_url is only supported by certain models"))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

    view = finished(chat, server, input=[{"type": "text", "text": "what is this?"}, image])

    assert view.output == HELLO.text
    assert "base64" not in json.dumps(server.accepted[1])
    assert "base64" in json.dumps(chat.store.bodies(view.run_id)), "the transcript keeps it"


def picture(side: int) -> dict[str, object]:
    out = io.BytesIO()
    Image.linear_gradient("L").resize((side, side)).save(out, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def sides(sent: object) -> list[int]:
    """Of the images in a request of any wire."""
    found = re.findall(r"(?:base64,|\"data\": \")([A-Za-z0-9+/=]{20,})", json.dumps(sent))
    return [Image.open(io.BytesIO(base64.b64decode(data))).width for data in found]


TOO_LARGE = "image dimensions exceed max allowed size: 200 pixels"


def test_images_that_are_too_large_are_sent_smaller_for_the_rest_of_the_turn(
    turns: Turns, server: StrictServer
) -> None:
    server.faults(status(400, TOO_LARGE))
    server.says(CALL, HELLO)

    view = finished(turns, server, input=[{"type": "text", "text": "compare"}, picture(400), picture(100)])

    assert view.output == HELLO.text
    assert [sides(sent) for sent in server.accepted] == [[400, 100], [200, 100], [200, 100]]
    assert sides(turns.store.bodies(view.run_id)) == [400, 100], "the transcript keeps them"


@pytest.mark.parametrize("faults", [[status(400, TOO_LARGE)], [status(400, TOO_LARGE)] * 2])
def test_images_that_cannot_be_made_small_enough_are_left_out(
    chat: Turns, server: StrictServer, faults: list[Fault]
) -> None:
    """One is no image at all; another is refused however small."""
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    server.faults(*faults)

    view = finished(chat, server, input=[{"type": "text", "text": "see"}, picture(400) if len(faults) == 2 else broken])

    assert view.output == HELLO.text
    assert "base64" not in json.dumps(server.accepted[-1])
    assert len(server.accepted) == len(faults) + 1


# -------------------------------------------------------------------------------------------------- cut in the middle


def test_text_that_was_shown_is_continued_and_joined(turns: Turns, server: StrictServer, wire: str) -> None:
    whole = "one two three four five six"
    position = len(RULES[wire].events(Said(text=whole))) // 2
    server.says(Said(text=whole), Said(text=" and the rest"))
    server.faults(cut_after(position))
    run_id = turns.submit()
    turns.finish(run_id)

    view = turns.store.views.load_run(run_id)
    assert view.status is RunStatus.COMPLETED
    assert view.output is not None and view.output.endswith("and the rest")
    assert whole.startswith(view.output.removesuffix(" and the rest"))
    assert [role for role, _ in turns.said(run_id)] == ["user", "assistant"]
    assert "connection broke" in str(server.accepted[1])
    assert view.iteration == 2
    assert turns.store.event_names(run_id) == ["reply.discarded", "message.completed", "run.completed"]
    assert server.refusals == []


@pytest.mark.parametrize("wire", ["chat", "messages"])
def test_an_answer_over_its_limit_is_continued_three_times_with_a_growing_limit(
    turns: Turns, server: StrictServer, wire: str
) -> None:
    server.says(*(Said(text=f"part{n} ", finish=RULES[wire].length) for n in range(9)))

    view = finished(turns, server)

    assert (view.status, view.exit_reason, view.failure_kind) == (RunStatus.COMPLETED, "truncated", "truncated")
    assert view.output == "part0 part1 part2 part3"
    assert (view.is_partial, view.is_completed) == (True, False)
    assert [sent.get("max_tokens") for sent in server.accepted][1:] == [8_192, 16_384, 32_768]
    assert view.usage.total == 4 * 25, "every reply was paid for, each once"


@pytest.mark.parametrize("wire", ["responses"])
def test_a_response_that_stays_incomplete_ends_the_run_at_the_third(turns: Turns, server: StrictServer) -> None:
    server.says(Said(thinking="t", text="so far", finish="max_output_tokens"))

    view = finished(turns, server)

    assert (view.exit_reason, view.failure_kind, view.output) == ("truncated", "incomplete", "so far")
    assert len(server.accepted) == 3
    assert view.is_partial


@pytest.mark.parametrize("wire", ["responses"])
def test_a_response_cut_at_its_limit_keeps_its_first_parts(turns: Turns, server: StrictServer) -> None:
    server.says(*(Said(thinking="t", text=f"part{n} ", finish="max_output_tokens") for n in range(9)))

    view = finished(turns, server)

    assert (view.exit_reason, view.failure_kind, view.output) == ("truncated", "incomplete", "part0 part1 part2")
    assert "length limit" in str(server.accepted[1]["input"][-1])


def test_an_answer_that_is_finished_by_a_continuation_is_whole(turns: Turns, server: StrictServer, wire: str) -> None:
    server.says(Said(text="The beginning, ", finish=RULES[wire].length), Said(text="and the end."))

    view = finished(turns, server)

    assert (view.exit_reason, view.output) == ("text_response", "The beginning, and the end.")
    assert view.is_completed


def calling(number: int, *names: str) -> Said:
    uses = [ToolUse(id=f"call_{number}_{n}", name=name, arguments="{}") for n, name in enumerate(names)]
    return Said(calls=tuple(uses))


def test_a_tool_that_does_not_exist_is_not_asked_for_for_ever(store: Store, server: StrictServer, wire: str) -> None:
    """Whoever makes the next call: what was counted stands in the run."""
    server.says(*(calling(number, "make_coffee", "make_tea") for number in range(9)))
    run_id = Turns.over(store, server.base_url, api_mode=API_MODE[wire]).submit()

    while not store.status(run_id).is_terminal:
        another_worker = Turns.over(store, server.base_url, api_mode=API_MODE[wire])
        assert another_worker.step(run_id)

    view = store.views.load_run(run_id)
    assert (view.status, view.exit_reason, view.failure_kind) == (RunStatus.FAILED, "unknown_tools", "unknown_tools")
    assert (view.is_partial, view.is_completed) == (True, False)
    assert view.error is not None
    assert "'make_coffee', 'make_tea'" in view.error
    assert len(server.accepted) == 3
    assert view.usage.total == 3 * 25, "every reply was paid for"
    assert server.refusals == []
    check(store)


def test_a_good_call_between_calls_of_unknown_tools_is_progress(turns: Turns, server: StrictServer) -> None:
    bad = [calling(number, "make_coffee") for number in range(4)]
    mixed = calling(8, "make_coffee", "todo")
    server.says(bad[0], bad[1], mixed, bad[2], bad[3], CALL, HELLO)

    view = finished(turns, server)

    assert (view.status, view.output) == (RunStatus.COMPLETED, HELLO.text)
    assert len(server.accepted) == 7


def test_a_name_that_is_only_mistyped_is_no_unknown_tool(turns: Turns, server: StrictServer) -> None:
    server.says(*(calling(number, "TodoTool") for number in range(4)), HELLO)

    view = finished(turns, server)

    assert (view.status, len(server.accepted)) == (RunStatus.COMPLETED, 5)


def test_a_tool_that_the_session_was_not_given_is_unknown(turns: Turns, server: StrictServer) -> None:
    server.says(*(calling(number, "terminal") for number in range(9)))

    view = finished(turns, server)

    assert (view.exit_reason, len(server.accepted)) == ("unknown_tools", 3)


RAW_CALL = Said(text='<tool_call>\n{"name": "todo", "arguments": {}}\n</tool_call>')


def test_a_call_that_the_server_left_as_text_is_asked_for_again_and_then_told(
    turns: Turns, server: StrictServer
) -> None:
    server.says(RAW_CALL)

    view = finished(turns, server)

    assert (view.status, view.exit_reason, view.failure_kind) == (RunStatus.FAILED, "unknown_tools", "raw_calls")
    assert view.error is not None
    assert "lacks the tool parser for this model" in view.error
    assert len(server.accepted) == 3


def test_a_call_that_is_made_properly_in_the_end_is_run(turns: Turns, server: StrictServer) -> None:
    """In a long turn, however often a reply was none before a good one."""
    server.says(*[RAW_CALL, CALL] * 5, RAW_CALL, HELLO)

    view = finished(turns, server)

    assert (view.status, view.output) == (RunStatus.COMPLETED, HELLO.text)
    assert len(server.accepted) == 12


def test_empty_and_cut_replies_of_a_long_turn_are_not_added_up(chat: Turns, server: StrictServer) -> None:
    calls = [calling(number, "todo") for number in range(8)]
    server.says(*(said for call in calls for said in (EMPTY, EMPTY, Said(text="on it", finish="length"), call)), HELLO)

    view = finished(chat, server)

    assert (view.status, view.output) == (RunStatus.COMPLETED, HELLO.text)


def test_thoughts_that_a_server_refuses_are_left_out(store: Store, server: StrictServer) -> None:
    """The strict server takes no ``reasoning_content``, whatever the catalogue says of its provider."""
    server.says(Said(thinking="look first", calls=CALL.calls), HELLO)
    turns = Turns.over(store, server.base_url, provider="deepseek")
    run_id = turns.submit()
    turns.finish(run_id)

    assert (store.views.load_run(run_id).status, store.views.load_run(run_id).output) == (
        RunStatus.COMPLETED,
        HELLO.text,
    )
    assert [("reasoning_content" in refusal) for refusal in server.refusals] == [True]
    check(store)


@pytest.mark.parametrize("provider", ["deepseek", "custom"])
def test_what_a_model_thought_beside_its_calls_goes_back_to_it(store: Store, provider: str) -> None:
    """To a provider that is known to want it, and to one that asks for it."""
    calls = [{"index": 0, "id": "call_1", "function": {"name": "todo", "arguments": "{}"}}]
    missing = {"error": {"message": "The reasoning_content in the thinking mode must be passed back to the API."}}

    def answer(request: Received, reply: Reply) -> None:
        rows = request.document["messages"]
        if rows[-1]["role"] != "tool":
            thought = {"reasoning_content": "look first", "tool_calls": calls}
            reply.sse({"choices": [{"index": 0, "delta": thought, "finish_reason": "tool_calls"}]}, "[DONE]")
        elif rows[-2].get("reasoning_content") != "look first":
            reply.document(400, missing)
        else:
            say_hello(request, reply)

    with FaultServer(answer) as server:
        turns = Turns.over(store, server.base_url, provider=provider)
        run_id = turns.submit()
        turns.finish(run_id)

    assert store.views.load_run(run_id).status is RunStatus.COMPLETED
    assert len(server.requests) == (2 if provider == "deepseek" else 3)
    check(store)


def test_a_credit_for_a_shorter_reply_is_used_for_one(chat: Turns, server: StrictServer) -> None:
    server.faults(status(402, "You requested up to 65536 tokens, but can only afford 20733."))

    view = finished(chat, server)

    assert view.status is RunStatus.COMPLETED
    assert server.accepted[1]["max_tokens"] == 20_733 - 64


def test_the_reason_in_a_body_of_any_form_reaches_the_person(chat: Turns, server: StrictServer) -> None:
    said = {"detail": [{"loc": ["body", "messages", 1], "msg": "Input should be a valid string"}]}
    server.faults(body(422, json.dumps(said).encode()))

    view = finished(chat, server)

    assert view.error is not None
    assert "body.messages.1: Input should be a valid string" in view.error
    assert "Error code" not in view.error


@pytest.mark.parametrize("is_told", [True, False])
def test_calls_over_the_limit_are_asked_for_again_without_costing_an_iteration(
    turns: Turns, server: StrictServer, wire: str, is_told: bool
) -> None:
    """Whether the server says that it cut them or calls them whole."""
    cut = replace(CUT_CALL, finish=RULES[wire].length if is_told else "")
    server.says(cut, cut, CALL, HELLO)

    view = finished(turns, server)

    assert view.output == HELLO.text
    assert view.iteration == 2
    asked = [sent["input" if wire == "responses" else "messages"] for sent in server.accepted]
    assert asked[0] == asked[1] == asked[2]


@pytest.mark.parametrize("arguments", ['{"n":1e400}', '{"n":1e400}{"n":1}', '{"n":NaN}', '{"n":%s}' % ("9" * 5_000)])
def test_arguments_that_json_cannot_say_do_not_end_the_run(turns: Turns, server: StrictServer, arguments: str) -> None:
    server.says(Said(calls=(ToolUse(id="call_0", name="todo", arguments=arguments),)), CALL, HELLO)

    view = finished(turns, server)

    assert (view.status, view.output) == (RunStatus.COMPLETED, HELLO.text)


@pytest.mark.parametrize("arguments", ['```json\n{"todos": []}\n```', '"{\\"todos\\": []}"'])
def test_arguments_in_a_fence_or_encoded_twice_are_taken_as_they_were_meant(
    turns: Turns, server: StrictServer, arguments: str
) -> None:
    server.says(Said(calls=(ToolUse(id="call_1", name="todo", arguments=arguments),)), HELLO)

    view = finished(turns, server)

    assert (view.output, view.iteration) == (HELLO.text, 2), "nothing was asked again"
    sent = json.dumps(server.accepted[1])
    assert "```" not in sent
    assert "todos" in sent


@pytest.mark.parametrize("is_told", [True, False])
def test_calls_that_stay_cut_end_the_run_after_four_more_tries(
    turns: Turns, server: StrictServer, wire: str, is_told: bool
) -> None:
    server.says(replace(CUT_CALL, finish=RULES[wire].length if is_told else ""))

    view = finished(turns, server)

    assert (view.status, view.exit_reason, view.failure_kind) == (RunStatus.FAILED, "truncated", "truncated_calls")
    assert len(server.accepted) == 5
    assert view.usage.total == 5 * 25
    assert view.is_partial


def test_thinking_that_uses_up_the_limit_ends_the_run_with_advice(chat: Turns, server: StrictServer) -> None:
    server.says(Said(text="<think>on and on and", finish="length"))

    view = finished(chat, server)

    assert (view.exit_reason, view.failure_kind) == ("truncated", "thinking_exhausted")
    assert view.error is not None and "reasoning effort" in view.error
    assert len(server.accepted) == 1


# --------------------------------------------------------------------------------------------------------------- empty


def test_an_empty_reply_is_asked_for_three_more_times(turns: Turns, server: StrictServer) -> None:
    server.says(EMPTY)

    view = finished(turns, server)

    assert (view.status, view.exit_reason) == (RunStatus.FAILED, "empty_response_exhausted")
    assert len(server.accepted) == 4
    assert view.usage.total == 4 * 25
    assert view.error is not None and "empty" in view.error


def test_silence_after_tools_is_nudged_first_and_no_scaffold_is_stored(turns: Turns, server: StrictServer) -> None:
    # A housekeeping tool without a text beside it.
    server.says(CALL, EMPTY, HELLO)

    view = finished(turns, server)

    assert view.output == HELLO.text
    assert "your reply to that was empty" in str(server.accepted[2])
    assert "your reply to that was empty" not in str(turns.store.bodies(view.run_id))
    assert [role for role, _ in turns.said(view.run_id)] == ["user", "assistant", "tool", "assistant"]
    assert view.iteration == 3, "the nudge costs an iteration"


@pytest.mark.parametrize("silence", [EMPTY, Said(text=" "), Said(thinking="is there more to say?")])
def test_an_answer_that_came_beside_housekeeping_counts(turns: Turns, server: StrictServer, silence: Said) -> None:
    server.says(Said(text="It is all done.", calls=CALL.calls), silence)

    view = finished(turns, server)

    assert (view.exit_reason, view.output) == ("fallback_prior_turn_content", "It is all done.")


def test_a_summary_that_is_empty_is_asked_for_once_more(chat: Turns, server: StrictServer) -> None:
    server.says(CALL, EMPTY, EMPTY)

    view = finished(chat, server, iterations_max=1)

    assert (view.status, view.exit_reason) == (RunStatus.COMPLETED, "max_iterations_reached")
    assert view.output is not None and "no summary" in view.output
    assert len(server.accepted) == 3
    assert "tools" not in server.accepted[1]
    assert not view.is_completed


def test_a_reply_that_a_filter_stopped_ends_the_run(chat: Turns, server: StrictServer) -> None:
    server.says(Said(text="I was going to", finish="content_filter"))

    view = finished(chat, server)

    assert (view.status, view.exit_reason) == (RunStatus.FAILED, "content_policy_blocked")
    assert len(server.accepted) == 1


def test_a_refusal_ends_the_run_and_is_told(turns: Turns, server: StrictServer) -> None:
    server.says(Said(refusal="I cannot help with that."))

    view = finished(turns, server)

    assert (view.status, view.exit_reason) == (RunStatus.FAILED, "content_policy_blocked")
    assert view.error is not None and "It said: I cannot help with that." in view.error
    assert len(server.accepted) == 1


def test_what_the_turn_remembers_survives_the_worker(store: Store, server: StrictServer) -> None:
    """The next request is built by another one, from the row."""
    server.says(Said(text="The beginning, ", finish="length"), Said(text="and the end."))
    first, second = (Turns.over(store, server.base_url) for _ in range(2))
    run_id = first.submit()

    first.step(run_id)
    assert first.memory(run_id)["counters"]["parts"] == ["The beginning, "]
    second.step(run_id)

    assert store.views.load_run(run_id).output == "The beginning, and the end."


def test_the_next_turn_of_a_session_does_not_trip_over_any_of_this(turns: Turns, server: StrictServer) -> None:
    """A run that failed half-way leaves a transcript that a strict server takes."""
    server.faults(*[status(500)] * 3)
    turns.finish(turns.submit(session_id="s"))
    server.says(CALL, Said(text="fine"))

    following = turns.submit(session_id="s", input="again")
    turns.finish(following)

    assert turns.store.views.load_run(following).output == "fine"
    assert server.refusals == []


# ------------------------------------------------------------------------------------------------------------ fallback


def test_the_next_provider_of_the_chain_steps_in(store: Store, server: StrictServer) -> None:
    with StrictServer() as other:
        other.says(CALL, Said(text="from elsewhere"))
        server.faults(*[status(401)] * 9)
        fallback = ModelChoice(base_url=other.base_url, api_key="k", api_mode="anthropic_messages", model="claude")

        view = finished(Turns.over(store, server.base_url, fallbacks=(fallback,)), server)

    assert view.output == "from elsewhere"
    assert len(server.accepted) == 1, "the chain only goes forward within a turn"
    assert [sent["model"] for sent in other.accepted] == ["claude", "claude"]
    assert other.refusals == []


def test_the_next_turn_begins_with_the_first_provider_again(store: Store, server: StrictServer) -> None:
    with StrictServer() as other:
        server.faults(status(401))
        fallback = ModelChoice(base_url=other.base_url, api_key="k", api_mode="chat_completions", model="other")
        turns = Turns.over(store, server.base_url, fallbacks=(fallback,))
        finished(turns, server, session_id="s")
        finished(turns, server, session_id="s", input="again")

    assert (len(server.accepted), len(other.accepted)) == (2, 1)


def test_a_filter_of_one_provider_is_answered_by_another_for_free(store: Store, server: StrictServer) -> None:
    with StrictServer() as other:
        server.says(Said(text="", finish="content_filter"))
        fallback = ModelChoice(base_url=other.base_url, api_key="k", api_mode="chat_completions", model="other")

        view = finished(Turns.over(store, server.base_url, fallbacks=(fallback,)), server)

    assert (view.output, view.iteration) == (HELLO.text, 1)


def test_a_provider_that_is_used_up_is_left_alone_by_everybody_and_gone_back_to(
    store: Store, server: StrictServer, broker_url: str
) -> None:
    client = redis.Redis.from_url(for_administrator(broker_url), decode_responses=True)
    with StrictServer() as other:
        server.faults(status(402, "insufficient credits"))
        fallback = ModelChoice(base_url=other.base_url, api_key="k", api_mode="chat_completions", model="other")
        for session in ("one", "two"):
            turns = Turns.over(store, server.base_url, fallbacks=(fallback,), governor=Governor(client))
            assert finished(turns, server, session_id=session).status is RunStatus.COMPLETED
        assert (len(server.accepted), len(other.accepted)) == (1, 2)

        [place] = [
            key for key in client.keys("*governor*") if client.type(key) == "hash" and client.hget(key, "cool_until")
        ]
        assert float(client.hget(place, "cool_until") or 0) - float(client.time()[0]) == pytest.approx(60, abs=3)
        client.delete(place)  # as the minute does
        finished(turns, server, session_id="three")
    assert (len(server.accepted), len(other.accepted)) == (2, 2)


# ----------------------------------------------------------------------------------------------------------------- keys


def keys_of(server: StrictServer) -> list[str]:
    """The key of each request, by its last letter."""
    found = (request.header("authorization") or request.header("x-api-key") for request in server.requests)
    return [(key or "")[-1] for key in found]


@pytest.mark.parametrize(
    ("faults", "used"),
    [
        ([status(402, "insufficient credits")], "jb"),
        ([status(401, "Incorrect API key provided")], "jb"),
        ([status(429, "slow down")] * 2, "jjb"),
        ([status(429, "slow down", None, "Retry-After: 30")], "jb"),
        ([status(429, "usage limit reached")], "jb"),
        ([status(402, "insufficient credits")] * 2, "jbc"),
        ([status(500)], "jj"),
    ],
)
def test_another_key_steps_in_for_one_that_is_spent_or_refused(
    turns: Turns, server: StrictServer, store: Store, broker_url: str, faults: list[Fault], used: str, wire: str
) -> None:
    pool = CredentialPool(redis.Redis.from_url(broker_url, decode_responses=True))
    more = ("sk-test-more-b", "sk-test-more-c")
    turns = Turns.over(store, server.base_url, api_mode=API_MODE[wire], more_keys=more, pool=pool)
    server.faults(*faults)

    view = finished(turns, server)

    assert view.output == HELLO.text
    assert "".join(keys_of(server)) == used


def test_a_key_that_was_refused_is_not_tried_by_the_next_run(
    server: StrictServer, store: Store, broker_url: str
) -> None:
    client = redis.Redis.from_url(for_administrator(broker_url), decode_responses=True)
    server.faults(status(401, "Incorrect API key provided"))
    for _ in range(2):
        turns = Turns.over(store, server.base_url, more_keys=("sk-test-more-b",), pool=CredentialPool(client))
        finished(turns, server)

    assert "".join(keys_of(server)) == "jbb"
    assert client.hgetall("hermes:credentials:held") == {}, "a turn that is over gives its key back"
    seen = json.dumps([client.hgetall(key) for key in client.keys("hermes:credentials")])
    assert "sk-test" not in seen


def test_when_every_key_is_refused_the_run_says_so(server: StrictServer, store: Store, broker_url: str) -> None:
    pool = CredentialPool(redis.Redis.from_url(broker_url, decode_responses=True))
    server.faults(*[status(401, "Incorrect API key provided")] * 9)
    turns = Turns.over(store, server.base_url, more_keys=("sk-test-more-b",), pool=pool)

    view = finished(turns, server)

    assert (view.status, view.failure_kind) == (RunStatus.FAILED, "auth")
    assert "".join(keys_of(server)) == "jb"
    assert "sk-test" not in (view.error or "")


# ------------------------------------------------------------------------------------------------------------ governor


def test_a_run_without_leave_to_ask_is_parked_and_keeps_its_place(
    store: Store, server: StrictServer, broker_url: str
) -> None:
    client = redis.Redis.from_url(for_administrator(broker_url), decode_responses=True)
    governor = Governor(client, ConfiguredLimits(requests_per_min=1))
    turns = Turns.over(store, server.base_url, governor=governor)
    first, second = turns.submit(), turns.submit()

    turns.step(first)
    turns.step(second)

    assert (store.status(first), store.status(second)) == (RunStatus.COMPLETED, RunStatus.WAITING_FOR_CAPACITY)
    resume_at = store.views.load_run(second).resume_at
    assert resume_at is not None
    assert resume_at - store.database.read_clock() == pytest.approx(61, abs=3)
    assert len(server.accepted) == 1


def test_one_runs_rate_limit_holds_the_others_back(store: Store, server: StrictServer, broker_url: str) -> None:
    governor = Governor(redis.Redis.from_url(broker_url, decode_responses=True))
    turns = Turns.over(store, server.base_url, governor=governor)
    server.faults(status(429, "slow", None, "Retry-After: 60"))
    refused, other = turns.submit(), turns.submit()

    turns.step(refused)
    turns.step(other)

    assert store.status(refused) is store.status(other) is RunStatus.WAITING_FOR_CAPACITY
    assert len(server.accepted) == 1


# ---------------------------------------------------------------------------------------------------------------- cost


def test_what_a_run_costs_is_summed_with_its_steps(store: Store, server: StrictServer) -> None:
    server.says(CALL, HELLO)
    turns = Turns.over(store, server.base_url, provider="openai")
    run_id = turns.submit(model="gpt-4o")
    turns.finish(run_id)

    view = store.views.load_run(run_id)
    # 12 input, 8 cached and 5 output tokens, twice, at 2.50, 1.25 and 10 dollars a million (2026-03).
    assert view.cost_usd == 2 * (12 * Decimal("2.5") + 8 * Decimal("1.25") + 5 * 10) / Decimal(1_000_000)
    assert view.cost_status is CostStatus.ESTIMATED


def test_a_model_without_a_price_costs_an_unknown_sum(chat: Turns, server: StrictServer) -> None:
    view = finished(chat, server)

    assert (view.cost_usd, view.cost_status) == (Decimal(0), CostStatus.UNKNOWN)


def test_what_the_provider_says_it_billed_counts(chat: Turns, server: StrictServer) -> None:
    document = {
        "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 5, "cost": 0.00123},
    }
    server.faults(body(200, dump_canonical_json(document).encode()))

    view = finished(chat, server)

    assert (view.cost_usd, view.cost_status) == (Decimal("0.00123"), CostStatus.KNOWN)


def test_a_run_that_never_asked_has_no_cost(chat: Turns) -> None:
    view = chat.store.views.load_run(chat.submit())

    assert (view.cost_usd, view.cost_status) == (None, None)
