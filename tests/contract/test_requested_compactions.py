"""Somebody asks that a conversation be summarised: a run of its session that asks no model for an answer, through the
real task body, with a server that speaks its wire strictly."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from dialects import Said, ToolUse, WireRules
from strict_server import StrictServer, status
from support.fault_server import Received, Reply
from support.store import Store, check
from support.turns import Turns

from hermes_worker.agent.prompt.compactors import SummaryCompactor
from hermes_worker.core.auxiliary import AuxTask
from hermes_worker.core.compactions import select_visible
from hermes_worker.core.effects import Iterate
from hermes_worker.core.hooks import HookEvent
from hermes_worker.core.recovery.request_policy import UNSUMMARISED_MAX
from hermes_worker.core.run import RunStatus
from hermes_worker.models.chain import ModelChoice, ProviderChain
from hermes_worker.tasks.context import WorkerHooks
from hermes_worker.tasks.hooks.running import HookRunner, LoadedHook
from hermes_worker.tasks.iteration.requests import ModelOptions

pytestmark = pytest.mark.usefixtures("no_time_for_short_waits")

BIG = "word " * 400


@pytest.fixture
def turns(store: Store, server: StrictServer) -> Turns:
    return Turns.over(store, server.base_url)


def talked(turns: Turns, server: StrictServer, *, steps: int = 8, input: object = "count everything") -> str:
    server.says(*(Said(calls=(ToolUse(id=f"call_{n}", name="todo"),)) for n in range(steps)), Said(text="all counted"))
    run_id = turns.submit(session_id="s", input=input, iterations_max=90)
    for _ in range(steps):
        while isinstance(turns.store.due(run_id)[0], Iterate):
            turns.step(run_id)
        turns.store.settle(run_id, text=BIG)
    turns.finish(run_id)
    return run_id


def asked(turns: Turns, focus: str = "") -> str:
    run_id = turns.submit(session_id="s", input=f"/compress {focus}".strip(), compress=focus)
    turns.finish(run_id)
    return run_id


def test_a_conversation_is_summarised_and_no_model_is_asked_for_an_answer(turns: Turns, server: StrictServer) -> None:
    talked(turns, server)
    sent = len(server.accepted)
    server.says(Said(text="## Goal\nnumbers were counted"))
    run_id = asked(turns, "the sums of Ω")

    view = turns.store.views.load_run(run_id)
    assert view.status is RunStatus.COMPLETED
    assert "numbers were counted" in (view.output or "")
    assert len(server.accepted) == sent + 1, "only the summary"
    question = json.dumps(server.accepted[-1], ensure_ascii=False)
    assert "the sums of Ω" in question and "keep everything about this" in question
    assert turns.store.event_names(run_id).count("session.compress") == 1
    assert view.usage.total > 0, "what it took is billed"

    server.says(Said(text="and on we go"))
    after = turns.submit(session_id="s", input="go on")
    turns.finish(after)
    shown = json.dumps(server.accepted[-1], ensure_ascii=False)
    assert "numbers were counted" in shown and "/compress" not in shown
    assert len(shown) < len(json.dumps(server.accepted[sent - 1]))
    check(turns.store)


def test_a_history_is_summarised_in_a_session_of_its_own(turns: Turns, server: StrictServer) -> None:
    """As ``POST /v1/responses/compact`` asks for it."""
    history = [{"role": role, "content": f"{number} {BIG}"} for number in range(20) for role in ("user", "assistant")]
    server.says(Said(text="## Goal\nnumbers were counted"))
    run_id = turns.submit(input="/compress", compress="", history=history, toolsets=("none",))
    turns.finish(run_id)

    assert turns.store.views.load_run(run_id).status is RunStatus.COMPLETED
    shown = [str(json.loads(row.body)["content"]) for row in select_visible(turns.store.views.load_transcript(run_id))]
    assert any("numbers were counted" in text for text in shown)
    assert len(shown) < len(history) and not any(text.startswith("/compress") for text in shown)
    assert shown[-1] == history[-1]["content"], "the newest rows stand as they are"


def test_a_short_conversation_is_left_as_it_is(turns: Turns, server: StrictServer) -> None:
    server.says(Said(text="hello"))
    turns.finish(turns.submit(session_id="s", input="hello"))
    sent = len(server.accepted)
    view = turns.store.views.load_run(asked(turns))
    assert (view.status, view.output) == (
        RunStatus.COMPLETED,
        "The conversation is short: there is nothing to summarise.",
    )
    assert len(server.accepted) == sent

    server.says(Said(text="fine"))
    turns.finish(turns.submit(session_id="s", input="and now"))
    assert "nothing to summarise" not in json.dumps(server.accepted[-1])
    check(turns.store)


def test_the_answer_is_the_summary_where_a_picture_stays_beside_it(turns: Turns, server: StrictServer) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    talked(turns, server, input=[{"type": "text", "text": "count this"}, picture])
    server.says(Said(text="## Goal\nnumbers were counted"))
    view = turns.store.views.load_run(asked(turns))
    assert "numbers were counted" in (view.output or "") and "iVBOR" not in (view.output or "")
    server.says(Said(text="and on we go"))
    turns.finish(turns.submit(session_id="s", input="go on"))
    assert "iVBORw0KGgo=" in json.dumps(server.accepted[-1]), "it is still sent"
    check(turns.store)


def summaries_refused(server: StrictServer, rules: WireRules, request: Received, reply: Reply) -> None:
    """Answers the conversation, and writes no summary."""
    if b"handover notes" in request.body:
        status(400, "no")(server, rules, request, reply)
    else:
        reply.document(200, rules.document(server.next_reply()))


def summarised_by(store: Store, server: StrictServer, aside: StrictServer, **options: object) -> Turns:
    """Summaries are asked of ``aside`` first, and then of ``server``."""
    choice = ModelChoice(base_url=aside.base_url, api_key="k", model="notes", api_mode="chat_completions")
    chain = {AuxTask.COMPRESSION: ProviderChain(choice)}
    return Turns.over(store, server.base_url, aside=chain, options=ModelOptions(**options))  # type: ignore[arg-type]


def test_a_summary_that_fails_loses_no_message(store: Store, server: StrictServer) -> None:
    with StrictServer() as aside:
        turns = summarised_by(store, server, aside)
        talked(turns, server)
        aside.faults(*[status(400, "broken")] * 9)
        server.faults(status(400, "broken"))
        view = store.views.load_run(asked(turns))
        assert view.status is RunStatus.COMPLETED
        assert "No model wrote a summary" in (view.output or "")
        server.says(Said(text="still here"))
        turns.finish(turns.submit(session_id="s", input="go on"))
        shown = json.dumps(server.accepted[-1])
        assert shown.count(BIG.strip()) == 8 and "No model wrote" not in shown
        check(store)


def test_while_a_request_fits_a_summary_that_fails_changes_nothing(store: Store, server: StrictServer) -> None:
    """The threshold is passed, and the window is not: the conversation is sent as it is, and not tried for ever."""

    class Notes(SummaryCompactor):
        def pruning(self, rows: object, *, over: int, trigger: int) -> None:
            return None

    with StrictServer() as aside:
        turns = summarised_by(
            store, server, aside, window=16_000, compact_models_at=(("strict", 0.3),), compactor=Notes()
        )
        aside.faults(*[status(400, "no")] * 40)
        server.faults(*[summaries_refused] * 60)
        run_id = talked(turns, server, steps=27)
        assert "session.compress" not in store.event_names(run_id)
        assert len(aside.requests) == UNSUMMARISED_MAX
        assert json.dumps(server.accepted[-1]).count(BIG.strip()) == 27, "every result was sent"


def test_a_stopped_request_changes_nothing_and_a_later_turn_is_answered(turns: Turns, server: StrictServer) -> None:
    talked(turns, server)
    stopped = turns.submit(session_id="s", input="/compress", compress="")
    turns.store.runs.request_stop(stopped)
    turns.finish(stopped)
    assert turns.store.views.load_run(stopped).status is RunStatus.CANCELLED
    server.says(Said(text="here I am"))
    later = turns.submit(session_id="s", input="are you there")
    turns.finish(later)
    assert turns.store.views.load_run(later).output == "here I am"


def test_a_hook_says_what_the_summary_must_keep(store: Store, server: StrictServer) -> None:
    heard: list[dict[str, object]] = []

    def keep(event: HookEvent) -> object:
        heard.append(dict(event.payload))
        return {"context": "the launch code is Ж-7"}

    turns = Turns.over(store, server.base_url)
    hook = LoadedHook(name="keep", events=frozenset({"pre_compress"}), call=keep, timeout_s=5.0)
    turns.parts = replace(turns.parts, hooks=WorkerHooks(runner=HookRunner([hook]), store=None))
    talked(turns, server)
    server.says(Said(text="notes"))
    asked(turns, "codes")
    assert "the launch code is Ж-7" in json.dumps(server.accepted[-1], ensure_ascii=False)
    (payload,) = heard
    assert (payload["focus"], payload["message_count"]) == ("codes", len(payload["conversation_history"]))  # type: ignore[arg-type]
