import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.net.urls import (
    HttpUrl,
    PrivateUrl,
    UnsafeUrl,
    UrlPolicy,
    check_addresses,
    find_address_refusal,
    parse_http_url,
)

PUBLIC = "93.184.216.34"
LENIENT = UrlPolicy(allows_private=True)


def judge(url, addresses, policy=UrlPolicy()):
    return check_addresses(parse_http_url(url), addresses, policy)


def test_a_public_url_is_safe_at_the_addresses_that_were_judged():
    target = parse_http_url("https://Example.ORG./a?b#c")
    assert target == HttpUrl(url="https://Example.ORG./a?b#c", scheme="https", host="example.org", port=443)
    addresses = (PUBLIC, "2606:2800:220:1::1")
    assert check_addresses(target, addresses, UrlPolicy()) == addresses


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://example.org", "example.org", 80),
        ("http://example.org:8080/x", "example.org", 8080),
        ("https://[2606:2800:220:1::1]:8443/", "2606:2800:220:1::1", 8443),
        ("https://bücher.example/", "xn--bcher-kva.example", 443),
        ("https://my_service.example/", "my_service.example", 443),
        ("http://93.184.216.34/", PUBLIC, 80),
    ],
)
def test_host_and_port_are_read(url, host, port):
    target = parse_http_url(url)
    assert (target.host, target.port) == (host, port)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.org/",
        "gopher://example.org/_x",
        "javascript:alert(1)",
        "//example.org/x",
        "example.org",
        "",
        "data:text/plain,x",
    ],
)
def test_only_http_is_fetched(url):
    with pytest.raises(UnsafeUrl, match="Only http and https"):
        parse_http_url(url)


@pytest.mark.parametrize("url", ["http://", "http:///path", "https://:443/", "http://./", "http://?x"])
def test_a_host_is_needed(url):
    with pytest.raises(UnsafeUrl):
        parse_http_url(url)


@pytest.mark.parametrize(
    "url",
    ["https://user:pw@example.org/", "https://user@example.org/", "https://@example.org/", "https://:pw@example.org/"],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url):
    with pytest.raises(UnsafeUrl) as caught:
        parse_http_url(url)
    assert "pw" not in str(caught.value)
    assert "user name or a password" in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://exa mple.org/",
        "http://example.org/\r\nHost: evil",
        "http://example.org\t/",
        "http://example.org\\@evil.example/",
        "http://example.org/\x00",
        "http://evil.example\u00a0/",
    ],
)
def test_characters_that_parsers_disagree_about_are_refused(url):
    with pytest.raises(UnsafeUrl, match="spaces, control characters or backslashes"):
        parse_http_url(url)


@pytest.mark.parametrize("port", [0, 22, 25, 6379, 5432, 11211, 6667, 10080])
def test_ports_of_other_protocols_are_refused(port):
    with pytest.raises(UnsafeUrl, match=f"Port {port} "):
        parse_http_url(f"http://example.org:{port}/")


@pytest.mark.parametrize("port", ["99999", "-1", "x", "８０"])
def test_a_port_that_is_no_port_is_refused(port):
    with pytest.raises(UnsafeUrl):
        parse_http_url(f"http://example.org:{port}/")


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "127.0.0.01", "0", "１２７.1"]
)
def test_addresses_in_disguise_are_refused(host):
    with pytest.raises(UnsafeUrl, match="address in disguise"):
        parse_http_url(f"http://{host}/")


@pytest.mark.parametrize(
    "host",
    [
        "[::1%25eth0]",
        "[fe80::1%eth0]",
        "[::g]",
        "[v1.x:y]",
        "a" * 64 + ".example",
        "ex*mple.org",
        "a..b",
        "%31.example",
    ],
)
def test_hosts_that_are_no_hosts_are_refused(host):
    with pytest.raises(UnsafeUrl):
        parse_http_url(f"http://{host}/")


@pytest.mark.parametrize("host", ["metadata.google.internal", "METADATA.google.internal.", "x.metadata.goog"])
def test_metadata_names_are_refused_whatever_they_resolve_to(host):
    with pytest.raises(UnsafeUrl, match="is blocked"):
        judge(f"http://{host}/", [PUBLIC], LENIENT)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.9.1",
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "0.0.0.0",
        "100.64.0.1",
        "100.127.255.255",
        "192.0.0.8",
        "192.0.2.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.9",
        "240.0.0.1",
        "192.88.99.1",
        "::1",
        "::",
        "fc00::1",
        "fd12:3456::1",
        "2001:db8::1",
        "2001::1",
        "3fff::1",
        "100::1",
        "5f00::1",
        "fec0::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:7f00:1",
        "::127.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2002:a00:1::1",
    ],
)
def test_private_addresses_are_refused_unless_allowed(address):
    assert find_address_refusal(address, UrlPolicy()) is not None
    assert find_address_refusal(address, LENIENT) is None


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.170.2",
        "169.254.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "224.0.0.1",
        "255.255.255.255",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%eth0",
        "ff02::1",
        "::ffff:169.254.169.254",
        "::ffff:a9fe:a9fe",
        "::ffff:100.100.100.200",
        "64:ff9b::169.254.169.254",
        "2002:a9fe:a9fe::1",
    ],
)
def test_metadata_and_link_local_addresses_are_always_refused(address):
    assert find_address_refusal(address, UrlPolicy()) is not None
    assert find_address_refusal(address, LENIENT) is not None


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        PUBLIC,
        "100.128.0.1",
        "172.32.0.1",
        "2606:4700::1111",
        "2a00:1450::8",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
        "2002:808:808::1",
    ],
)
def test_public_addresses_are_allowed(address):
    assert find_address_refusal(address, UrlPolicy()) is None


@pytest.mark.parametrize("address", ["", "localhost", "1.2.3", "not an address", "1.2.3.4/32"])
def test_what_is_no_address_is_refused(address):
    assert "is not an address" in find_address_refusal(address, LENIENT)


def test_one_private_answer_spoils_the_name():
    with pytest.raises(UnsafeUrl, match=r"'example\.org' is refused: 10\.0\.0\.1 is not a public address"):
        judge("https://example.org/", [PUBLIC, "10.0.0.1"])


@pytest.mark.parametrize(("address", "may_be_allowed"), [("10.0.0.1", True), ("169.254.169.254", False)])
def test_an_error_tells_what_an_operator_may_allow(address, may_be_allowed):
    with pytest.raises(UnsafeUrl) as refused:
        judge("https://example.org/", [address])
    assert isinstance(refused.value, PrivateUrl) is may_be_allowed


def test_a_name_that_does_not_resolve_is_refused():
    with pytest.raises(UnsafeUrl, match="does not resolve"):
        check_addresses(parse_http_url("https://example.org"), [], LENIENT)


def test_a_private_service_can_be_allowed():
    assert judge("http://localhost:8080/hook", ["127.0.0.1", "::1"], LENIENT) == ("127.0.0.1", "::1")


def test_a_url_that_is_too_long_is_refused():
    with pytest.raises(UnsafeUrl, match="at most"):
        parse_http_url("https://example.org/" + "a" * 9000)


@given(st.text(max_size=80))
def test_any_text_is_a_url_or_refused(text):
    for url in (text, f"http://{text}", f"https://example.org:{text}/", f"http://[{text}]/"):
        try:
            target = parse_http_url(url)
        except UnsafeUrl:
            continue
        assert target.host
        assert 0 < target.port < 65536


@given(st.ip_addresses(v=4))
def test_a_mapped_address_is_judged_like_the_one_inside(address):
    for policy in (UrlPolicy(), LENIENT):
        plain, mapped = find_address_refusal(str(address), policy), find_address_refusal(f"::ffff:{address}", policy)
        assert (plain is None) == (mapped is None)
