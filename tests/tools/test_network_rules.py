"""Which network a command gets, and what the proxy would connect to, as values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.net.urls import UnsafeUrl
from hermes_worker.workspaces.sandbox.network import (
    PROXY_VARIABLES,
    UNKNOWN,
    EgressRules,
    Network,
    NetworkAccess,
    NetworkRules,
    RunOrigin,
    choose_narrower,
    decide_access,
    parse_plain_target,
    parse_tunnel_target,
)

SOURCES = ("cli", "api", "cron", "webhook", "delegation", UNKNOWN)
networks = st.sampled_from(Network)
rules = st.builds(
    NetworkRules,
    people=networks,
    api=st.none() | networks,
    unattended=st.none() | networks,
    is_api_local=st.booleans(),
)


@pytest.mark.parametrize(
    ("source", "network"), [("cli", "open"), ("api", "open"), ("cron", "proxy"), ("webhook", "proxy")]
)
def test_a_workstation_is_open_to_people_and_a_proxy_to_what_nobody_watches(source: str, network: str) -> None:
    assert decide_access(NetworkRules(), RunOrigin(source=source)).network == network


def test_callers_from_beyond_this_machine_get_the_proxy_unless_somebody_allows_more() -> None:
    caller = RunOrigin(source="api")
    assert decide_access(NetworkRules(is_api_local=False), caller) == NetworkAccess(
        network=Network.PROXY, is_required=False
    )
    allowed = NetworkRules(is_api_local=False, api=Network.OPEN)
    assert decide_access(allowed, caller) == NetworkAccess(network=Network.OPEN, is_required=False)


@pytest.mark.parametrize("source", SOURCES)
def test_where_people_have_no_network_nobody_has_one_by_default(source: str) -> None:
    strict = NetworkRules(people=Network.NONE, is_api_local=False)
    assert decide_access(strict, RunOrigin(source=source)) == NetworkAccess(network=Network.NONE, is_required=True)


@given(rules, st.sampled_from(SOURCES), networks)
def test_what_a_job_asks_for_never_widens(given_rules: NetworkRules, source: str, asked: Network) -> None:
    usual = decide_access(given_rules, RunOrigin(source=source))
    access = decide_access(given_rules, RunOrigin(source=source, asked=asked.value))
    assert access.network is choose_narrower(usual.network, asked)
    assert access.is_required or access.network is usual.network


@given(rules)
def test_a_source_that_nobody_knows_gets_what_unattended_work_gets(given_rules: NetworkRules) -> None:
    assert decide_access(given_rules, RunOrigin(source="chat")) == decide_access(
        given_rules, RunOrigin(source="webhook")
    )


def test_programs_are_told_of_the_proxy_in_both_cases() -> None:
    assert PROXY_VARIABLES["https_proxy"] == PROXY_VARIABLES["HTTPS_PROXY"] == "http://127.0.0.1:3128"
    assert "localhost" in PROXY_VARIABLES["no_proxy"]


PYPI = EgressRules(hosts=("pypi.org", "*.Example.org"))


@pytest.mark.parametrize("authority", ["pypi.org:443", "PyPI.org.:443", "a.example.org:443", "a.b.example.org:80"])
def test_listed_hosts_are_connected_to(authority: str) -> None:
    assert parse_tunnel_target(authority, PYPI).host.endswith(".org")


@pytest.mark.parametrize(
    "authority",
    [
        "example.org:443",
        "notexample.org:443",
        "pypi.org.evil.com:443",
        "evil.com:443",
        "pypi.org:22",
        "pypi.org:6379",
        "pypi.org",
        "pypi.org:",
        "pypi.org:443/x",
        "pypi.org:443@evil.com:443",
        "user@pypi.org:443",
        "pypi.org#:443",
        "pypi.org:99999",
        "[::1:443",
        "a b:443",
        ":443",
        "",
    ],
)
def test_everything_else_is_refused(authority: str) -> None:
    with pytest.raises(UnsafeUrl):
        parse_tunnel_target(authority, PYPI)


@pytest.mark.parametrize("host", ["0x7f.1", "2130706433", "0177.0.0.1", "127.1", "metadata.google.internal", "0"])
def test_addresses_in_disguise_are_refused_before_anybody_resolves_them(host: str) -> None:
    for judge, text in ((parse_tunnel_target, f"{host}:443"), (parse_plain_target, f"http://{host}/")):
        with pytest.raises(UnsafeUrl):
            judge(text, EgressRules())


def test_only_plain_http_is_asked_for_by_its_url() -> None:
    assert parse_plain_target("http://pypi.org/simple/", PYPI).port == 80
    for url in ("https://pypi.org/", "ftp://pypi.org/", "http://pypi.org:8080/", "http://me:secret@pypi.org/"):
        with pytest.raises(UnsafeUrl):
            parse_plain_target(url, PYPI)
