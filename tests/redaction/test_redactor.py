"""What becomes of a tool's result."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.models import errors as provider_errors
from hermes_worker.safety.redaction import Redactor, holds_marker, mark_secret, mask_known, prints_configuration

KEY = "ghp_" + "HsVJeM39xRFc8vDon3WHOi2MJrqLEpDcwJLA"


def test_a_result_is_read_text_by_text_and_stays_a_document() -> None:
    document = {
        "output": f"a\nTOKEN={KEY}\n" + 'say "hi"\n',
        "entries": [{"line": f"see {KEY}", "number": 3}, None, 1.5],
        "api_key": "Zx9Qw8Er7Ty6Ui5Op4As3",
    }

    hidden = json.loads(Redactor().redact_result(dump_canonical_json(document)))

    assert hidden == {
        "output": 'a\nTOKEN=«redacted:ghp_…»\nsay "hi"\n',
        "entries": [{"line": "see «redacted:ghp_…»", "number": 3}, None, 1.5],
        "api_key": "«redacted:Zx9Q…»",
    }


def test_a_result_without_a_secret_is_not_written_anew() -> None:
    text = '{ "output" : "caf\\u00e9", "n": 1.0 }'

    assert Redactor().redact_result(text) is text
    assert Redactor().redact_result("no document") == "no document"


def test_a_result_that_is_no_document_is_read_as_text() -> None:
    assert KEY not in Redactor().redact_result(f"{{broken {KEY}")


def test_nothing_is_hidden_when_it_is_switched_off() -> None:
    off = Redactor(is_on=False, known=("known-secret-1",))

    assert off.redact_result(f'{{"a": "{KEY} known-secret-1"}}') == f'{{"a": "{KEY} known-secret-1"}}'
    assert off.redact_printed(KEY) == KEY


@pytest.mark.parametrize("short", ["k", "secret7"])
def test_a_known_secret_is_hidden_wherever_it_stands_unless_it_is_short(short: str) -> None:
    redactor = Redactor(known=("plain words only", short))

    assert redactor.redact_text(f"xxplain words onlyxx check the {short}ey") == f"xx«redacted»xx check the {short}ey"
    assert mask_known(f"check the {short}ey", (short, "")) == f"check the {short}ey"


def test_a_key_of_one_letter_does_not_chew_up_messages() -> None:
    assert provider_errors.redact("check the key", ("k",)) == "check the key"
    assert provider_errors.redact("check hunter2hunter2", ("hunter2hunter2",)) == "check [redacted]"


def test_lines_stay_lines() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEabcdABCD1234\n" * 5 + "-----END RSA PRIVATE KEY-----\n"

    hidden = Redactor().redact_text(f"a\n{key}b\n")

    assert hidden.split("\n")[1] == "-----BEGIN RSA PRIVATE KEY-----"
    assert hidden.split("\n")[2:7] == ["«redacted»"] * 5
    assert hidden.endswith("-----END RSA PRIVATE KEY-----\nb\n")
    assert mark_secret("one\r\n\ntwo") == "«redacted»\r\n\n«redacted»"


@given(st.text(alphabet=st.sampled_from("aZ9_-=:/\"'\n «»…{}") | st.characters(), max_size=80))
def test_a_second_time_changes_nothing(text: str) -> None:
    redactor = Redactor(known=("known-secret",))
    once = redactor.redact_result(text)

    assert redactor.redact_result(once) == once
    assert redactor.redact_text(text).count("\n") == text.count("\n")


@pytest.mark.parametrize(
    ("text", "does"),
    [
        ("cat .env", True),
        ("cat config/.env.production", True),
        ("/home/u/.netrc", True),
        ("deploy/app.properties", True),
        ("env", True),
        ("env | sort", True),
        ("cd x && export -p", True),
        ("printenv HOME", True),
        ("ls; set", True),
        ("cat src/env.py", False),
        ("env FOO=1 make", False),
        ("set -e\nmake", False),
        ("export A=1; make", False),
        ("python environment.py", False),
        ("src/main.rs", False),
    ],
)
def test_commands_and_files_that_show_settings_are_known(text: str, does: bool) -> None:
    assert prints_configuration(text) is does


def test_settings_are_read_with_every_name_believed() -> None:
    line = "db_password: correcthorse"

    assert Redactor().redact_text(line) == line
    assert Redactor().redact_text(line, is_configuration=True) == "db_password: «redacted»"


def test_a_marker_is_known_again() -> None:
    assert holds_marker(mark_secret(KEY))
    assert holds_marker(mark_secret("x"))
    assert not holds_marker("a «quoted» word, redacted")
