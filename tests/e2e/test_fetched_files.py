"""From a task to its files in somebody else's hands: submitted, gathered, listed, fetched; and back to before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.commandline import CommandLine, Running, call, script, wait_for
from support.patience import PATIENCE_S

pytestmark = pytest.mark.e2e


def test_the_files_of_a_run_are_kept_listed_and_fetched(shared: tuple[CommandLine, Running], tmp_path: Path) -> None:
    hermes, running = shared
    prompt = script(
        call(
            "terminal",
            command="mkdir -p out && printf '1,2\\n' > out/a.csv && printf x > notes.txt && ln -s /etc out/etc",
        ),
        final="Done.",
    )
    submitted = hermes.inline("submit", prompt, "--artifact", "out/**", "--watch")
    assert submitted.code == 0, submitted.out + submitted.err
    run_id = submitted.out.split()[0]

    def gathered() -> dict[str, Any] | None:
        found: dict[str, Any] = json.loads(hermes.inline("runs", "artifacts", run_id, "--json").out)
        return found if found["state"] == "done" else None

    found = wait_for(gathered)
    assert [(file["path"], file["size"], file["media_type"]) for file in found["files"]] == [
        ("out/a.csv", 4, "text/csv")
    ]
    assert found["left_out"] == [{"path": "out/etc", "reason": "it is a link"}]

    fetched = hermes.inline("runs", "artifacts", run_id, "--fetch", str(tmp_path / "results"))
    assert fetched.code == 0, fetched.err
    assert (tmp_path / "results" / "out" / "a.csv").read_text() == "1,2\n"
    again = hermes.inline("runs", "artifacts", run_id, "--fetch", str(tmp_path / "results"))
    assert again.code != 0
    assert "choose an empty directory" in again.err

    url = running.wait_for_line(r"API +(http://127\.0\.0\.1:\d+)")[1]
    key = (Path(hermes.environ["HERMES_HOME"]) / "api.key").read_text().strip()
    answer = httpx.get(
        f"{url}/v1/runs/{run_id}/artifacts", headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_S
    )
    assert answer.status_code == 200, answer.text
    assert httpx.get(url + answer.json()["data"][0]["url"], timeout=PATIENCE_S).text == "1,2\n"

    # What was there before the command wrote: nothing. A restore takes the files away, and undoing it brings them back.
    [before] = map(json.loads, hermes.inline("runs", "checkpoints", run_id, "--json").out.splitlines())
    assert (before["run_id"], before["tool"], before["files"]) == (run_id, "terminal", 0)
    assert "+1,2\n" in hermes.inline("runs", "diff", run_id).out
    undone = hermes.inline("runs", "restore", run_id, before["checkpoint_id"], "--json")
    assert json.loads(undone.out)["removed"] == ["notes.txt", "out/a.csv", "out/etc"]
    again = hermes.inline("runs", "restore", run_id, json.loads(undone.out)["before"], "--json")
    assert json.loads(again.out)["written"] == ["notes.txt", "out/a.csv", "out/etc"]
