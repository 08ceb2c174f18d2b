"""``encryption`` and the line of ``doctor`` over a home."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commandline import CommandLine
from support.store import Store

from hermes_worker.store.engine.sealing import MARK, derive_key_id

CANARY = "tell-nobody-11d2"


@pytest.fixture
def keys(hermes: CommandLine, tmp_path: Path) -> Path:
    file = tmp_path / "text-keys"
    file.write_text(hermes.inline("data", "encryption", "new-key").out)
    hermes.environ["HERMES_ENCRYPTION_KEYS_FILE"] = str(file)
    return file


def line_of_doctor(hermes: CommandLine) -> str:
    said = (json.loads(line) for line in hermes.inline("doctor", "--json").out.splitlines())
    return next(f"{each['grade']}: {each['text']}" for each in said if each["subject"] == "encryption")


def test_a_home_is_encrypted_changes_its_key_and_is_decrypted(hermes: CommandLine, store: Store, keys: Path) -> None:
    run_id = store.submit(input=CANARY).run_id
    store.answer(run_id)
    database = Path(str(store.database.url.database))
    first = keys.read_text().strip()

    before = json.loads(hermes.inline("data", "encryption", "status", "--json").out)
    assert before["left"] > 3 and before["keys"][0] == {
        "key": derive_key_id(first),
        "is_current": True,
        "is_here": True,
        "is_needed": False,
    }
    done = hermes.inline("data", "encryption", "reseal")
    assert (done.code, f"0 left; all others are stored by the key {derive_key_id(first)}" in done.out) == (0, True)
    stored = b"".join(path.read_bytes() for path in database.parent.glob(f"{database.name}*"))
    assert CANARY.encode() not in stored and MARK.encode() in stored
    assert CANARY in hermes.inline("runs", "show", run_id, "--json").out
    assert line_of_doctor(hermes) == f"ok: new texts are encrypted with the key {derive_key_id(first)}"

    second = hermes.inline("data", "encryption", "new-key").out.strip()
    keys.write_text(second)
    refused = hermes.inline("runs", "list")
    assert refused.code == 2 and derive_key_id(first) in refused.err and first not in refused.err + refused.out
    assert line_of_doctor(hermes).startswith("broken: texts in the database are encrypted with the key")
    shown = hermes.inline("data", "encryption", "status").out
    assert f"{derive_key_id(first)}" in shown and "is not here" in shown

    keys.write_text(f"{second}\n{first}")
    done = hermes.inline("data", "encryption", "reseal")
    assert f"keep the key {derive_key_id(first)}" in done.out
    assert line_of_doctor(hermes).startswith(
        f"note: new texts are encrypted with the key {derive_key_id(second)}; others may"
    )

    keys.write_text(f"clear\n{second}\n{first}")
    assert hermes.inline("data", "encryption", "reseal").code == 0
    assert CANARY.encode() in database.read_bytes() and MARK.encode() not in database.read_bytes()
