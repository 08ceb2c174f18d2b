"""Keys of vendors that the published rules lack: one row each, and what only looks alike.

The keys are put together here, so that no scanner of a host takes them for real.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from hermes_worker.safety.redaction import is_secret_name, mark_secret, redact, redact_code

MIXED = "Zx9Qw8Er" + "7Ty6Ui5Op4As3Df2Gh1Jk0Lz" + "Qx7Cv5Bn3Mq1Wz"
HEX = "5b4fa5ce" + "09d1e7a3" + "6c2b8f40" + "d9e1a7b5"
BASE32 = "k3q7zx2mv6n" + "w5t4rj7hq2ybd6pfu3gxe7k2sq4lm5aow6zt7vc3n"
READINGS: dict[str, Callable[[str], str]] = {
    "as text": redact,
    "as code": redact_code,
    "as code, with markers": partial(redact_code, masked_as=mark_secret),
}
KEYS = {
    "azure devops": f"{(MIXED * 2)[:52]}JQ" + f"QJ99{(MIXED * 2)[:18]}AZ" + "DO" + "4x7Q",
    "azure devops, of another make": f"{(MIXED * 2)[:76]}AZ" + "DO" + "1aB2",
    "pinecone": "pc" + f"sk_5Ty6U_{MIXED}{MIXED}"[:75],
    "e2b": "e2" + f"b_{HEX}{HEX[:8]}",
    "e2b access": "sk_e2" + f"b_{HEX}{HEX[:8]}",
    "modal id": "ak" + f"-{MIXED[:22]}",
    "modal secret": "as" + f"-{MIXED[4:26]}",
    "composio": "ak" + f"_{MIXED[:20]}",
    "composio user": "uak" + f"_{MIXED[:20]}",
    "resend": "re" + f"_{MIXED[:8]}_{MIXED[8:32]}",
    "mailchimp": f"{HEX}-" + "us21",
    "mandrill": "md" + f"-{MIXED[:22]}",
}


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("vendor", KEYS)
def test_a_key_is_known_by_its_shape(vendor: str, reading: str) -> None:
    key = KEYS[vendor]
    middle = key[len(key) // 2 - 4 : len(key) // 2 + 4]

    for text in (f"called with {key} and failed", f'x = "{key}"', f"URL=https://h/?a={key}&b=1", f'{{"a":"\\n{key}"}}'):
        hidden = READINGS[reading](text)
        assert key not in hidden
        assert middle not in hidden
        assert READINGS[reading](hidden) == hidden


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize(
    "text",
    [
        f"AZURE_DEVOPS_EXT_PAT={BASE32}",
        f"az devops login  # pat {BASE32}",
        f"the PAT of Azure DevOps is {BASE32}.",
        f"docker login -u bob -p {MIXED[:20]} registry.example.org",
        f"docker login registry.example.org --username bob -p '{MIXED[:20]}'",
        f"docker --config /x login -p{MIXED[:20]}",
        f"docker login \\\n  -u bob \\\n  -p {MIXED[:20]}",
        f"podman login -p={MIXED[:20]} quay.io",
        f"helm registry login -u bob -p {MIXED[:20]} h",
        f"az acr login -n r -u bob -p {MIXED[:20]}",
        "docker login -u bob -p " + "hunter22x" + " h",
        f"curl -H 'Authorization: SSWS 00{MIXED[:40]}' https://org.okta.com/api/v1/users",
        f"the header was SSWS 00{MIXED[:40]}",
        f'{{"authorization": "SSWS 00{MIXED[:40]}"}}',
    ],
)
def test_a_key_is_known_by_what_stands_before_it(text: str, reading: str) -> None:
    hidden = READINGS[reading](text)

    assert not any(secret in hidden for secret in (BASE32, MIXED[:20], "hunter22x"))
    assert hidden.count("\n") == text.count("\n")


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize(
    "text",
    [
        f"sha256 in base32: {BASE32}",
        f"commit {HEX}00112233",
        f"md5 {HEX} of logo-us.png",
        f"{HEX}-us-east",
        "ak-button-primary-large-on-dark as-const-assertion-of-types md-button-secondary-large",
        "import re_compile_the_pattern_again_and_again from ak_helpers_for_all_the_tests",
        "re_exports_everything_that_was_there e2b_sandbox_template_of_ours pcsk_convertase",
        "as-XmlHttpRequest md-icon-button-16px",
        "docker run --name login -p 8080:80 nginx",
        "docker compose -p shop up",
        "docker login -u bob -p $PASSWORD h",
        "docker login --password-stdin < file",
        "ssh login -p 2222",
        "SSWS is what Okta calls its scheme of tokens",
        "an AZDO board and its JQQJ99 sign",
        "PWD=/home/alice/projects/app1x9\nOLDPWD=/var/lib/x8y7z6w5",
        'declare -x OLDPWD="/home/bob/w0rk9"\ndeclare -x PWD="/srv/a1b2 c3d4e5f6"',
        '{"PWD": "/w0rk/x9y8z7"}',
        "PWD=~/x9y8z7w6",
        "PWD=C:\\Users\\x9y8z7w6",
        "PWD=/root",
    ],
)
def test_what_only_looks_alike_stays(text: str, reading: str) -> None:
    assert READINGS[reading](text) == text


def test_where_a_shell_is_is_no_secret_and_a_password_of_the_same_name_is() -> None:
    assert not is_secret_name("PWD")
    assert not is_secret_name("OLDPWD")
    assert is_secret_name("DB_PWD")
    assert is_secret_name("pwd")
    assert "hunter22x" not in redact("Server=h;UID=sa;PWD=hunter22x;")
    assert "hunter22x" not in redact("PWD=hunter22x")
    assert "hunter22x" not in redact("MYSQL_PWD=hunter22x")
