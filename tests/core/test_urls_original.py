"""Addresses that the original's own tests judge, and further spellings of the same ones."""

import json
from pathlib import Path

import pytest

from hermes_worker.net.urls import UnsafeUrl, UrlPolicy, check_addresses, find_address_refusal, parse_http_url

CASES = json.loads((Path(__file__).parents[1] / "cases/original/urls.json").read_text())["cases"]
LENIENT = UrlPolicy(allows_private=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_url_of_the_original_is_judged_as_there(case):
    given = case["input"]
    try:
        policy = UrlPolicy(allows_private=given["allow_private"])
        check_addresses(parse_http_url(given["url"]), given["resolves"], policy)
        is_allowed = True
    except UnsafeUrl:
        is_allowed = False
    assert is_allowed == case["expected"]["allowed"]


@pytest.mark.parametrize(
    "address",
    [
        "::ffff:0:169.254.169.254",
        "::ffff:0:100.100.100.200",
        "::169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::169.254.169.254",
        "64:ff9b:1:a9fe:a9:fe00::",
        "64:ff9b:1:a9:fe:a9fe::",
        "64:ff9b:1:0:a9:fea9:fe00:0",
        "2001:db8:64::169.254.169.254",
        "2001:db8::5efe:169.254.0.1",
        "2001:db8::200:5efe:169.254.0.1",
        "2002:a9fe:a9fe::",
        "2001:0:a9fe:a9fe::",
        "2001::5601:5601",
        "0:0:0:0:0:FFFF:A9FE:A9FE",
        "::ffff:0:a9fe:a9fe%eth0",
        "fd00:ec2::23",
        "fd20:ce::254",
        "fd00:42::42",
        "fd00:c1::a9fe:a9fe",
    ],
)
def test_a_metadata_address_is_refused_in_every_spelling_where_private_ones_are_allowed(address):
    assert "metadata" in find_address_refusal(address, LENIENT)


@pytest.mark.parametrize("address", ["fd00:c1::a9fe:a9ff", "64:ff9b:1::1", "::ffff:0:10.0.0.1", "fd00::5efe:10.0.0.1"])
def test_a_private_address_that_looks_alike_is_allowed_where_private_ones_are(address):
    assert find_address_refusal(address, LENIENT) is None


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "[::ffff:169.254.169.254]",
        "[::ffff:0:a9fe:a9fe]",
        "[64:ff9b::a9fe:a9fe]",
        "[fe80::1%25eth0]",
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "0xa9.254.169.0376",
        "169.16689662",
        "１６９.254.169.254",
        "169。254。169。254",
        "①⑥⑨.254.169.254",
        "instance-data.ec2.internal",
        "metadata.tencentyun.com.",
    ],
)
def test_a_metadata_host_is_refused_before_anybody_resolves_it(host):
    with pytest.raises(UnsafeUrl):
        parse_http_url(f"http://{host}/")
