"""A script under real workers: the one that runs it is killed in the middle, and nothing of it is done again."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.commandline import CommandLine, call, script, wait_for

pytestmark = pytest.mark.e2e

SCRIPT = """
from hermes_tools import write_file, terminal
write_file('first', 'made by the script')
terminal('echo once >> second; touch begun; sleep 600; echo twice >> second')
write_file('third', 'never')
"""


def test_a_script_whose_worker_is_killed_is_not_run_again(hermes: CommandLine, project: Path) -> None:
    hermes.environ["HERMES_APPROVALS_MODE"] = "off"
    prompt = script(call("execute_code", code=SCRIPT), final="It was cut short.")
    with hermes.up() as up:
        submitted = hermes.inline("submit", prompt, "--workspace", str(project))
        run_id = next(word for word in submitted.out.split() if word.startswith("run_"))
        wait_for(lambda: (project / "begun").exists() or None, saying=up.output)
        up.child("tools").send_signal(signal.SIGKILL)
        # The text that is shown of a run begins with what was asked, which holds the answer.
        wait_for(lambda: hermes.run_of(run_id)["status"] == "completed" or None, saying=up.output)
        assert hermes.run_of(run_id)["output"] == "It was cut short."
        [said] = [text for text in results(hermes) if "outcome_unknown" in text]
    first, second = json.loads(said)["begun_by_the_script"]
    assert first.startswith("write_file") and first.endswith("(it had ended)")
    assert second.startswith("terminal") and second.endswith("(nobody saw its end)")
    assert (project / "second").read_text() == "once\n"
    assert not (project / "third").exists()
    assert not up.survivors()


def results(hermes: CommandLine) -> list[str]:
    """What the tools said."""
    with closing(sqlite3.connect(f"file:{hermes.home / 'hermes-worker.db'}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "select coalesce(m.body, b.body) from messages m left join blobs b on b.hash = m.blob_hash"
        )
        bodies = [json.loads(body) for (body,) in rows]
    return [str(body.get("content")) for body in bodies if body.get("role") == "tool"]
