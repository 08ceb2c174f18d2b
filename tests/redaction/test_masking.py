"""What is masked and what is left alone, as tables. Secrets are written in two parts so that scanners of this
repository do not take them for real ones."""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.measuring import processor_s

from hermes_worker.safety.redaction import is_secret_name, mask_secret, redact, redact_code

OPAQUE = "Zx9Qw8Er7Ty6Ui5Op4As3"


@pytest.mark.parametrize(
    ("secret", "shown"),
    [
        ("", "***"),
        ("hunter2", "***"),
        ("x" * 17, "***"),
        ("abcdef" + "." * 8 + "wxyz", "abcdef...wxyz"),
    ],
)
def test_a_mask_shows_the_ends_of_long_secrets_only(secret: str, shown: str) -> None:
    assert mask_secret(secret) == shown


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        # Rows computed with Hermes Agent 0.19.0.
        ("sk-" + "abcdefghijklmnopqrstuvwx", "sk-abc...uvwx"),
        ("OPENAI_API_KEY=" + "abcdef123456", "OPENAI_API_KEY=***"),
        ('{"token": "' + "abcdefgh12345678ijkl" + '"}', '{"token": "abcdef...ijkl"}'),
        ("postgres://u:" + "p4ss@h/db", "postgres://u:***@h/db"),
        ("+15551234567", "+155****4567"),
        # Assignments.
        ("export SECRET_TOKEN=mypassword", "export SECRET_TOKEN=***"),
        ("MISTRAL_API_KEY=abc123secret # prod", "MISTRAL_API_KEY=*** # prod"),
        ("A=1\nDB_PASSWORD=p,w;d\nB=2", "A=1\nDB_PASSWORD=***\nB=2"),
        ("spring.datasource.password=Sup3rS3cret!", "spring.datasource.password=***"),
        ("password=mysecret&username=bob&token=opaqueValue", "password=***&username=bob&token=***"),
        ("I have password=foo and more", "I have password=*** and more"),
        ("Client(password=abc, retries=3)", "Client(password=***, retries=3)"),
        ("Server=db;Password=abc;Database=x", "Server=db;Password=***;Database=x"),
        ("db_password: hunter2", "db_password: ***"),
        ("  clientSecret: abc123def456ghi789jkl", "  clientSecret: abc123...9jkl"),
        ("x: 1\n- api_key: 'a b c'", "x: 1\n- api_key: '***'"),
        ('password := "it\'s"', 'password := "***"'),
        ("dbPassword = 'hunter2'", "dbPassword = '***'"),
        ('os.environ["API_KEY"] = "abc"', 'os.environ["API_KEY"] = "***"'),
        # JSON, also inside JSON, also cut off.
        ('{"apiKey":"k","n":1}', '{"apiKey":"***","n":1}'),
        (r"{\"client_secret\": \"abc\"}", r"{\"client_secret\": \"***\"}"),
        (r'{"password": "a\"b"}', '{"password": "***"}'),
        ('{"password": "abc', '{"password": "***'),
        ("{'token': 'abc'}", "{'token': '***'}"),
        # Headers.
        ("Authorization: Bearer " + OPAQUE, "Authorization: Bearer Zx9Qw8...4As3"),
        ("authorization: " + OPAQUE, "authorization: Zx9Qw8...4As3"),
        ("Proxy-Authorization: Basic dXNlcjpwYXNz", "Proxy-Authorization: Basic ***"),
        ('"Authorization": "Bearer ' + OPAQUE + '"', '"Authorization": "Bearer Zx9Qw8...4As3"'),
        ('curl -H "Authorization: Bearer abc" https://h', 'curl -H "Authorization: Bearer ***" https://h'),
        ('Authorization: Digest username="u", response="0123"', 'Authorization: Digest...123"'),
        ("x-api-key: opaque", "x-api-key: ***"),
        ('curl -H "x-api-key: opaque" https://h', 'curl -H "x-api-key: ***" https://h'),
        ("(b'x-api-key', b'" + OPAQUE + "')", "(b'x-api-key', b'Zx9Qw8...4As3')"),
        ("sent Bearer " + OPAQUE, "sent Bearer Zx9Qw8...4As3"),
        # Addresses.
        ("postgresql+psycopg://app:p/w@db:5432/x", "postgresql+psycopg://app:***@db:5432/x"),
        ("redis://:secret@127.0.0.1:6379/0", "redis://:***@127.0.0.1:6379/0"),
        ("redis+socket://:secret@/tmp/s?virtual_host=0", "redis+socket://:***@/tmp/s?virtual_host=0"),
        ("mongodb+srv://u:p@h, amqp://u:p@h", "mongodb+srv://u:***@h, amqp://u:***@h"),
        ("https://longtoken1234567@git.example/x", "https://***@git.example/x"),
        ("https://user:pass@host/x", "https://user:***@host/x"),
        ("GET https://h/x?key=1&api_key=abc&page=2", "GET https://h/x?key=1&api_key=***&page=2"),
        # Other shapes.
        ("bot123456789:" + "ABCDEfghij-KLMNopqrst_UVWXyz12345", "bot123456789:ABCDEf...2345"),
        ("at eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0.sig_1 end", "at eyJhbG...ig_1 end"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----", None),
        ("-----BEGIN PRIVATE KEY-----\nMIIEcut off", None),
        ("key ya29." + "a0AfH6SMBx-yz12345 ok", "key ya29.a...2345 ok"),
        ("mail SG." + "abcdefghijklmnop.qrstuvwxyz012345", "mail SG.abc...2345"),
    ],
)
def test_a_credential_is_masked(text: str, masked: str | None) -> None:
    result = redact(text)

    if masked is None:
        assert "MIIE" not in result
        assert "***" in result or "..." in result
    else:
        assert result == masked


VENDOR_KEYS = [
    "sk-proj-" + "abc123def456ghi789jkl012",
    "sk-ant-api03-" + "aBcDeF0123456789",
    "sk-or-v1-" + "reallyLongSecretKeyValue12345678",
    "ghp_" + "abcdef1234567890ABCDEF",
    "github_pat_" + "11ABCDEFG0abcdefghijkl_mnop",
    "glpat-" + "Zx9AbCdEfGhIjKlMnOpQ",
    "glrt-" + "A" * 27 + ".01." + "a" * 9,
    "xoxb-" + "0" * 12 + "-" + "a" * 14,
    "xapp-1-" + "A012345678-0123456789",
    "AIza" + "SyA0123456789abcdefghijklmnopqrstuv",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "gAAAA" + "ABkabcdefghijklmnopqrstuv==",
    "sk_live_" + "abcdefghijklmnop",
    "rk_live_" + "abcdefghijklmnop",
    "sk_" + "abc123def456ghi789jklmnopqrstu",
    "hf_" + "abcdefghijklmnopqrstuvwxyz",
    "r8_" + "abcdefghijklmnopqrst",
    "npm_" + "abcdefghijklmnopqrst",
    "pypi-" + "AgEIcHlwaS5vcmcCJGFi",
    "dop_v1_" + "0123456789abcdef",
    "tvly-" + "ABCdef123456789GHIJKL0000",
    "exa_" + "XYZ789abcdef000000000000000",
    "gsk_" + "abcdefghijklmnopqrst",
    "xai-" + "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
    "fw_" + "A" * 40,
    "fpk_" + "C" * 40,
    "fc-" + "shortkey123456789012",
    "ntn_" + "abcdefghijklmnop",
    "am_" + "0123456789abcdef" * 2,
    "AGE-SECRET-KEY-1" + "K7" * 29,
]


@pytest.mark.parametrize("place", ["{}", "error {} in output", '"{}"', "k={}&x=1", r'{{"text":"a\n{}\tb"}}', "a%3D{}"])
def test_a_vendors_key_is_masked_wherever_it_stands(place: str) -> None:
    for key in VENDOR_KEYS:
        text = place.format(key)

        assert key[6:-4] not in redact(text), key
        assert key[6:-4] not in redact_code(text), key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "HOME=/home/user",
        '{"name": "John", "model": "gpt-4"}',
        "https://x.io/cb?code=abc123xyz789&state=csrf_ok",
        "https://git@github.com/user/repo.git",
        "https://example.com/search?q=user@example.com",
        "https://example.com/users/john@doe.com/profile",
        "postgres://user@host/db",
        "redis://127.0.0.1:6379/0",
        'password=os.getenv("X")',
        "MY_API_KEY=os.getenv('OPENAI_API_KEY')",
        "api_key: ${OPENAI_API_KEY}",
        "TOKEN=$TOKEN",
        "token=process.env.TOKEN",
        '"password": "<your password>"',
        '{"api_key": null, "token": ""}',
        "if token == other:",
        "std::token::x",
        "token = next(tokens)",
        "def f(token: str, password: str | None = None) -> None:",
        "the authorization model is fully open",
        "Secretary: JanetYellen1234567890",
        "The tokenizer splits; set max_new_tokens=256",
        "MAX_TOKENS=100",
        '"prompt_tokens": 1234, "completion_tokens": 56',
        "token_type: bearer, expires_in: 3600",
        "PASSWORD_FILE=/run/secrets/db",
        "primary_key=id sort_key=created_at",
        "author: Jane, authored: yesterday",
        "KEYBOARD=notsecret PASSAGE=notsecret",
        "what is the password: please tell me",
        "2026-01-01T00:00:00.123456Z info iteration.committed",
        "0.14285714285714285",
        "schema.am_example_identifier and path/to/am_monthly_report.sql",
        "MSG.some_long_identifier_1",
        "glpat-short fw-tooshort xai-tooshort sk-short",
        "myglpat-AbCdEfGhIjKlMnOpQrSt",
        "npm_config_registry hf_hub_download sk_learn_model_selection",
        "d41d8cd98f00b204e9800998ecf8427e 7f3a1c9e-4b2d-4f6a-9c1e-2d3b4a5c6d7e",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "+20260101 lines, 1+15551234567",
        "đây là tiếng Việt, добрый день, 你好",
    ],
)
def test_text_without_a_credential_is_left_alone(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("text", ['password = "hunter2"', '{"token": "abc"}', "API_KEY=abc", "secret: abc"])
def test_code_keeps_what_only_its_name_calls_secret(text: str) -> None:
    assert redact_code(text) == text


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("password", True),
        ("dbPassword", True),
        ("X-API-Key", True),
        ("APIToken", True),
        ("aws_secret_access_key", True),
        ("private_key", True),
        ("secrets", True),
        ("Authorization", True),
        ("primary_key", False),
        ("key", False),
        ("tokenizer", False),
        ("author", False),
        ("token_count", False),
        ("api_key_env", False),
        ("", False),
    ],
)
def test_names_are_read_word_by_word(name: str, is_secret: bool) -> None:
    assert is_secret_name(name) is is_secret


def test_an_env_dump_keeps_its_harmless_lines() -> None:
    dump = "HOME=/home/user\nFAL_API_KEY=shhhh\nTELEGRAM_BOT_TOKEN=" + "a" * 20 + "\nSHELL=/bin/bash"

    assert redact(dump) == "HOME=/home/user\nFAL_API_KEY=***\nTELEGRAM_BOT_TOKEN=aaaaaa...aaaa\nSHELL=/bin/bash"


def test_json_stays_json() -> None:
    row = {"password": 'a"b\\', "nested": json.dumps({"api_key": "sk-" + "a" * 30}), "n": 1}

    assert set(json.loads(redact(json.dumps(row)))) == set(row)


SECRET_TEXT = st.lists(
    st.sampled_from(
        ["password=", "token: ", '"', "'", " ", "\n", "://", "@", "a", "\\", "sk-" + "b" * 12, "é", "\ud800"]
    ),
    max_size=30,
).map("".join)


@given(st.one_of(st.text(), SECRET_TEXT))
@example('Token:"Password0000000=0"')
def test_any_text_is_accepted_and_a_second_pass_changes_nothing(text: str) -> None:
    once = redact(text)

    assert redact(once) == once


def test_a_clean_megabyte_takes_milliseconds() -> None:
    line = "2026-01-01T00:00:00Z info the quick brown fox settled call_abc12345 in 0.14285714285714285 s on host-1\n"
    text = (line * 10_000)[:1_000_000]
    elapsed, scans = [], []
    for _ in range(5):
        started = time.perf_counter()
        assert redact(text) == text
        elapsed.append(time.perf_counter() - started)
        started = time.perf_counter()
        re.findall(r"\w+", text)
        scans.append(time.perf_counter() - started)

    # Measured: as long as one plain scan for words, 15-20 ms on an idle machine.
    assert min(elapsed) < 8 * min(scans)


@pytest.mark.parametrize(
    "piece",
    [
        *[
            "token=",
            "token='",
            'token="',
            "token=$",
            'token\\": \\"',
            "password: ",
            "authorization:",
            "bearer ",
            "token",
        ],
        *[
            "redis://a",
            "a:b@://",
            "a.",
            "-----BEGIN PRIVATE KEY-----",
            "sk-aaaaaaaaaa",
            "eyJaaaaaaaaaa.",
            "+1555123456",
            "://",
            "https://h/?a=b&",
            "cookie: a=b; ",
            "curl -u ",
            "mysql ",
            "api key:\n",
            "password is ",
            "<password>",
            "-----END PRIVATE KEY-----",
            "-----BEGIN PRIVATE KEY-----\nAAAA\n",
            "AAAA\n",
            "mnemonic: a b c ",
            "api_key=&quot;",
            "t1.",
            "token=\x1b[32m",
        ],
    ],
)
def test_hostile_text_does_not_take_quadratic_time(piece: str) -> None:
    def seconds(chars: int) -> float:
        text = (piece * (chars // len(piece) + 1))[:chars]
        return processor_s(lambda: redact(text))

    # Four times the text: four times the work, or sixteen times if it were quadratic.
    assert seconds(120_000) < 10 * max(seconds(30_000), 0.005)


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ('API_KEY="a$(rm -rf ~/x)bcdefgh12345678" ls', "$(rm -rf ~/x)"),
        ('export TOKEN="x9 8; `rm -rf ~/photos` y"', "`rm -rf ~/photos`"),
        ("curl -u bob:x1y2$(rm -rf ~)z9 https://h", "$(rm -rf ~)"),
        ("PASSWORD=hunter22x;rm\t-rf x", ";rm\t-rf x"),
        ("deploy --password=x1y2z3a4;rm -rf x", ";rm -rf x"),
        ("curl -H 'Authorization: Bearer abc$(id)defghijklmnopqrstuv' h", "$(id)"),
    ],
)
def test_what_a_shell_would_run_is_never_hidden_as_a_part_of_a_secret(text: str, run: str) -> None:
    hidden = redact(text)

    assert run in hidden
    assert redact(hidden) == hidden
    assert not any(secret in hidden for secret in ("hunter22x", "x1y2", "x9 8"))
