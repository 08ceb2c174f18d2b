"""A conversation that is too long for a window nobody told: what was refused bounds it, and the server may be asked.

Through the real task body, over each wire, with a server that speaks it strictly and has no more room than it says.
"""

from __future__ import annotations

import json
import time

import pytest
from dialects import API_MODE, RULES, Said, ToolUse, WireRules
from strict_server import Fault, StrictServer, status
from support.fault_server import FaultServer, Received, Reply
from support.patience import PATIENCE_S
from support.store import Store, check
from support.turns import KEY, Turns

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.effects import Iterate
from hermes_worker.core.run import RunStatus
from hermes_worker.models import windows
from hermes_worker.models.catalog import Wire
from hermes_worker.models.chain import ModelChoice
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.windows import ServedWindow, WindowAnswers
from hermes_worker.tasks.iteration.requests import ModelOptions

pytestmark = pytest.mark.usefixtures("no_time_for_short_waits")

NOTES = Said(text="## Goal\nnumbers were counted")
BIG = "word " * 1_400
WORDLESS = "Your input exceeds the context window of this model. Please adjust your input and try again."


@pytest.fixture(params=RULES)
def turns(request: pytest.FixtureRequest, store: Store, server: StrictServer) -> Turns:
    return Turns.over(store, server.base_url, api_mode=API_MODE[str(request.param)])


def small(tokens: int, said: str = WORDLESS, code: int = 400) -> Fault:
    """A server that refuses what is longer than so many tokens."""

    def fault(server: StrictServer, rules: WireRules, request: Received, reply: Reply) -> None:
        if len(request.body) // 4 > tokens:
            status(code, said)(server, rules, request, reply)
        else:
            reply.document(200, rules.document(server.next_reply()))

    return fault


def long_conversation(turns: Turns, server: StrictServer, steps: int) -> str:
    """A run of so many steps with big results, about to ask once more."""
    server.says(*(Said(calls=(ToolUse(id=f"call_{n}", name="todo"),)) for n in range(2 * steps)))
    run_id = turns.submit(session_id="s", input="count everything")
    for _ in range(steps):
        while isinstance(turns.store.due(run_id)[0], Iterate):
            turns.step(run_id)
        turns.store.settle(run_id, text=BIG)
    return run_id


@pytest.mark.parametrize(("said", "code"), [(WORDLESS, 400), ("too large", 413)])
def test_a_window_nobody_told_is_stepped_down_to(turns: Turns, server: StrictServer, said: str, code: int) -> None:
    """28,000 tokens are refused by a server that holds less and says no number."""
    run_id = long_conversation(turns, server, 16)
    server.says(NOTES, Said(text="all counted"))
    server.faults(*[small(20_000, said, code)] * 9)
    turns.finish(run_id)

    view = turns.store.views.load_run(run_id)
    assert (view.status, view.output) == (RunStatus.COMPLETED, "all counted"), view.error
    assert server.refusals == []
    check(turns.store)


def test_what_was_learned_goes_on_with_the_run_to_another_worker(store: Store, server: StrictServer) -> None:
    """The next worker compacts before it is refused."""
    one, other = (Turns.over(store, server.base_url) for _ in range(2))
    run_id = long_conversation(one, server, 16)
    server.says(NOTES)
    server.faults(*[small(20_000)] * 2)
    one.step(run_id)
    learned = one.memory(run_id)["window"]
    assert 1_024 <= learned < 30_000

    server.says(*(Said(calls=(ToolUse(id=f"more_{n}", name="todo"),)) for n in range(12)))
    for _ in range(12):
        while isinstance(store.due(run_id)[0], Iterate):
            other.step(run_id)
        store.settle(run_id, text=BIG)
    assert max(len(json.dumps(sent)) // 4 for sent in server.accepted[18:]) < learned
    assert store.event_names(run_id).count("session.compress") >= 2


@pytest.mark.parametrize("said", [WORDLESS, "request entity too large"])
def test_what_cannot_be_compacted_goes_to_the_next_provider(store: Store, server: StrictServer, said: str) -> None:
    with StrictServer() as larger:
        larger.says(Said(text="no trouble at all"))
        fallback = ModelChoice(base_url=larger.base_url, api_key="k", model="larger", api_mode="chat_completions")
        turns = Turns.over(store, server.base_url, fallbacks=(fallback,))
        server.faults(*[status(413 if "entity" in said else 400, said)] * 9)
        run_id = turns.submit()
        turns.finish(run_id)

        assert store.views.load_run(run_id).output == "no trouble at all"
        assert [len(asked.accepted) for asked in (server, larger)] == [1, 1]


def test_with_compaction_off_an_overflow_goes_to_the_next_provider(store: Store, server: StrictServer) -> None:
    with StrictServer() as larger:
        larger.says(Said(text="no trouble at all"))
        fallback = ModelChoice(base_url=larger.base_url, api_key="k", model="larger", api_mode="chat_completions")
        options = ModelOptions(compacts=False)
        turns = Turns.over(store, server.base_url, fallbacks=(fallback,), options=options)
        server.faults(status(400, WORDLESS))
        run_id = turns.submit()
        turns.finish(run_id)

        assert store.views.load_run(run_id).output == "no trouble at all"


# ------------------------------------------------------------------------------------------------- servers that tell


def test_a_server_is_asked_for_its_window_after_a_refusal_and_with_the_same_key(
    store: Store, server: StrictServer
) -> None:
    server.answers = {"GET /v1/models": {"data": [{"id": "strict", "max_model_len": 16_384}]}}
    turns = Turns.over(store, server.base_url)
    run_id = long_conversation(turns, server, 16)
    assert not any(request.head.startswith("GET") for request in server.requests), "nobody asks before a call"
    server.says(NOTES, Said(text="all counted"))
    server.faults(status(400, WORDLESS))
    turns.step(run_id)

    (question,) = [request for request in server.requests if request.head.startswith("GET")]
    assert question.header("Authorization") == f"Bearer {KEY}"
    assert turns.memory(run_id)["window"] == 16_384
    turns.finish(run_id)
    assert store.views.load_run(run_id).output == "all counted"


def test_a_window_that_was_told_is_known_to_the_next_turn(store: Store, server: StrictServer) -> None:
    server.answers = {"GET /props": {"default_generation_settings": {"n_ctx": 16_384}}}
    turns = Turns.over(store, server.base_url)
    route = turns.parts.models.chain.resolve_route("strict", 0)
    assert route.window is not None
    assert (route.window.known_tokens, route.window.request_window(AbortSignal()), route.window.known_tokens) == (
        None,
        16_384,
        16_384,
    )
    asked_once = len(server.requests)
    assert route.window.request_window(AbortSignal()) == 16_384
    assert len(server.requests) == asked_once, "an answer is kept"

    run_id = long_conversation(turns, server, 9)
    assert "session.compress" in store.event_names(run_id), "and the conversation compacted before it is refused"


def test_a_server_that_cuts_silently_is_asked_aside(store: Store, server: StrictServer) -> None:
    """Ollama drops the beginning of what is too long; nobody would ever be refused."""
    server.answers = {"GET /api/ps": {"models": [{"name": "strict", "context_length": 8_192}]}}
    turns = Turns.over(store, server.base_url, provider="ollama")
    long_conversation(turns, server, 3)
    route = turns.parts.models.chain.resolve_route("strict", 0)
    assert route.window is not None
    until = time.monotonic() + PATIENCE_S
    while route.window.known_tokens is None and time.monotonic() < until:
        time.sleep(0.01)
    assert route.window.known_tokens == 8_192


def test_a_configured_window_is_not_asked_for(store: Store, server: StrictServer) -> None:
    turns = Turns.over(store, server.base_url, provider="ollama", options=ModelOptions(window=100_000))
    run_id = long_conversation(turns, server, 16)
    server.says(NOTES, Said(text="all counted"))
    server.faults(status(400, WORDLESS))
    turns.finish(run_id)

    assert not any(request.head.startswith("GET") for request in server.requests)


def served(base_url: str, **changes: object) -> ServedWindow:
    endpoint = Endpoint(base_url=base_url, api_key="k", **changes)  # type: ignore[arg-type]
    return ServedWindow(
        endpoint=endpoint,
        model="m",
        wire=Wire.CHAT_COMPLETIONS,
        is_own_server=True,
        answers=WindowAnswers(),
    )


def test_a_server_that_does_not_answer_is_given_up_on_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "TIME_MAX_S", 0.3)
    with FaultServer(lambda _, reply: reply.block()) as server:
        assert served(server.base_url).request_window(AbortSignal()) is None


def test_an_abort_ends_the_questions_and_nothing_is_concluded() -> None:
    abort = AbortSignal()

    def never(_: Received, reply: Reply) -> None:
        abort.set("stop")
        reply.block()

    with FaultServer(never) as server:
        window = served(server.base_url)
        assert window.request_window(abort) is None
        assert window.answers.find_fresh((window.endpoint.plain_url, "m")) == (False, None)


@pytest.mark.parametrize("answer", [b"<html>", b"[" * 100_000, b'{"data": 7}', b"\xff"])
def test_answers_that_make_no_sense_are_no_window(answer: bytes) -> None:
    with FaultServer(lambda _, reply: reply.document(200, answer)) as server:
        assert served(server.base_url).request_window(AbortSignal()) is None


def test_a_redirect_is_not_followed_with_the_key() -> None:
    with FaultServer(
        lambda _, reply: reply.document(200, {"data": [{"id": "m", "max_model_len": 4_096}]})
    ) as elsewhere:
        target = f"Location: {elsewhere.base_url}/models"
        with FaultServer(lambda _, reply: reply.document(302, b"", target)) as server:
            assert served(server.base_url).request_window(AbortSignal()) is None
        assert elsewhere.requests == []


@pytest.mark.parametrize(
    ("stated", "is_own_server", "known"), [(131_072, False, 131_072), (131_072, True, None), (1_000_000, False, None)]
)
def test_a_stated_window_counts_where_it_is_smaller_than_usual_until_the_server_tells(
    stated: int, is_own_server: bool, known: int | None
) -> None:
    window = ServedWindow(
        endpoint=Endpoint(base_url="http://127.0.0.1/v1"),
        model="m",
        wire=Wire.CHAT_COMPLETIONS,
        is_own_server=is_own_server,
        answers=WindowAnswers(),
        stated=stated,
    )
    assert window.known_tokens == known

    window.note_window(50_000)

    assert window.known_tokens == 50_000
