"""The shared cases (``tests/cases/secrets.json``, unchanged), and cases of our own in the same form."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from hermes_worker.safety.redaction import mark_secret, redact, redact_code

CASES = json.loads((Path(__file__).parents[1] / "cases" / "secrets.json").read_text(encoding="utf-8"))
READINGS: dict[str, Callable[[str], str]] = {
    "as text": redact,
    "as code": redact_code,
    "as code, with markers": partial(redact_code, masked_as=mark_secret),
    "as text, with markers": partial(redact, masked_as=mark_secret),
}

SECRET = "Zx9Qw8Er" + "7Ty6Ui5Op4As3"
SHORT = "hunter" + "22x"

OWN_CASES = [
    f"PGPASSWORD={SHORT} psql",
    f"DBPASSWORD={SHORT}",
    f"GITHUBTOKEN={SECRET}",
    "MYSQL_PASS=correcthorse",
    f"smtp_pass = '{SHORT}'",
    f"    - name: DB_PASSWORD\n      value: {SECRET}",
    f"docker run -e POSTGRES_PASSWORD={SHORT} -e TZ=UTC postgres",
    f"    args: ['-e', 'REDIS_PASSWORD={SHORT}']",
    f"environment:\n  - SMTP_PASS={SHORT}",
    f"Cookie: theme=dark; session={SECRET}",
    f"Set-Cookie: sid={SECRET}; Path=/; HttpOnly",
    f"machine h login bob password {SECRET}",
    f"deploy --token {SECRET} --yes",
    f"deploy --password={SECRET}",
    f"curl -s --user bob:{SECRET} https://h",
    f"mysql -u root -p{SECRET} shop",
    f"sshpass -p '{SECRET}' ssh h",
    f"<password>{SECRET}</password>",
    f"<server><passphrase>{SECRET}</passphrase></server>",
    f"https://b.s3.amazonaws.com/k?X-Amz-Date=2026&X-Amz-Signature={'5b4fa5ce' * 8}",
    f"https://storage.googleapis.com/b/o?X-Goog-Signature={'5b4fa5ce' * 8}&x=1",
    f"https://a.blob.core.windows.net/c?sv=2024&sig={SECRET}%3D",
    f"https://maps.invalid/json?key={SECRET}",
    f"https://h/callback?code={SECRET}&state=1",
    f"https://h/x?a=1&amp;access_token={SECRET}",
    f"1|API_TOKEN={SECRET}",
    f"+  token: {SECRET}",
    f"-DB_PASSWORD={SHORT}",
    f"config.yaml:12:  password: {SECRET}",
    f"https://discord.com/api/webhooks/123456789012345678/{SECRET}{SECRET}",
    f"AccountName=a;AccountKey={SECRET}{SECRET}==;EndpointSuffix=core.windows.net",
]


def _secret_in(text: str) -> str:
    return next(secret for secret in (SECRET, SHORT, "correcthorse", "5b4fa5ce" * 8) if secret in text)


@pytest.mark.parametrize("reading", READINGS)
def test_nothing_is_left_of_a_secret_of_the_shared_cases(reading: str) -> None:
    for case in CASES["masked"]:
        hidden = READINGS[reading](case["text"])

        assert [secret for secret in case["secrets"] if secret in hidden] == [], case["what"]
        assert READINGS[reading](hidden) == hidden, case["what"]
        assert hidden.count("\n") == case["text"].count("\n") or "markers" not in reading, case["what"]


@pytest.mark.parametrize("reading", READINGS)
def test_the_harmless_texts_of_the_shared_cases_stay(reading: str) -> None:
    assert [text for text in CASES["kept"] if READINGS[reading](text) != text] == []


@pytest.mark.parametrize("reading", READINGS)
def test_a_secret_is_found_wherever_it_is_written(reading: str) -> None:
    assert [text for text in OWN_CASES if _secret_in(text) in READINGS[reading](text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "def login(user: str, password: str = PASSWORD, *, token_2: Token2) -> None:",
        "    password=password,",
        "self._token = token",
        "token = self.tokens[index1]",
        'headers = {"Authorization": f"Bearer {key}"}',
        'raise ValueError("the password is too short")',
        '"password": "Enter your password"',
        "tool --password PASSWORD  the password to use",
        "https://user:password@example.com/",
        "curl -u $USER:$PASS https://h",
        "mysql -u root -p shop",
        "API_KEY=your-api-key-here-1234",
        "const isTokenValid = validateToken2(token)",
        "https://example.com/search?q=1&page=2&sort_key=created_at_2024",
        "a = +4294967296  # 1 << 32",
        "git commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b -m 'rotate the api key'",
        "Cookie: theme=dark; lang=en",
        'if "-----BEGIN PRIVATE KEY-----" in text: return None',
        "tss_create_thread_local_storage prf_derive_session_key_material lip_sync_controller_instance",
    ],
)
def test_a_program_stays_what_it_is(text: str) -> None:
    assert redact_code(text) == text
