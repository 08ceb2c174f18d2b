"""Sessions are named to erasures, exports and holds as lists show them, and what names nothing is an error."""

from __future__ import annotations

import json

import httpx
import pytest
from remote_lines import local_line
from serving import Served
from support.commandline import CommandLine
from support.store import Store
from test_control import waiting

from hermes_worker.core.principals import USER_HEADER
from hermes_worker.store.configurations import Configurations

SECRET = "the word is canary"


@pytest.fixture
def hermes(api: Served) -> CommandLine:
    return local_line(api)


def ended(store: Store, source: str, name: str | None = None) -> str:
    run_id = store.submit(source=source, session_id=name, input=SECRET).run_id
    store.answer(run_id)
    return run_id


def shown_ids(hermes: CommandLine, http: httpx.Client) -> set[str]:
    """What the lists of the command line and of the API call sessions."""
    line = [json.loads(each)["id"] for each in hermes.inline("sessions", "list", "--json").out.splitlines()]
    listed = [each["id"] for each in http.get("/api/sessions").json()["data"]]
    runs = [each["session_id"] for each in http.get("/v1/runs").json()["data"]]
    return {*line, *listed, *runs}


SOURCES = [("api", None), ("api", "case-42"), ("cli", "case-42"), ("webhook:chat", "4711"), ("cli", None)]


@pytest.mark.parametrize(("source", "name"), SOURCES)
def test_whatever_a_list_calls_a_session_names_it(
    api: Served, http: httpx.Client, hermes: CommandLine, store: Store, source: str, name: str | None
) -> None:
    run_id = ended(store, source, name)
    words = shown_ids(hermes, http) | ({name} if name else set())
    assert words
    for word in words:
        held = http.post("/v1/holds", json={"reason": "court", "session_id": word})
        assert (held.status_code, held.json().get("session_id")) == (201, run_id), (word, held.text)
        http.delete(f"/v1/holds/{held.json()['number']}").raise_for_status()
        exported = hermes.inline("data", "export", "--session", word)
        assert (exported.code, SECRET in exported.out) == (0, True), (word, exported.err)
        assert SECRET in http.post("/v1/exports", json={"sessions": [word]}).text
        foretold = http.post("/v1/erasures/foretold", json={"sessions": [word]}).json()
        assert foretold["would_erase"]["runs"] == 1
    word = sorted(words)[0]
    erased = hermes.inline("data", "erase", "--session", word, "--yes", "--json")
    assert (erased.code, json.loads(erased.out)["erased"]["runs"]) == (0, 1), erased.err
    assert http.get(f"/v1/runs/{run_id}").status_code == 410


def test_the_beginning_of_an_id_names_a_session_at_the_command_line(hermes: CommandLine, store: Store) -> None:
    run_id = ended(store, "api", "case-42")
    assert hermes.inline("data", "retention", "hold", "--reason", "court", "--session", run_id[:14]).code == 0
    assert SECRET in hermes.inline("data", "export", "--session", run_id[:14]).out


@pytest.mark.parametrize(
    ("given", "field", "told"),
    [
        ({"sessions": ["case-43"]}, "sessions", "there is no session 'case-43' of the tenant 'default'"),
        ({"sessions": ["case-42", "case-43"]}, "sessions", "'hermes-worker sessions list'"),
        ({"named": [["cli", "case-42"]]}, "named", "the name 'case-42' of 'cli'"),
        ({"principals": ["cli:nobody"]}, "principals", "'hermes-worker runs show' says who asked"),
        ({"holders": ["nobody"]}, "holders", "'hermes-worker tenants keys list'"),
        ({"targets": ["telegram:4711"]}, "targets", "'hermes-worker gateway deliveries list'"),
    ],
)
def test_what_names_nothing_is_an_error_and_leaves_no_receipt(
    http: httpx.Client, store: Store, given: dict[str, object], field: str, told: str
) -> None:
    ended(store, "api", "case-42")
    for path, body in (("exports", given), ("erasures/foretold", given), ("erasures", {"whom": given})):
        refused = http.post(f"/v1/{path}", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (404, field)
        assert told in refused.json()["error"]["message"]
        assert "Nothing was exported or erased." in refused.json()["error"]["message"]
    assert http.get("/v1/erasures").json()["data"] == []
    assert http.get("/v1/erasure-receipts").json().get("data", []) == []


def test_the_command_line_says_what_is_wrong_and_fails(hermes: CommandLine, store: Store) -> None:
    run_id = ended(store, "api", "case-42")
    store.answer(second := store.submit(source="api", session_id="case-42").run_id)
    for words in (
        ["data", "erase", "--yes"],
        ["data", "erase"],
        ["data", "export"],
        ["data", "retention", "hold", "--reason", "court"],
    ):
        unknown = hermes.inline(*words, "--session", "case-43")
        assert (unknown.code, unknown.out) == (2, ""), words
        assert "there is no session 'case-43'" in unknown.err
        of_run = hermes.inline(*words, "--session", second)
        assert "is a run, of the session" in of_run.err
    hermes.inline("data", "erase", "--session", run_id, "--yes")
    gone = hermes.inline("data", "erase", "--session", run_id, "--yes")
    assert (gone.code, "was deleted before" in gone.err) == (2, True)


def test_a_name_that_two_sources_gave_must_be_told_apart(http: httpx.Client, store: Store) -> None:
    first, second = ended(store, "webhook:a", "4711"), ended(store, "webhook:b", "4711")
    refused = http.post("/v1/exports", json={"sessions": ["4711"]})
    assert refused.status_code == 404
    assert first in refused.json()["error"]["message"] and second in refused.json()["error"]["message"]
    assert first in http.post("/v1/exports", json={"named": [["webhook:a", "4711"]]}).text


def test_a_word_that_names_nothing_beside_one_that_does_is_told(
    http: httpx.Client, hermes: CommandLine, store: Store
) -> None:
    ended(store, "api", "case-42")
    foretold = http.post("/v1/erasures/foretold", json={"sessions": ["case-42"], "holders": ["nobody"]})
    assert foretold.json()["unknown"] == ["nothing is known by the holder 'nobody'"]
    shown = hermes.inline("data", "erase", "--session", "case-42", "--holder", "nobody")
    assert (shown.code, "nothing is known by the holder 'nobody'" in shown.err) == (0, True)


@pytest.mark.parametrize("headers", [{}, {USER_HEADER: "ann"}])
@pytest.mark.parametrize(("source", "name"), SOURCES)
def test_what_an_object_calls_its_session_every_path_takes(
    http: httpx.Client, store: Store, source: str, name: str | None, headers: dict[str, str]
) -> None:
    run_id = waiting(store, source=source, session_id=name)
    asked = http.get("/v1/approvals", headers=headers).json()["data"][0]
    http.post(f"/v1/runs/{run_id}/approval", json={"choice": "deny", "wait_id": asked["id"]}).raise_for_status()
    shown = {
        asked["session_id"],
        http.get("/v1/approvals/history", headers=headers).json()["data"][0]["session_id"],
        http.get(f"/v1/runs/{run_id}", headers=headers).json()["session_id"],
        http.get(f"/v1/runs/{run_id}/result", headers=headers).json()["session_id"],
        http.get("/api/sessions", headers=headers).json()["data"][0]["id"],
    }
    assert len(shown) == 1
    [word] = shown
    for path in (f"/api/sessions/{word}", f"/v1/sessions/{word}/settings", f"/api/sessions/{word}/messages"):
        assert http.get(path, headers=headers).status_code == 200, path
    said = {"settings": {"agent.max_turns": "5"}}
    assert http.put(f"/v1/sessions/{word}/settings", json=said, headers=headers).json()["settings"] == said["settings"]
    assert Configurations(store.database).require_overrides_of_any(word) == ("default", said["settings"])
