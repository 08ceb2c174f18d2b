"""Artifacts over HTTP: a list for who holds a key, and each file for who holds its signed address, for a while."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from serving import PATIENCE_S, Served
from support.store import Store

from hermes_worker.api.app import SECURITY_HEADERS
from hermes_worker.client import HermesClient
from hermes_worker.core.effects import GatherArtifacts
from hermes_worker.core.errors import UnavailableError
from hermes_worker.features.artifacts.rules import find_media_type
from hermes_worker.settings import Secret, Settings
from hermes_worker.store.access.principals import KeyScope, Tenants
from hermes_worker.store.artifacts.gatherings import Gatherings, KeptFile

OTHER_KEY = "another-key-0123456789"


def left(served: Served, *files: tuple[str, bytes]) -> str:
    """A run that has ended and left these files."""
    run_id = served.submit(artifacts=["**"])
    store = Store.over(served.client.database)
    store.answer(run_id)
    gatherings = Gatherings(store.database)
    claim = gatherings.claim(GatherArtifacts(run_id=run_id, attempt=1), store.owner)
    assert claim is not None
    kept = [
        KeptFile(
            path=path,
            sha256=hashlib.sha256(content).hexdigest(),
            size=len(content),
            media_type=find_media_type(path),
            modified_at=1.0,
            blob_hash=gatherings.store_content(content),
        )
        for path, content in files
    ]
    gatherings.settle(claim, kept)
    return run_id


def listed(served: Served, run_id: str) -> dict:  # type: ignore[type-arg]
    answer = served.http.get(f"/v1/runs/{run_id}/artifacts")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def fetched(served: Served, url: str, **headers: str) -> httpx.Response:
    """Without a key."""
    return httpx.get(f"{served.url}{url}", headers=headers, verify=False, timeout=PATIENCE_S)


def test_a_file_is_fetched_by_its_address_alone(serve: Callable[..., Served]) -> None:
    served = serve()
    run_id = left(served, ("out/fig.png", b"\x89PNG\0\xff"), ("page.html", b"<script>alert(1)</script>"))
    found = listed(served, run_id)
    assert (found["state"], found["gathered"], found["left_out_total"]) == ("done", 2, 0)
    image, page = found["data"]
    assert image["sha256"] == hashlib.sha256(b"\x89PNG\0\xff").hexdigest()
    assert served.key not in image["url"]
    answer = fetched(served, image["url"])
    assert (answer.status_code, answer.content) == (200, b"\x89PNG\0\xff")
    assert answer.headers["content-type"] == "image/png"
    assert fetched(served, page["url"]).headers["content-type"] == "application/octet-stream"
    for response in (answer, fetched(served, page["url"])):
        assert response.headers["content-disposition"].startswith("attachment; ")
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["content-security-policy"] == SECURITY_HEADERS["Content-Security-Policy"]
        assert response.headers["referrer-policy"] == "no-referrer"


def test_the_client_fetches_a_file_and_takes_no_other_for_it(serve: Callable[..., Served]) -> None:
    served = serve()
    run_id = left(served, ("a.txt", b"mine"), ("b.txt", b"another"))
    with HermesClient(served.url, api_key=served.key, patience_s=0.0) as client:
        first, second = client.artifacts(run_id)["data"]
        assert client.artifact(first) == b"mine"
        with pytest.raises(UnavailableError, match="its hash differs"):
            client.artifact({**second, "sha256": first["sha256"]})


def test_a_page_may_lead_to_a_file_and_to_nothing_else(serve: Callable[..., Served]) -> None:
    served = serve()
    run_id = left(served, ("a.txt", b"x"))
    [file] = listed(served, run_id)["data"]
    clicked = {"sec-fetch-site": "cross-site"}
    assert fetched(served, file["url"], **clicked).status_code == 200
    assert served.http.get(f"/v1/runs/{run_id}/artifacts", headers=clicked).status_code == 403


@pytest.mark.parametrize(
    "name",
    ["invoice\u202excod.exe", 'a"b\\c.txt', "ü ö.txt", "x\u0085y", "-rf", "'; filename=evil.html"],
)
def test_no_name_gets_out_of_its_header(serve: Callable[..., Served], name: str) -> None:
    served = serve()
    [file] = listed(served, left(served, (name, b"x")))["data"]
    assert file["path"] == name
    said = fetched(served, file["url"]).headers["content-disposition"]
    assert said.isascii()
    assert said.count('"') == 2
    assert "\u202e" not in said
    assert "%E2%80%AE" not in said


def test_an_address_that_was_changed_is_as_good_as_none(serve: Callable[..., Served]) -> None:
    served = serve()
    first, second = listed(served, left(served, ("a.txt", b"a"), ("b.txt", b"b")))["data"]
    given = parse_qs(urlsplit(first["url"]).query)
    expires, signature = int(given["expires"][0]), given["signature"][0]
    key_id, _, proof = signature.partition(".")
    flipped = f"{key_id}.{'0' if proof[0] != '0' else '1'}{proof[1:]}"
    for url in (
        _url(second["id"], expires, signature),
        _url(first["id"], expires + 3600, signature),
        _url(first["id"], expires, flipped),
        _url(first["id"], expires, f"00000000.{proof}"),
        _url("art_" + "0" * 32, expires, signature),
        _url("..%2f..%2fetc%2fpasswd", expires, signature),
    ):
        answer = fetched(served, url)
        assert answer.status_code in (401, 404), (url, answer.text)
    for query in ("", f"?expires={expires}", f"?expires={expires}&signature=x", f"?expires=nan&signature={signature}"):
        assert fetched(served, f"/v1/artifacts/{first['id']}/content{query}").status_code == 400
    assert fetched(served, _url("a" * 1_000, expires, signature)).status_code == 404
    assert fetched(served, _url("%00", expires, signature)).status_code == 404


def _url(artifact_id: str, expires: int, signature: str) -> str:
    return f"/v1/artifacts/{artifact_id}/content?expires={expires}&signature={signature}"


def test_a_part_of_a_file_is_fetched_and_one_that_broke_off_goes_on(serve: Callable[..., Served]) -> None:
    served, content = serve(), bytes(range(256)) * 40
    [file] = listed(served, left(served, ("a.bin", content)))["data"]
    whole = fetched(served, file["url"])
    assert (whole.status_code, whole.headers["accept-ranges"]) == (200, "bytes")
    etag = whole.headers["etag"]
    assert etag == f'"{file["sha256"]}"'

    rest = fetched(served, file["url"], range="bytes=1000-", **{"if-range": etag})
    assert (rest.status_code, rest.headers["content-range"]) == (206, "bytes 1000-10239/10240")
    assert (rest.content, rest.headers["content-length"]) == (content[1000:], "9240")
    assert rest.headers["etag"] == etag
    assert rest.headers["content-disposition"] == whole.headers["content-disposition"]
    assert fetched(served, file["url"], range="bytes=-3").content == content[-3:]

    changed = fetched(served, file["url"], range="bytes=1000-", **{"if-range": '"another"'})
    assert (changed.status_code, changed.content) == (200, content)
    behind = fetched(served, file["url"], range="bytes=10240-")
    assert (behind.status_code, behind.headers["content-range"]) == (416, "bytes */10240")
    assert behind.json()["error"]["code"] == "range_not_satisfiable"


def test_whoever_lacks_the_address_hears_nothing_of_the_size(serve: Callable[..., Served]) -> None:
    served = serve()
    [file] = listed(served, left(served, ("a.txt", b"a")))["data"]
    wrong = f"{file['url'][:-1]}{'0' if file['url'][-1] != '0' else '1'}"
    answer = fetched(served, wrong, range="bytes=99-")
    assert (answer.status_code, "content-range" in answer.headers) == (404, False)


def test_an_address_ends(serve: Callable[..., Served], settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()
    [file] = listed(served, left(served, ("a.txt", b"a")))["data"]
    monkeypatch.setattr("hermes_worker.features.artifacts.routes.time.time", lambda: file["url_expires_at"] - 1.0)
    assert fetched(served, file["url"]).status_code == 200
    monkeypatch.setattr("hermes_worker.features.artifacts.routes.time.time", lambda: float(file["url_expires_at"]))
    answer = fetched(served, file["url"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "artifact_url_expired")


def test_replicas_share_addresses_and_a_new_key_ends_them_unless_the_old_one_is_kept(
    serve: Callable[..., Served], keyed: Settings
) -> None:
    first, second = serve(keyed), serve(keyed)
    [file] = listed(first, left(first, ("a.txt", b"a")))["data"]
    assert fetched(second, file["url"]).status_code == 200
    changed = replace(keyed.server, key=Secret(OTHER_KEY))
    assert keyed.server.key is not None
    kept = serve(replace(keyed, server=replace(changed, previous_keys=(keyed.server.key,))))
    assert fetched(kept, file["url"]).status_code == 200
    assert fetched(serve(replace(keyed, server=changed)), file["url"]).status_code == 404


def test_a_run_of_another_tenant_has_no_artifacts_for_us(serve: Callable[..., Served]) -> None:
    served = serve()
    run_id = left(served, ("a.txt", b"a"))
    tenants = Tenants(served.client.database)
    tenants.create_tenant("acme")
    key = tenants.create_key("acme", "bob", [KeyScope.RUNS_READ]).token
    answer = served.http.get(f"/v1/runs/{run_id}/artifacts", headers={"Authorization": f"Bearer {key}"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "run_not_found")


@pytest.mark.parametrize("pattern", ["../x", "/etc/passwd", "a\0b", "a//b", "~/x", "a" * 201, ""])
def test_a_pattern_that_leads_out_is_refused(serve: Callable[..., Served], pattern: str) -> None:
    answer = serve().http.post("/v1/runs", json={"input": "x", "artifacts": [pattern]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("artifacts")


def test_the_installation_names_files_for_runs_that_name_none(serve: Callable[..., Served], settings: Settings) -> None:
    served = serve(replace(settings, artifacts=replace(settings.artifacts, patterns=("*.csv",))))
    usual, none = served.submit(), served.submit(artifacts=[])
    assert [listed(served, run_id)["state"] for run_id in (usual, none)] == ["open", "none"]
