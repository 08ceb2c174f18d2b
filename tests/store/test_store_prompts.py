"""What rows say in the prompt of a new session, on both databases."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import sqlalchemy as sa
from support.store import Store, new_run

from hermes_worker.core.prompt_places import Assembled, PromptPlace, assembled
from hermes_worker.services import prompt_blocks
from hermes_worker.services.prompt_blocks import BlockFacts, blocks_of
from hermes_worker.store.runs.new_runs import insert_runs
from hermes_worker.store.runs.runs import new_run_id
from hermes_worker.store.sessions import Sessions
from hermes_worker.store.tables import sessions

PROMPT = assembled(
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


def with_prompt(prompt: Assembled = PROMPT, **more: object) -> dict[str, object]:
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
        insert_runs(connection, [new_run(run_id=new_run_id(), **more) for _ in range(2)])
    Sessions(store.database).open(new_run(session_id="open", source="api", **more), title=None, model=None)
    assert prompts(store) == [WITH_BOTH] * 3
    assert len(asked) == 3


def test_what_cannot_be_stored_is_replaced(store: Store) -> None:
    store.submit(**with_prompt(blocks=said([], {PromptPlace.MEMORY: "a\x00b\ud800"})))
    [prompt] = prompts(store)
    assert "a\ufffdb\ufffd" in prompt


def test_each_reader_fills_its_places(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = BlockFacts(tenant="default", principal=None, source="api", tools=frozenset({"memory"}))

    def memory(connection: sa.engine.Connection, facts: BlockFacts, /) -> Mapping[PromptPlace, str]:
        tools = connection.execute(sa.select(sa.literal(" ".join(facts.tools)))).scalar_one()
        return {PromptPlace.MEMORY: f"{facts.tenant} has {tools}", PromptPlace.USER: ""}

    def skills(connection: sa.engine.Connection, facts: BlockFacts, /) -> Mapping[PromptPlace, str]:
        return {PromptPlace.SKILLS: "skills"}

    monkeypatch.setattr(prompt_blocks, "READERS", (memory, skills))
    store.submit(**with_prompt(blocks=blocks_of(facts)))
    assert prompts(store) == ["I am\n\nskills\n\ndefault has memory\n\ntoday"]
    monkeypatch.setattr(prompt_blocks, "READERS", ())
    assert blocks_of(facts) is None
