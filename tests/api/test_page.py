"""The page's files and logins, as an HTTP client sees them. ``test_page_browser`` drives a browser."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from serving import PATIENCE_S, Served
from test_tenants import client, tenants  # noqa: F401  (fixtures)

from hermes_worker.api import auth
from hermes_worker.api.page import COOKIE, build_page_policy, load_page_files
from hermes_worker.core.principals import KeyScope
from hermes_worker.settings import Secret, Settings
from hermes_worker.store.access import saved_filters
from hermes_worker.store.access.audit import AuditLog
from hermes_worker.store.access.principals import Tenants

BYTES_MAX = 300_000
LOADED_BYTES_MAX = 100_000
"""Of all files that the first load asks for, compressed."""
VENDORED = {
    # preact 11.2.0 and htm 3.1.1, as npm has them: package/dist/preact.mjs, package/hooks/dist/hooks.mjs,
    # package/dist/htm.module.js.
    "/web/vendor/preact.mjs": "bdcbd9abdf2c77c5c45326eab42191e949222d479d0d5f69467387a77040cb55",
    "/web/vendor/hooks.mjs": "e862ab2973aa6455eaa0f77c5d832d2157d6be59a17c8ba546550a575b58c6b4",
    "/web/vendor/htm.mjs": "ab33dd3f38059b9be4d5f5350128eefb2356639c4e0bbe9d9e8b3ba75847e9e4",
}
"""SHA-256 of the files of others."""
PATIENT: dict[str, Any] = {"verify": False, "timeout": PATIENCE_S}
"""For every request here: the server's certificate is its own, and the machine may be busy."""


def browser(api: Served, key: str | None = None) -> httpx.Client:
    """A client with the login of ``key`` and no key."""
    own = {"Origin": api.url, "Authorization": f"Bearer {key or api.key}"}
    answer = httpx.put(f"{api.url}/v1/page/login", json={}, headers=own, **PATIENT)
    assert answer.status_code == 200, answer.text
    return httpx.Client(base_url=api.url, **PATIENT, cookies={COOKIE: answer.cookies[COOKIE]})


def test_the_page_is_served_without_a_key_under_its_own_policy(api: Served) -> None:
    answer = httpx.get(api.url, **PATIENT)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = answer.headers["content-security-policy"]
    assert policy == build_page_policy()
    for part in (
        "default-src 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "base-uri 'none'",
    ):
        assert part in policy
    assert "unsafe" not in policy
    assert answer.headers["x-frame-options"] == "DENY"
    again = httpx.get(api.url, headers={"If-None-Match": answer.headers["etag"]}, **PATIENT)
    assert (again.status_code, again.content) == (304, b"")
    for path, file in load_page_files().items():
        got = httpx.get(api.url + path, **PATIENT)
        assert (got.status_code, got.headers["content-type"]) == (200, file.kind), path
    assert httpx.get(f"{api.url}/web/../api/auth.py", **PATIENT).status_code == 401


def test_the_page_is_small_and_what_others_wrote_is_as_they_wrote_it() -> None:
    files = load_page_files()
    assert sum(len(file.content) for file in files.values()) <= BYTES_MAX
    found = {path: hashlib.sha256(file.content).hexdigest() for path, file in files.items() if "/vendor/" in path}
    assert found == VENDORED


def test_the_first_load_is_compressed_and_small(api: Served) -> None:
    loaded, first = 0, {"/", "/web/page.css", "/web/icon.svg", *_preloaded()}
    for path, file in load_page_files().items():
        with httpx.stream("GET", api.url + path, headers={"Accept-Encoding": "gzip"}, **PATIENT) as got:
            raw = b"".join(got.iter_raw())
        assert (got.headers["content-encoding"], got.headers["vary"]) == ("gzip", "Accept-Encoding"), path
        assert gzip.decompress(raw) == file.content, path
        loaded += len(raw) if path in first else 0
        plain = httpx.get(api.url + path, headers={"Accept-Encoding": "identity"}, **PATIENT)
        assert ("content-encoding" in plain.headers, plain.content) == (False, file.content), path
    assert loaded <= LOADED_BYTES_MAX


def _preloaded() -> list[str]:
    named = re.findall(r'(?:modulepreload" href|type="module" src)="(.*?)"', load_page_files()["/"].content.decode())
    return [f"/{path}" for path in named]


def test_the_page_asks_at_once_for_all_modules_that_it_needs_at_once() -> None:
    """One after another they would cost the first picture a round trip for each module that imports others. The others
    are views that are read when somebody opens them."""
    texts = {path: file.content.decode() for path, file in load_page_files().items() if path.endswith((".js", ".mjs"))}
    needed, open_ones = set[str](), ["main.js"]
    while open_ones:
        name = open_ones.pop()
        if name not in needed:
            needed.add(name)
            open_ones += re.findall(r'^import .* from "\./(.*?)";$', texts[f"/web/{name}"], re.MULTILINE)
    vendored = {path for path in texts if "/vendor/" in path}
    assert sorted(_preloaded()) == sorted({f"/web/{name}" for name in needed} | vendored)
    later = {f"/web/{name}" for name in re.findall(r'later\("\./(.*?)"', texts["/web/main.js"])}
    assert set(texts) - set(_preloaded()) == later


def test_the_page_can_be_left_out(serve: Callable[..., Served], settings: Settings) -> None:
    api = serve(replace(settings, server=replace(settings.server, page=False)))
    assert httpx.get(api.url, **PATIENT).status_code == 401
    own = {"Origin": api.url, "Authorization": api.authorization}
    assert httpx.put(f"{api.url}/v1/page/login", json={}, headers=own, **PATIENT).status_code == 403


def test_a_name_of_a_stranger_gets_no_page_and_no_login(serve: Callable[..., Served], settings: Settings) -> None:
    api = serve(replace(settings, server=replace(settings.server, page_hosts=("hermes.example.org",))))
    for host, status in {
        "evil.example": 421,
        "localhost.evil.example": 421,
        "hermes.example.org": 200,
        "hermes.example.org:8443": 200,
        "localhost:1": 200,
        "192.0.2.7:8642": 200,
        "[2001:db8::1]:8642": 200,
    }.items():
        assert httpx.get(api.url, headers={"Host": host}, **PATIENT).status_code == status, host
    with browser(api) as page:
        rebound = {"Host": "evil.example", "Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}
        assert page.get("/v1/runs", headers=rebound | {"Cookie": f"{COOKIE}={page.cookies[COOKIE]}"}).status_code == 403


def test_a_login_is_worth_a_key_for_the_page_alone(api: Served) -> None:
    with browser(api) as page:
        assert page.get("/v1/runs").status_code == 200
        said = page.get("/v1/page/login").json()
        assert (said["tenant"], said["is_operator"]) == ("default", True)
        assert "runs:write" in said["scopes"]
        own = {"Origin": api.url}
        assert page.post("/v1/runs", json={"input": "x"}, headers=own).status_code == 202
        assert page.post("/v1/runs", json={"input": "x"}, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 202
        for headers in (
            {},
            {"Sec-Fetch-Site": "none"},
            {"Origin": "null"},
            {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
            {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"},
            {"Origin": api.url, "Sec-Fetch-Site": "cross-site"},
        ):
            refused = page.post("/v1/runs", json={"input": "x"}, headers=headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "origin_not_allowed"), headers
        assert page.get("/v1/runs", headers={"Sec-Fetch-Site": "same-site"}).status_code == 403
        assert len(page.get("/v1/runs").json()["data"]) == 2


def test_the_cookie_is_for_no_script_and_no_other_page(api: Served) -> None:
    own = {"Authorization": api.authorization}
    asked = {"path": "/hermes/"}
    answer = httpx.put(f"{api.url}/v1/page/login", json=asked, headers=own | {"Origin": api.url}, **PATIENT)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path=/hermes/" in cookie
    assert "Secure" not in cookie
    assert api.key not in cookie + answer.text
    token = cookie.partition("=")[2].partition(";")[0]
    with api.client.database.read() as connection:
        kept = connection.exec_driver_sql("select * from page_logins").mappings().all()
    assert token not in str(kept)
    # A proxy speaks TLS for us: what the browser says of its own address counts.
    behind = {"Origin": "https://hermes.example.org", "Sec-Fetch-Site": "same-origin"}
    answer = httpx.put(f"{api.url}/v1/page/login", json={}, headers=own | behind, **PATIENT)
    assert "Secure" in answer.headers["set-cookie"]
    for path in ("hermes/", "/a;b/", "//evil", "/a"):
        refused = httpx.put(f"{api.url}/v1/page/login", json={"path": path}, headers=own, **PATIENT)
        assert refused.status_code == 400, path


def test_who_logs_out_is_out(api: Served) -> None:
    page = browser(api)
    kept = page.cookies[COOKIE]
    answer = page.delete("/v1/page/login", headers={"Origin": api.url})
    assert answer.status_code == 204
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert "Path=/;" in answer.headers["set-cookie"]
    refused = httpx.get(f"{api.url}/v1/runs", headers={"Cookie": f"{COOKIE}={kept}"}, **PATIENT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "login_over")
    acts = [row.act for row in AuditLog(api.client.database).list_actions("default")]
    assert acts == ["page.login", "page.logout"]
    with browser(api) as below:
        answer = below.delete("/v1/page/login", params={"path": "/hermes/"}, headers={"Origin": api.url})
    # A browser drops a cookie whose path is the same.
    assert "Path=/hermes/;" in answer.headers["set-cookie"]
    with browser(api) as other:
        answer = other.delete("/v1/page/login", params={"path": "//evil"}, headers={"Origin": api.url})
    assert answer.status_code == 400


def test_a_login_has_the_scopes_of_its_key_and_ends_with_it(
    api: Served,
    tenants: Tenants,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auth, "REMEMBERED_S", 0.0)
    key = tenants.create_key("acme", "reader", [KeyScope.RUNS_READ])
    with browser(api, key.token) as page:
        assert page.get("/v1/page/login").json()["scopes"] == ["runs:read"]
        refused = page.post("/v1/runs", json={"input": "x"}, headers={"Origin": api.url})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")
        tenants.revoke_key("acme", key.view.key_id)
        assert page.get("/v1/runs").status_code == 401


def test_a_new_key_of_the_installation_ends_the_logins_of_the_old_one(
    serve: Callable[..., Served], settings: Settings
) -> None:
    old = serve(replace(settings, server=replace(settings.server, key=Secret("a" * 40))))
    new = serve(replace(settings, server=replace(settings.server, key=Secret("b" * 40))))
    cookie = {"Cookie": f"{COOKIE}={browser(old).cookies[COOKIE]}"}
    assert httpx.get(f"{old.url}/v1/runs", headers=cookie, **PATIENT).status_code == 200
    assert httpx.get(f"{new.url}/v1/runs", headers=cookie, **PATIENT).status_code == 401


def test_a_token_of_a_login_is_no_key(api: Served) -> None:
    token = browser(api).cookies[COOKIE]
    for headers in ({"Authorization": f"Bearer {token}"}, {"Cookie": f"{COOKIE}={api.key}"}):
        assert httpx.get(f"{api.url}/v1/runs", headers=headers, **PATIENT).status_code == 401


def test_saved_filters_are_those_of_a_holder_and_stay_with_a_new_key(
    api: Served,
    tenants: Tenants,  # noqa: F811
    client: Callable[[str], httpx.Client],  # noqa: F811
) -> None:
    made = tenants.create_key("acme", "ada", [KeyScope.RUNS_READ])
    ada, bob = client(made.token), client(tenants.create_key("acme", "bob", [KeyScope.RUNS_READ]).token)
    for query in ("status=failed", "status=failed&tag=nightly"):
        saved = ada.put("/v1/page/filters", json={"name": "Nightly, bad", "query": query})
    assert [(each["name"], each["query"]) for each in saved.json()["data"]] == [
        ("Nightly, bad", "status=failed&tag=nightly")
    ]
    assert bob.get("/v1/page/filters").json()["data"] == []
    assert bob.delete("/v1/page/filters", params={"name": "Nightly, bad"}).status_code == 404
    new = client(tenants.create_key("acme", "ada", [KeyScope.RUNS_READ]).token)
    assert new.get("/v1/page/filters").json() == saved.json()
    assert new.delete("/v1/page/filters", params={"name": "Nightly, bad"}).status_code == 204
    assert ada.get("/v1/page/filters").json()["data"] == []
    acts = [row.act for row in AuditLog(api.client.database).list_actions("acme")]
    assert [act for act in acts if act.startswith("filter")] == ["filter.save", "filter.save", "filter.remove"]


def test_no_more_filters_are_saved_than_one_may_have(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_filters, "SAVED_MAX", 2)
    asked = [api.http.put("/v1/page/filters", json={"name": name, "query": ""}) for name in "abca"]
    assert [each.status_code for each in asked] == [200, 200, 409, 200]
    assert len(api.http.get("/v1/page/filters").json()["data"]) == 2
