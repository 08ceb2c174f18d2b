"""A home that was restored or moved: every session finds its files, and not one byte elsewhere changes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.commandline import CommandLine, call, script, wait_for

from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.sealing import select_stored_text
from hermes_worker.store.tables import messages, sessions

pytestmark = pytest.mark.e2e

Tree = dict[str, tuple[bytes, int]]


def tree(folder: Path) -> Tree:
    """Every file below a folder: what it holds, and when it was changed."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def submitted(hermes: CommandLine, prompt: str, *options: str) -> str:
    """The id of a run that ended well."""
    done = hermes.inline("submit", prompt, "--watch", *options)
    assert done.code == 0, done.said
    return str(done.out.split()[0])


def resumed(hermes: CommandLine, run_id: str, prompt: str) -> str:
    done = hermes.inline("sessions", "resume", run_id, prompt, "--detach")
    assert done.code == 0, done.said
    return done.said


def resumed_run(hermes: CommandLine, run_id: str, prompt: str, *, is_in_doubt: bool = False) -> str:
    """The id of the next run of a session, when it has ended."""
    found = re.search(r"run_[0-9a-f]{32}", resumed(hermes, run_id, prompt))
    assert found is not None
    next_run = found[0]
    if is_in_doubt:
        allow_once_in_doubt(hermes, next_run)
    wait_for(lambda: hermes.run_of(next_run)["status"] == "completed")
    return next_run


def allow_once_in_doubt(hermes: CommandLine, run_id: str) -> None:
    """A person allows, for the rest of the conversation, what may have been done after the backup already."""

    def find_question() -> dict[str, Any] | None:
        listed = hermes.inline("approvals", "list", "--json").out.splitlines()
        return next((each for each in map(json.loads, listed) if each["run_id"] == run_id), None)

    asked = wait_for(find_question, saying="for a question")
    assert "was set back" in asked["description"]
    answered = hermes.inline("approvals", "answer", str(asked["id"]), "session")
    assert answered.code == 0, answered.said


def rows(url: str, run_id: str) -> tuple[str, str, list[str]]:
    """The prompt, the stored place and the transcript of a session."""
    database = Database(url)
    try:
        with database.read() as connection:
            this = sa.select(sessions.c.pk, sessions.c.system_prompt, select_stored_text(sessions.c.workspace))
            pk, prompt, place = connection.execute(this.where(sessions.c.session_id == run_id)).one()
            texts = sa.select(messages.c.body).where(messages.c.session_pk == pk, messages.c.body.is_not(None))
            return (
                prompt,
                str(place),
                [str(text) for text in connection.execute(texts.order_by(messages.c.seq)).scalars()],
            )
    finally:
        database.close()


BEGIN = script(call("terminal", command='mkdir out && export OUT="$PWD/out" && echo one >> "$OUT/log" && cd out'))
GO_ON = script(
    call("terminal", command='pwd && cat "$OUT/log" && echo two >> "$OUT/log"'),
    call("write_file", path="beside", content="x"),
)
APPEND = script(*[call("terminal", command=f"echo {number} >> effects; sleep 0.3") for number in range(40)])


def test_a_restored_copy_works_in_its_own_folders_and_has_no_outside(hermes: CommandLine, tmp_path: Path) -> None:
    old, new, project = hermes.home, tmp_path / "new", tmp_path / "project"
    project.mkdir()
    with hermes.up():
        ended = submitted(hermes, BEGIN)
        outside = submitted(hermes, script(call("terminal", command="echo one >> log")), "--workspace", str(project))
        at_work = hermes.inline("submit", APPEND, "--deliver", "local").out.split()[0]
        effects = old / "workspaces" / at_work / "effects"
        wait_for(lambda: effects.exists() and effects.read_text().count("\n") >= 3)
        made = hermes.inline(
            "cron", "create", "every 1m", script(final="Fired."), "--name", "job", "--deliver", "local"
        )
        assert made.code == 0, made.said
        assert hermes.inline("data", "backup", str(tmp_path / "home.tar")).code == 0
    was, were = tree(old / "workspaces"), tree(project)
    prompt, place, _ = rows(f"sqlite:///{old}/hermes-worker.db", ended)
    assert json.loads(place)["root"] == f"{old}/./workspaces/{ended}"

    copy = CommandLine(new, {"HERMES_APPROVALS_TIMEOUT_S": "600"})
    restored = copy("data", "restore", str(tmp_path / "home.tar"))
    assert restored.code == 0, restored.said
    assert "this is a copy: it delivers nothing" in restored.err and "--original-gone" in restored.err
    with copy.up() as running:
        assert "This is a restored copy" in running.output
        assert "copy   it delivers nothing" in copy.inline("status").out
        assert "--original-gone" in copy.inline("doctor").out
        allow_once_in_doubt(copy, at_work)
        wait_for(lambda: copy.run_of(at_work)["status"] == "completed")
        assert copy.inline("cron", "run", "job").code == 0
        resumed_run(copy, ended, GO_ON, is_in_doubt=True)
        assert (new / "workspaces" / ended / "out" / "log").read_text() == "one\ntwo\n"
        assert (new / "workspaces" / ended / "out" / "beside").read_text() == "x"
        assert (new / "workspaces" / at_work / "effects").read_text().count("\n") >= 35
        refused = resumed_run(copy, outside, script(call("terminal", command="echo two >> log")))
        assert refused and "this is a restored copy" in str(rows(f"sqlite:///{new}/hermes-worker.db", outside)[2])
        assert not list((new / "cron" / "output").glob("*/*.md"))
        assert (tree(old / "workspaces"), tree(project)) == (was, were)

        gone = copy.inline("data", "restore", "--original-gone")
        assert (gone.code, gone.out.split(":")[0]) == (0, "no copy any more")
        wait_for(lambda: len(list((new / "cron" / "output").glob("*/*.md"))) >= 2, saying="for the answers")
        resumed_run(copy, outside, script(call("terminal", command="echo two >> log")))
        assert (project / "log").read_text() == "one\ntwo\n"
        assert "copy " not in copy.inline("status").out
    again, _, texts = rows(f"sqlite:///{new}/hermes-worker.db", ended)
    assert again == prompt
    assert [text.count(f"in the directory {new}/workspaces/{ended};") for text in texts if "was moved" in text] == [1]
    assert tree(old / "workspaces") == was


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_home_may_be_moved_and_mounted_elsewhere(
    kind: str, hermes: CommandLine, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """On a server the database stays, and the home's folder comes back under another path, as in a container."""
    old, new = hermes.home, tmp_path / "mnt" / "other place"
    extra = {} if kind == "sqlite" else {"HERMES_DATABASE_URL": str(request.getfixturevalue("postgres_url"))}
    hermes.environ.update(extra)
    with hermes.up():
        ended = submitted(hermes, BEGIN)
        [before] = [json.loads(line) for line in hermes.inline("runs", "checkpoints", ended, "--json").out.splitlines()]
    new.parent.mkdir()
    old.rename(new)
    moved = CommandLine(new, extra)
    url = extra.get("HERMES_DATABASE_URL", f"sqlite:///{new}/hermes-worker.db")
    prompt = rows(url, ended)[0]
    with moved.up() as running:
        assert "restored copy" not in running.output
        resumed_run(moved, ended, GO_ON)
        resumed_run(moved, ended, script(call("read_file", path="log")))
        listed = [json.loads(line) for line in moved.inline("runs", "checkpoints", ended, "--json").out.splitlines()]
        assert before in listed and len(listed) > 1
    assert (new / "workspaces" / ended / "out" / "log").read_text() == "one\ntwo\n"
    assert not old.exists()
    again, _, texts = rows(url, ended)
    assert again == prompt
    assert len([text for text in texts if f"in the directory {new}/workspaces/{ended};" in text]) == 1
