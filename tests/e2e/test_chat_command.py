"""``hermes-worker chat`` in a pipe: a real server, real workers, the scripted model, and only the HTTP API between."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest
from support.commandline import CommandLine, Running, call, script
from support.cutting import CuttingProxy

from hermes_worker.client import HermesClient
from hermes_worker.local.paths import find_running_stack

pytestmark = pytest.mark.e2e
Shared = tuple[CommandLine, Running]
ANSWER = "# Result\n\nIt *works*, see [here](https://example.org/x)."


def api_of(up: Running) -> str:
    return up.wait_for_line(r"API +(http://\S+)")[1]


def sessions_of_chats(hermes: CommandLine, count: int) -> list[str]:
    """Of the newest chats, the newest first."""
    note = find_running_stack(hermes.home)
    assert note is not None and note.api_url is not None
    with HermesClient(note.api_url, home=hermes.home, user="somebody") as client:  # a name is told at the machine alone
        return [run["session_id"] for run in islice(client.runs(tag="chat"), count)]


def test_the_answer_and_nothing_else_goes_into_a_pipe(shared: Shared) -> None:
    hermes, _ = shared
    asked = hermes("chat", "-q", script({"text": "I look."} | call("terminal", command="echo seen"), final=ANSWER))
    assert (asked.code, asked.out, asked.err) == (0, f"{ANSWER}\n", "")


def test_what_is_piped_in_is_asked_with_the_question(shared: Shared) -> None:
    hermes, _ = shared
    asked = hermes("chat", "-q", "Review this:", stdin=script(final="Reviewed."))
    assert (asked.code, asked.out) == (0, "Reviewed.\n")
    alone = hermes("chat", stdin=script(final="Alone."))
    assert (alone.code, alone.out) == (0, "Alone.\n")


def test_a_run_that_fails_is_exit_code_1_and_says_why(shared: Shared) -> None:
    hermes, _ = shared
    failing = {"error": {"status": 401, "message": "no\x1b[2J key", "times": None}}
    asked = hermes("chat", "-q", script(failing))
    assert asked.code == 1
    assert asked.out == ""
    assert "hermes-worker: " in asked.err and "\x1b" not in asked.err


def test_a_conversation_is_gone_on_with(shared: Shared) -> None:
    hermes, _ = shared
    first = hermes("chat", "-q", script(final="The first."))
    assert first.code == 0, first.err
    again = hermes("chat", "--continue", "-q", script(final="The second."))
    assert (again.code, again.out) == (0, "The second.\n")
    named = hermes("chat", "--session", "a-chat-of-mine", "-q", script(final="Elsewhere."))
    assert (named.code, named.out) == (0, "Elsewhere.\n")
    newest, second, first_of_all = sessions_of_chats(hermes, 3)
    assert second == first_of_all != newest == "a-chat-of-mine"
    assert (hermes.home / "chat" / "sessions.json").stat().st_mode & 0o777 == 0o600


def test_the_agent_works_in_the_directory_that_is_named(shared: Shared, tmp_path: Path) -> None:
    hermes, _ = shared
    (tmp_path / "notes.txt").write_text("from the project")
    reads = script(call("terminal", command="cat notes.txt > seen.txt"), final="Read.")
    asked = hermes("chat", "--workspace", str(tmp_path), "-q", reads)
    assert (asked.code, asked.out) == (0, "Read.\n"), asked.err
    assert (tmp_path / "seen.txt").read_text() == "from the project"


@pytest.mark.parametrize(
    ("arguments", "stdin", "said"),
    [
        (["-q", " "], "", "--query is empty"),
        ([], "", "standard input is empty"),
        (["-q", "x", "--session", "a", "--continue"], "", "give one of them"),
    ],
)
def test_what_cannot_be_asked_is_exit_code_2(shared: Shared, arguments: Sequence[str], stdin: str, said: str) -> None:
    hermes, _ = shared
    asked = hermes.inline("chat", *arguments, stdin=stdin)
    assert (asked.code, said in asked.err) == (2, True), asked.err


def test_without_a_server_it_says_what_to_start(hermes: CommandLine) -> None:
    asked = hermes.inline("chat", "-q", "hello")
    assert asked.code == 2
    assert "start 'hermes-worker up" in asked.err


def test_a_stream_that_breaks_again_and_again_is_shown_once(shared: Shared, tmp_path: Path) -> None:
    hermes, up = shared
    port = int(api_of(up).rpartition(":")[2])
    text = "\n\n".join(f"Paragraph {number} of the answer." for number in range(60))
    prompt = script({"text": text} | call("terminal", command="true"), final=text, chunks=60, chunk_gap_s=0.02)
    with CuttingProxy(port, lambda n: None if n == 0 else 900 * n) as proxy:
        elsewhere = CommandLine(
            tmp_path / "laptop",
            {"HERMES_SERVER_URL": proxy.url, "HERMES_SERVER_KEY_FILE": str(hermes.home / "api.key")},
        )
        asked = elsewhere("chat", "-q", prompt)
        assert (asked.code, asked.out) == (0, f"{text}\n"), asked.err
        assert proxy.cuts >= 2


def test_a_chat_asks_the_api_and_loads_no_database() -> None:
    names = ("command", "talk", "painting", "prompting", "remembered")
    loads = "".join(f"import hermes_worker.cli.chat.{name}\n" for name in names)
    heavy = ("sqlalchemy", "redis", "celery", "prompt_toolkit")
    code = f"import sys\n{loads}found = set({heavy}) & set(sys.modules)\nassert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
