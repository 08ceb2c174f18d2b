"""``runs export``: what runs left, for programs and for training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.store import Store, opened

from hermes_worker.cli.entry import main
from hermes_worker.core.errors import Failure
from hermes_worker.core.events import ModelFailed
from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import ExitReason

SECRET = "sk-proj-" + "a1B2c3D4" * 5


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    monkeypatch.setenv("HERMES_DATABASE_URL", f"sqlite:///{tmp_path / 'store.db'}")
    with opened(f"sqlite:///{tmp_path / 'store.db'}") as opened_store:
        yield opened_store


def export(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["runs", "export", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def finished(store: Store) -> str:
    run_id = store.with_tools(Replay.PURE)
    store.settle(run_id, text=f'{{"found": "{SECRET}"}}')
    store.answer(run_id, ModelReply(text="done", reasoning="thought", usage=Usage(input=3, output=2, cache_read=1)))
    return run_id


def test_a_result_is_one_line_under_the_references_names(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    assert export(finished(store)) == 0

    [line] = capfd.readouterr().out.splitlines()
    result = json.loads(line)
    assert (result["final_response"], result["completed"], result["last_reasoning"]) == ("done", True, "thought")
    assert result["prompt_tokens"] == result["input_tokens"] + result["cache_read_tokens"]


def test_trajectories_are_appended_by_how_the_run_ended(store: Store, tmp_path: Path) -> None:
    good = finished(store)
    bad = store.submit().run_id
    failure = ModelFailed(failure=Failure(kind="auth", message="no"), exit_reason=ExitReason.MODEL_CALL_REFUSED)
    store.runs.commit_failure(store.turn(bad), failure)

    assert export("--trajectories", str(tmp_path / "samples"), good, bad) == 0
    assert export("--trajectories", str(tmp_path / "samples"), good) == 0

    lines = (tmp_path / "samples" / "trajectory_samples.jsonl").read_text().splitlines()
    assert len(lines) == 2
    sample = json.loads(lines[0])
    assert set(sample) == {"conversations", "timestamp", "model", "completed"}
    assert [turn["from"] for turn in sample["conversations"]] == ["system", "human", "gpt", "tool", "gpt"]
    assert SECRET not in lines[0]
    [failed] = (tmp_path / "samples" / "failed_trajectories.jsonl").read_text().splitlines()
    assert json.loads(failed)["completed"] is False


def test_a_run_that_is_not_there_writes_nothing(
    store: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert export("--trajectories", str(tmp_path / "samples"), finished(store), "run_none") == 2
    assert not (tmp_path / "samples").exists()
    assert "run_none" in capfd.readouterr().err
