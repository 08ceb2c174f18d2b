"""What is to go says so: in the document, and in every answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date

import pytest
from serving import KEY
from starlette.testclient import TestClient

from hermes_worker.api.app import create_app
from hermes_worker.api.deprecations import DEPRECATED, Deprecated
from hermes_worker.settings import Settings
from hermes_worker.wiring import open_client

PAGE = "https://example.org/moved"
ENTRIES = (
    Deprecated(method="GET", path="/v1/runs/{run_id}", since=date(2026, 1, 1), until=date(2027, 1, 1), link=PAGE),
    Deprecated(
        method="GET",
        path="/v1/runs",
        parameter="before",
        since=date(2026, 2, 1),
        until=date(2027, 2, 1),
        link=PAGE,
    ),
)
DATES = {"deprecation": "@1767225600", "sunset": "Fri, 01 Jan 2027 00:00:00 GMT"}


@pytest.fixture
def announced(keyed: Settings) -> Iterator[TestClient]:
    yield from _served(keyed, ENTRIES)


def _served(settings: Settings, table: Sequence[Deprecated]) -> Iterator[TestClient]:
    client = open_client(settings)
    app = create_app(client)
    app.state.deprecated = table
    with TestClient(app, headers={"Authorization": f"Bearer {KEY}"}) as http:
        yield http
    client.close()


def test_an_operation_that_goes_says_so_in_each_answer(announced: TestClient) -> None:
    answer = announced.get("/v1/runs/run_0")
    assert answer.status_code == 404
    assert {name: answer.headers[name] for name in DATES} == DATES
    assert answer.headers["link"] == f'<{PAGE}>; rel="deprecation"; type="text/html"'


def test_a_parameter_that_goes_is_told_of_where_it_is_used(announced: TestClient) -> None:
    assert "deprecation" not in announced.get("/v1/runs").headers
    assert "deprecation" not in announced.get("/v1/runs?cursor=before").headers
    assert announced.get("/v1/runs?before=run_0").headers["sunset"] == "Mon, 01 Feb 2027 00:00:00 GMT"
    assert announced.get("/v1/runs?%62efore=run_0").headers["deprecation"] == "@1769904000"


def test_the_document_marks_what_goes_and_nothing_else(announced: TestClient) -> None:
    paths = announced.get("/openapi.json").json()["paths"]
    marked = [
        (method, path)
        for path, operations in paths.items()
        for method in operations
        if operations[method].get("deprecated")
    ]
    assert marked == [("get", "/v1/runs/{run_id}")]
    parameters = [one["name"] for one in paths["/v1/runs"]["get"]["parameters"] if one.get("deprecated")]
    assert parameters == ["before"]


def test_an_entry_about_nothing_and_one_that_goes_too_soon_are_refused(keyed: Settings) -> None:
    dates = {"since": date(2026, 1, 1), "until": date(2027, 1, 1), "link": PAGE}
    for entry in (
        Deprecated(method="GET", path="/v1/nothing", **dates),
        Deprecated(method="GET", path="/v1/runs", parameter="nothing", **dates),
    ):
        for http in _served(keyed, (entry,)):
            with pytest.raises(LookupError, match="nothing"):
                http.app.openapi()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="183 days"):
        Deprecated(method="GET", path="/v1/runs", since=date(2026, 1, 1), until=date(2026, 6, 1), link=PAGE)


def test_the_table_of_this_version_fits_its_document(keyed: Settings) -> None:
    for http in _served(keyed, DEPRECATED):
        assert http.get("/openapi.json").status_code == 200
