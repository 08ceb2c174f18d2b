"""What rows and the workspace say in the prompt of a new session, on both databases."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import sqlalchemy as sa
from support.store import EMPTY, Store, new_run

from hermes_worker.broker.queue import QueueName, build_message
from hermes_worker.core.effects import Iterate, Prepare
from hermes_worker.core.errors import LeaseLost
from hermes_worker.core.prompt_places import AssembledPrompt, PromptPlace, join_sections
from hermes_worker.core.run import RunStatus
from hermes_worker.services import prompt_blocks
from hermes_worker.services.prompt_blocks import BlockFacts, build_block_reader
from hermes_worker.settings import load_settings
from hermes_worker.store.runs.new_runs import insert_runs
from hermes_worker.store.runs.runs import IterationClaim, create_run_id
from hermes_worker.store.sessions import Sessions
from hermes_worker.store.tables import runs, sessions

PROMPT = join_sections(
    [(PromptPlace.IDENTITY, "I am"), (PromptPlace.RUNTIME, "today")], [PromptPlace.SKILLS, PromptPlace.MEMORY]
)
WITH_BOTH = "I am\n\nskills\n\nfacts\n\ntoday"
Blocks = Callable[[sa.engine.Connection], Mapping[PromptPlace, str]]


def said(asked: list[str], blocks: Mapping[PromptPlace, str]) -> Blocks:
    def read(connection: sa.engine.Connection) -> Mapping[PromptPlace, str]:
        asked.append(connection.execute(sa.select(sa.literal("read"))).scalar_one())
        return blocks

    return read


BOTH = {PromptPlace.MEMORY: "facts", PromptPlace.SKILLS: "skills"}


def prompts(store: Store) -> list[str]:
    with store.database.read() as connection:
        return list(connection.execute(sa.select(sessions.c.system_prompt).order_by(sessions.c.pk)).scalars())


def with_prompt(prompt: AssembledPrompt = PROMPT, **more: object) -> dict[str, object]:
    return {"system_prompt": prompt.text, "gaps": prompt.gaps, **more}


@pytest.mark.parametrize("session_id", [None, "a-name"])
def test_rows_are_asked_when_a_session_is_opened_and_never_again(store: Store, session_id: str | None) -> None:
    asked: list[str] = []
    first = store.submit(**with_prompt(blocks=said(asked, BOTH), session_id=session_id))
    store.submit(**with_prompt(blocks=said(asked, {PromptPlace.MEMORY: "other"}), session_id=first.session_id))
    assert (asked, prompts(store)) == (["read"], [WITH_BOTH])


def test_a_session_about_which_nobody_says_anything_keeps_its_prompt(store: Store) -> None:
    store.submit(**with_prompt(blocks=said([], {})))
    assert prompts(store) == [PROMPT.text]


def test_sessions_that_are_opened_together_and_those_without_a_run_are_filled_too(store: Store) -> None:
    asked: list[str] = []
    more = with_prompt(blocks=said(asked, BOTH))
    with store.database.write() as connection:
        insert_runs(connection, [new_run(run_id=create_run_id(), **more) for _ in range(2)])
    Sessions(store.database).open(new_run(session_id="open", source="api", **more), title=None, model=None)
    assert prompts(store) == [WITH_BOTH] * 3
    assert len(asked) == 3


def test_what_cannot_be_stored_is_replaced(store: Store) -> None:
    store.submit(**with_prompt(blocks=said([], {PromptPlace.MEMORY: "a\x00b\ud800"})))
    [prompt] = prompts(store)
    assert "a\ufffdb\ufffd" in prompt


def test_each_reader_fills_its_places(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = BlockFacts(
        tenant="default", principal=None, source="api", settings=load_settings({}), tools=frozenset({"memory"})
    )

    def memory(connection: sa.engine.Connection, facts: BlockFacts, /) -> Mapping[PromptPlace, str]:
        tools = connection.execute(sa.select(sa.literal(" ".join(facts.tools)))).scalar_one()
        return {PromptPlace.MEMORY: f"{facts.tenant} has {tools}", PromptPlace.USER: ""}

    def skills(connection: sa.engine.Connection, facts: BlockFacts, /) -> Mapping[PromptPlace, str]:
        return {PromptPlace.SKILLS: "skills"}

    monkeypatch.setattr(prompt_blocks, "list_readers", lambda: (memory, skills))
    store.submit(**with_prompt(blocks=build_block_reader(facts)))
    assert prompts(store) == ["I am\n\nskills\n\ndefault has memory\n\ntoday"]


# --- what the workspace says -----------------------------------------------------------------------------------------

BARE = join_sections([(PromptPlace.IDENTITY, "I am"), (PromptPlace.RUNTIME, "today")], [PromptPlace.PROJECT])


def unprepared(store: Store, session_id: str | None = None, prompt: AssembledPrompt = BARE, **more: object) -> str:
    return store.submit(**with_prompt(prompt), prepares=True, session_id=session_id, **more).run_id


def preparation(store: Store, run_id: str) -> IterationClaim:
    [effect] = store.due(run_id)
    assert isinstance(effect, Prepare)
    claim = store.runs.claim_preparation(effect, store.owner)
    assert claim is not None
    return claim


def test_a_session_is_prepared_before_its_first_model_call_and_then_asked(store: Store) -> None:
    run_id = unprepared(store)
    assert store.due(run_id) == [Prepare(run_id=run_id, attempt=1)]
    assert store.runs.claim_iteration(Iterate(run_id=run_id, iteration=1, attempt=1), store.owner) is None
    [hint] = store.runs.commit_preparation(preparation(store, run_id), "files")
    assert hint.effect == Iterate(run_id=run_id, iteration=1, attempt=1)
    claim = store.turn(run_id)
    assert store.runs.load_session_context(claim.loaded.session_pk).system_prompt == "I am\n\nfiles\n\ntoday"


def test_later_runs_of_the_session_have_nothing_to_prepare(store: Store) -> None:
    first = unprepared(store, "s")
    store.runs.commit_preparation(preparation(store, first), "files")
    store.answer(first)
    second = store.submit(session_id="s").run_id
    assert store.due(second) == [Iterate(run_id=second, iteration=1, attempt=1)]


def test_a_run_that_waited_for_the_first_leaves_its_bytes_as_they_are(store: Store) -> None:
    first, second = unprepared(store, "s"), unprepared(store, "s")
    store.runs.commit_preparation(preparation(store, first), "files")
    store.answer(first)
    store.runs.commit_preparation(preparation(store, second), "other files")
    assert prompts(store) == ["I am\n\nfiles\n\ntoday"]
    assert isinstance(store.due(second)[0], Iterate)


def test_a_session_whose_first_run_was_stopped_is_prepared_for_the_next(store: Store) -> None:
    first = unprepared(store, "s")
    store.runs.request_stop(first)
    second = store.submit(session_id="s").run_id
    store.runs.commit_preparation(preparation(store, second), "files")
    assert prompts(store) == ["I am\n\nfiles\n\ntoday"]


def test_who_lost_the_claim_writes_nothing_and_another_does_it(store: Store) -> None:
    run_id = unprepared(store)
    worker = store.worker()
    claim = store.runs.claim_preparation(Prepare(run_id=run_id, attempt=1), worker.pk)
    assert claim is not None
    store.workers.retire(worker)
    store.sweep()
    with pytest.raises(LeaseLost):
        store.runs.commit_preparation(claim, "late")
    [effect] = store.due(run_id)
    assert isinstance(effect, Prepare)
    assert effect.attempt == 2
    store.runs.commit_preparation(preparation(store, run_id), "files")
    assert prompts(store) == ["I am\n\nfiles\n\ntoday"]
    with store.database.read() as connection:
        spent = connection.execute(sa.select(runs.c.unknown_attempts, runs.c.input_tokens)).one()
    assert tuple(spent) == (0, 0), "no model was asked, so nothing is booked"


def test_a_lost_message_is_sent_again_to_the_queue_for_tools(store: Store) -> None:
    run_id = unprepared(store)
    store.let_pass(60)
    assert not store.sweep({**EMPTY, "tools": 5}).resent
    store.let_pass(60)
    [hint] = store.sweep({**EMPTY, "model": 5}).hints
    assert hint.effect == Prepare(run_id=run_id, attempt=1)
    assert build_message(hint)[1] is QueueName.TOOLS


def test_a_process_that_looked_too_early_sees_the_whole_prompt(store: Store) -> None:
    run_id = unprepared(store)
    claim = preparation(store, run_id)
    assert store.runs.load_session_context(claim.loaded.session_pk).system_prompt == BARE.text
    store.runs.commit_preparation(claim, "files", {"hint:top": True})
    assert store.runs.load_session_context(claim.loaded.session_pk).system_prompt == "I am\n\nfiles\n\ntoday"
    assert store.calls.load_documents(claim.loaded.session_pk, ["hint:top"]) == {"hint:top": True}


def test_nothing_is_said_about_an_empty_workspace(store: Store) -> None:
    run_id = unprepared(store)
    store.runs.commit_preparation(preparation(store, run_id), "")
    assert prompts(store) == [BARE.text]
    assert isinstance(store.due(run_id)[0], Iterate)


def test_a_run_that_is_stopped_while_it_is_prepared_ends(store: Store) -> None:
    run_id = unprepared(store)
    claim = preparation(store, run_id)
    store.runs.request_stop(run_id)
    store.runs.release_iteration(claim)
    assert store.status(run_id) is RunStatus.CANCELLED
    assert prompts(store) == [BARE.text]


def test_rows_are_said_before_the_files_wherever_they_stand(store: Store) -> None:
    prompt = join_sections(
        [(PromptPlace.IDENTITY, "I am"), (PromptPlace.RUNTIME, "today")],
        [PromptPlace.SKILLS, PromptPlace.PROJECT, PromptPlace.MEMORY],
    )
    run_id = unprepared(store, prompt=prompt, blocks=said([], BOTH))
    store.runs.commit_preparation(preparation(store, run_id), "files")
    assert prompts(store) == ["I am\n\nskills\n\nfiles\n\nfacts\n\ntoday"]


def test_a_fork_is_prepared_when_its_original_was_not(store: Store) -> None:
    its = Sessions(store.database)
    its.open(new_run(session_id="s", source="api", prepares=True, **with_prompt(BARE)), title=None, model=None)
    its.fork("s", name="t")
    run_id = store.submit(session_id="t", source="api").run_id
    store.runs.commit_preparation(preparation(store, run_id), "files")
    assert prompts(store) == [BARE.text, "I am\n\nfiles\n\ntoday"]
