"""The two attacks of arXiv:2603.20625 over each rewind: an action replayed, and a spent permission used again.

A command is run whose effects are counted outside. The conversation is taken back, and the model asks for the effect
once more: with the same bytes, another order of keys, a changed comment or another id. It may get the recorded outcome
or a question to a person; the effect must not happen a second time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.store import Store, new_run, opened, settlement
from support.turns import Turns, change_parts, do_calls

from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.core.forks import ForkMatch, ForkTerms, ForkTools
from hermes_worker.core.inner_calls import InnerCall
from hermes_worker.core.messages import ModelReply, ToolRequest
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.features.forks.rows import NewFork, load_original, open_fork
from hermes_worker.safety.approvals import ApprovalChoice, ApprovalMode
from hermes_worker.store.restore_detection import mark_epoch
from hermes_worker.store.rewinds import Rewind, match_calls_settled_since
from hermes_worker.store.runs.runs import create_run_id
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.runs.workspaces import RunWorkspaces
from hermes_worker.store.sessions import Sessions
from hermes_worker.tasks.calls.approval_rules import ApprovalRules
from hermes_worker.tasks.iteration.planning import plan_calls
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

_OPENING = OpeningOptions(base_env={"PATH": "/usr/local/bin:/usr/bin:/bin"}, hermes_home="")
TOOLS = f"[{','.join(build_default_catalog().render_definitions(('terminal', 'send_message')))}]"


@dataclass
class Bank:
    """A conversation that pays by a command, and the payments as the world outside sees them."""

    store: Store
    turns: Turns
    root: Path

    def begin(self, session: str, text: str, **more: Any) -> str:
        ref = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(self.root)).to_json()
        return self.turns.submit(tools=TOOLS, workspace=ref, session_id=session, source="api", input=text, **more)

    def call(self, run_id: str, arguments: str, call_id: str = "c1") -> None:
        """The model asks for the tool, and a worker does what is due."""
        reply = ModelReply(text="", tool_requests=(ToolRequest(id=call_id, name="terminal", arguments=arguments),))
        reply, planned = plan_calls(reply, self.turns.parts.catalog)
        self.store.runs.commit_reply(self.store.turn(run_id), reply, planned)
        do_calls(self.turns.parts, self.store, run_id)

    def settle(self, run_id: str, choice: ApprovalChoice) -> None:
        Waits(self.store.database).approve(run_id, choice, by="cli:anna")
        do_calls(self.turns.parts, self.store, run_id)

    def count(self) -> int:
        ledger = self.root / "ledger"
        return len(ledger.read_text().splitlines()) if ledger.exists() else 0


@pytest.fixture
def bank(database_url: str, tmp_path: Path) -> Iterator[Bank]:
    with opened(database_url) as store:
        turns = Turns.over(store)
        turns.parts = change_parts(
            turns.parts,
            workspace=lambda ref: open_workspace(WorkspaceRef.from_json(ref), _OPENING),
            waits=Waits(store.database),
            approvals=ApprovalRules(mode=ApprovalMode.MANUAL, timeout_s=600),
        )
        yield Bank(store, turns, tmp_path)


def fork(bank: Bank, _session: str, run_id: str) -> str:
    with bank.store.database.read() as connection:
        original, _ = load_original(connection, run_id)
    fork_id = create_run_id()
    terms = ForkTerms(run_id=run_id, step=0, rows=0, tools=ForkTools.LIVE, match=ForkMatch.STRICT)
    new = NewFork(run_id=fork_id, original=original, has_input=True, terms=terms, prompt=None, title="Again")
    asked = new_run(
        input=[], source="api", run_id=fork_id, session_id=fork_id, open_session=partial(open_fork, new=new)
    )
    return bank.store.runs.create(asked).run_id


def undo(bank: Bank, session: str, _run_id: str) -> str:
    Sessions(bank.store.database).fork(session, name=f"{session}-undone", last=2)
    return bank.begin(f"{session}-undone", "pay")


def undo_everything(bank: Bank, session: str, _run_id: str) -> str:
    Sessions(bank.store.database).fork(session, name=f"{session}-empty", last=0)
    return bank.begin(f"{session}-empty", "pay")


def retry(bank: Bank, session: str, run_id: str) -> str:
    return bank.begin(session, "pay", retry_of=run_id)


def restore_files(bank: Bank, session: str, run_id: str) -> str:
    rewind = Rewind(calls=match_calls_settled_since(0.0), files_note="files are back")
    RunWorkspaces(bank.store.database).record_restore(run_id, "abc", before="def", files=1, rewind=rewind)
    return bank.begin(session, "pay")


Door = Callable[[Bank, str, str], str]
"""Takes a conversation back, whose run it is given, and returns the run that goes on."""
DOORS: tuple[Door, ...] = (fork, undo, undo_everything, retry, restore_files)
VARIANTS = ("same", "keys", "comment", "id", "amount")


def write_arguments(command: str, variant: str, number: int) -> str:
    """The arguments of a call as a model might write them the second time."""
    changed = {"comment": f"{command} # order {number}", "amount": command.replace("pay", "pay now")}
    command = changed.get(variant, command)
    pairs = [("command", command), ("timeout", 20)]
    return json.dumps(dict(reversed(pairs) if variant == "keys" else pairs), indent=1 if variant == "keys" else None)


def attack(bank: Bank, door: Door, seed: int) -> None:
    """Replay an action, and use a permission again, in one conversation."""
    draw = random.Random(seed)
    variant, session = draw.choice(VARIANTS), f"s{seed}-{door.__name__}"
    before = bank.count()
    command = f"echo pay {seed} >> ledger; rm -r none{seed} 2>/dev/null; true"
    bank.store.answer(bank.begin(session, "hello"), ModelReply(text="hi"))
    run_id = bank.begin(session, "pay")
    bank.call(run_id, write_arguments(command, "first", seed))
    bank.settle(run_id, ApprovalChoice.SESSION)
    assert bank.count() == before + 1
    bank.store.answer(run_id, ModelReply(text="paid"))
    again = door(bank, session, run_id)
    bank.call(again, write_arguments(command, variant, seed), call_id=f"call_{seed}" if variant == "id" else "c1")
    assert bank.count() == before + 1, f"seed {seed}, {door.__name__}: the action was replayed ({variant})"
    if bank.store.status(again) is RunStatus.WAITING_FOR_APPROVAL:
        bank.settle(again, ApprovalChoice.DENY)
    else:
        assert "already_done" in bank.store.results(again)[-1]
    # Another command of the kind that was allowed for the conversation that was taken back.
    bank.call(again, write_arguments(f"echo steal >> ledger; rm -r other{seed}", "first", seed))
    assert bank.store.status(again) is RunStatus.WAITING_FOR_APPROVAL, f"seed {seed}: the permission was used again"
    bank.settle(again, ApprovalChoice.DENY)
    assert bank.count() == before + 1
    bank.store.answer(again, ModelReply(text="so be it"))


@pytest.mark.parametrize("door", DOORS)
def test_no_rewind_repeats_an_effect_or_gives_a_permission_again(bank: Bank, door: Door) -> None:
    for seed in (1, 2):
        attack(bank, door, seed)


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_no_rewind_of_a_hundred_repeats_an_effect(bank: Bank, door: Door) -> None:
    for seed in range(100):
        attack(bank, door, seed)


def attack_restored(bank: Bank, seed: int) -> None:
    """Replay an action that only the world knows of, because the database was set back to before it: in the run that
    was at work then, or in the next one of its conversation."""
    draw = random.Random(seed)
    variant, is_at_work, is_unattended = draw.choice(VARIANTS), draw.random() < 0.5, draw.random() < 0.5
    session = f"s{seed}-restored"
    before = bank.count()
    first = bank.begin(session, "clean up")
    bank.call(first, write_arguments(f"rm -r none{seed}", "first", seed))
    bank.settle(first, ApprovalChoice.SESSION)
    bank.store.answer(first, ModelReply(text="done"))
    run_id = bank.begin(session, "pay")
    if not is_at_work:
        bank.store.answer(run_id, ModelReply(text="shall I?"))
    # The backup is made here; the rows of what follows are gone.
    command = f"echo pay {seed} >> ledger"
    (bank.root / "ledger").open("a").write(f"pay {seed}\n")
    mark_epoch(bank.store.database, are_workers_gone=True)

    again = run_id if is_at_work else bank.begin(session, "pay")
    bank.call(again, write_arguments(command, variant, seed), call_id=f"call_{seed}" if variant == "id" else "c1")
    assert bank.store.status(again) is RunStatus.WAITING_FOR_APPROVAL, f"seed {seed}: the action was replayed"
    [asked] = Waits(bank.store.database).list_open(run_id=again)
    assert "set back" in asked.request["description"]
    if is_unattended:
        bank.store.let_pass(700.0)
        bank.store.sweep()
        assert "set back" in bank.store.results(again)[-1], "the model is told why"
    else:
        bank.settle(again, ApprovalChoice.DENY)
    # A command that was allowed for the conversation. Nobody is waited for twice.
    bank.call(again, write_arguments(f"echo steal >> ledger; rm -r other{seed}", "first", seed))
    if not is_unattended:
        assert bank.store.status(again) is RunStatus.WAITING_FOR_APPROVAL, f"seed {seed}: the permission was used again"
        bank.settle(again, ApprovalChoice.DENY)
    assert "set back" in str(bank.store.bodies(again))
    assert bank.count() == before + 1
    bank.store.answer(again, ModelReply(text="so be it"))


def test_a_restored_database_repeats_no_effect_and_gives_no_permission_again(bank: Bank) -> None:
    for seed in range(6):
        attack_restored(bank, seed)


@pytest.mark.slow
def test_no_restore_of_a_hundred_repeats_an_effect(bank: Bank) -> None:
    for seed in range(100):
        attack_restored(bank, seed)


def test_a_restore_is_in_doubt_for_one_run_of_a_conversation_and_a_person_can_end_it(bank: Bank) -> None:
    bank.store.answer(bank.begin("s", "hello"), ModelReply(text="hi"))
    bank.store.answer(bank.begin("other", "hello"), ModelReply(text="hi"))
    mark_epoch(bank.store.database, are_workers_gone=True)
    run_id = bank.begin("s", "pay twice")
    for number in range(2):
        bank.call(run_id, write_arguments(f"echo pay {number} >> ledger", "first", number))
        if number == 0:
            bank.settle(run_id, ApprovalChoice.SESSION)
    assert bank.count() == 2
    bank.store.answer(run_id, ModelReply(text="paid"))
    bank.store.answer(bank.begin("other", "and?"), ModelReply(text="nothing"))
    for session in ("other", "new"):
        bank.call(bank.begin(session, "pay"), write_arguments("echo pay >> ledger", "first", 3))
    assert bank.count() == 4


def test_where_nothing_was_at_work_since_the_backup_a_restored_database_asks_for_nothing(bank: Bank) -> None:
    run_id = bank.begin("s", "pay")
    mark_epoch(bank.store.database, are_workers_gone=True, may_have_worked=False)
    bank.call(run_id, write_arguments("echo pay >> ledger", "first", 0))
    assert bank.count() == 1


def test_a_question_of_before_the_backup_says_that_it_may_have_been_answered_since(bank: Bank) -> None:
    run_id = bank.begin("s", "clean up")
    bank.call(run_id, write_arguments("rm -r none", "first", 0))
    mark_epoch(bank.store.database, are_workers_gone=True)
    [asked] = Waits(bank.store.database).list_open(run_id=run_id)
    assert "may have been allowed and done since" in asked.request["description"]


def test_an_offered_outcome_is_offered_once_and_a_person_can_have_it_done_again(bank: Bank) -> None:
    bank.store.answer(bank.begin("s", "hello"), ModelReply(text="hi"))
    run_id = bank.begin("s", "pay")
    arguments = write_arguments("echo pay >> ledger", "first", 0)
    bank.call(run_id, arguments)
    bank.store.answer(run_id, ModelReply(text="paid"))
    again = undo(bank, "s", run_id)
    bank.call(again, arguments)
    assert "already_done" in bank.store.results(again)[-1]
    bank.call(again, arguments)
    [asked] = Waits(bank.store.database).list_open(run_id=again)
    assert "was taken back" in asked.request["description"]
    assert asked.choices == ("once", "session", "deny")
    bank.settle(again, ApprovalChoice.SESSION)
    assert bank.count() == 2
    bank.call(again, write_arguments("echo pay >> ledger", "comment", 1))
    assert bank.count() == 3


def test_a_script_does_not_get_round_the_question(bank: Bank) -> None:
    """The rewound part holds a call by a script, and the model makes the same call without one."""
    run_id = bank.store.with_tools(Replay.ONCE, session_id="s", source="api")
    claim = bank.store.call(run_id)
    bank.store.calls.record_inner_calls(claim, [InnerCall(tool="terminal", about="{}", has_ended=True)])
    bank.store.calls.settle(claim, settlement("done"))
    bank.store.answer(run_id, ModelReply(text="done"))
    Sessions(bank.store.database).fork("s", name="f", last=0)
    again = bank.begin("f", "pay")
    reply = ModelReply(
        text="", tool_requests=(ToolRequest(id="c", name="terminal", arguments='{"command":"echo pay >> ledger"}'),)
    )
    reply, planned = plan_calls(reply, bank.turns.parts.catalog)
    bank.store.runs.commit_reply(bank.store.turn(again), reply, planned)
    do_calls(bank.turns.parts, bank.store, again)
    assert bank.store.status(again) is not RunStatus.COMPLETED
    assert bank.count() == 0


def test_after_an_undo_a_command_that_only_reads_runs_again_and_asks_nobody(bank: Bank) -> None:
    bank.store.answer(bank.begin("s", "hello"), ModelReply(text="hi"))
    run_id = bank.begin("s", "pay")
    bank.call(run_id, '{"command":"ls"}')
    bank.call(run_id, '{"command":"echo pay >> ledger"}')
    bank.store.answer(run_id, ModelReply(text="paid"))
    again = undo(bank, "s", run_id)
    for command in ("ls", "cat ledger | wc -l"):
        bank.call(again, json.dumps({"command": command}))
        assert Waits(bank.store.database).list_open(run_id=again) == []
        assert "already_done" not in bank.store.results(again)[-1]
    bank.call(again, '{"command":"echo more >> ledger"}')
    assert bank.store.status(again) is RunStatus.WAITING_FOR_APPROVAL
    assert bank.count() == 1


def test_where_variables_were_exported_a_command_may_be_another_one(bank: Bank) -> None:
    run_id = bank.begin("s", "pay")
    bank.call(run_id, '{"command":"export PATH=$PWD:$PATH"}')
    bank.call(run_id, '{"command":"echo pay >> ledger"}')
    bank.store.answer(run_id, ModelReply(text="paid"))
    again = retry(bank, "s", run_id)
    bank.call(again, '{"command":"cat ledger"}')
    assert bank.store.status(again) is RunStatus.WAITING_FOR_APPROVAL


def test_after_an_undo_of_a_turn_that_only_read_nothing_is_asked(bank: Bank) -> None:
    bank.store.answer(bank.begin("s", "hello"), ModelReply(text="hi"))
    run_id = bank.begin("s", "look")
    bank.call(run_id, '{"command":"ls"}')
    bank.store.answer(run_id, ModelReply(text="nothing here"))
    again = undo(bank, "s", run_id)
    bank.call(again, '{"command":"echo pay >> ledger"}')
    assert bank.count() == 1
