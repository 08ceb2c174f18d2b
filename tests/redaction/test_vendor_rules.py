"""The published formats: where they come from, how they were translated, and that each is found and none is slow."""

from __future__ import annotations

import json
import random
import re
import re._constants as sre  # type: ignore[import-not-found]
import re._parser as sre_parser  # type: ignore[import-not-found]
import string
from importlib.resources import files
from typing import Any

import pytest
from support.measuring import processor_s

from hermes_worker.safety.redaction import redact_code
from hermes_worker.safety.redaction.rule_import import find_prefixes, import_rules, translate_pattern
from hermes_worker.safety.redaction.vendors import VendorRule, load_vendor_rules

_ALPHABET = (string.ascii_letters + string.digits + "_-").encode()


def _sample(items: Any, rng: random.Random) -> str:
    """A text that a parsed pattern matches."""
    text = ""
    for operation, argument in items:
        if operation is sre.LITERAL:
            text += chr(argument)
        elif operation is sre.IN:
            text += rng.choice(_members(argument))
        elif operation is sre.SUBPATTERN:
            text += _sample(argument[3], rng)
        elif operation is sre.BRANCH:
            text += _sample(rng.choice(argument[1]), rng)
        elif operation in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            low, high, inner = argument
            low = 20 if high is sre.MAXREPEAT and low < 2 else low
            text += "".join(_sample(inner, rng) for _ in range(rng.randint(low, min(int(high), low + 5))))
        else:
            assert operation is sre.AT
    return text


def _members(items: Any) -> str:
    found = ""
    for kind, detail in items:
        if kind is sre.LITERAL:
            found += chr(detail)
        elif kind is sre.RANGE:
            found += "".join(map(chr, range(detail[0], detail[1] + 1)))
        elif detail is sre.CATEGORY_DIGIT:
            found += string.digits
        else:
            found += _ALPHABET.decode()
    # Signs that part or pad a key come at its end in earnest.
    return "".join(char for char in found if char not in "=.") or found


def _key(rule: VendorRule) -> str:
    """As the vendor makes them: base64 of a document begins with what documents begin with."""
    rng = random.Random(rule.id)
    while True:
        key = _sample(sre_parser.parse(rule.pattern), rng)
        if rule.id == "grafana-cloud-api-token":
            return f"glc_eyJvIjoi{key[12:]}"
        if not rule.literals or key.lower().startswith(tuple(literal.decode() for literal in rule.literals)):
            return key


def test_a_key_of_every_published_format_is_hidden() -> None:
    for rule in load_vendor_rules():
        key = _key(rule)
        middle = key[len(key) // 2 - 3 : len(key) // 2 + 3]

        for text in (f"called with {key} and failed", f'x = "{key}"', f"key={key}\n", f'{{"a":"\\n{key}"}}'):
            assert key not in redact_code(text), (rule.id, key)
            assert middle not in redact_code(text) or len(key) < 18, (rule.id, key)


def test_the_rules_say_where_they_come_from() -> None:
    folder = files("hermes_worker.safety.redaction")
    document = json.loads(folder.joinpath("vendor_rules.json").read_bytes())

    assert "betterleaks" in document["source"]
    assert re.fullmatch(r"v\d+\.\d+\.\d+.*", document["version"])
    assert "MIT License" in folder.joinpath("vendor_rules.LICENSE").read_text(encoding="utf-8")
    assert len(load_vendor_rules()) > 200


@pytest.mark.parametrize(
    ("published", "pattern", "is_bounded"),
    [
        (r"""\b(p8e-(?i)[a-z0-9]{32})(?:[\x60'"\s;]|\\[nr]|$)""", "p8e-(?i:[a-z0-9]{32})", True),
        (r"""(?i)\b(r8_[A-Za-z0-9]{37})(?:\\?['"\x60]|[\s;]|\\[nr]|$)""", "(?i:r8_[A-Za-z0-9]{37})", True),
        (r"ghp_[0-9a-zA-Z]{36}", "ghp_[0-9a-zA-Z]{36}", False),
        (r"\b(sha256~[\w-]{43})(?:[^\w-]|\z)", r"sha256~[\w-]{43}", True),
        (r"\b(pat[[:alnum:]]{14}\.[a-f0-9]{64})\b", r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}", True),
        (
            r"""(?i)(?:crates(?:[_.-]?io)?)(?:[ \t\w.-]{0,20})[\s'"]{0,3}(?:=|>|,)[\x60'"\s=]{0,5}"""
            r"""(cio[A-Za-z0-9]{32})(?:\\?['"\x60]|[\s;]|\\[nr]|$)""",
            "(?i:cio[A-Za-z0-9]{32})",
            True,
        ),
    ],
)
def test_a_published_pattern_is_translated(published: str, pattern: str, is_bounded: bool) -> None:
    assert translate_pattern(published) == (pattern, is_bounded)


def test_only_rules_are_taken_that_know_a_key_by_its_beginning() -> None:
    rules = [
        {"id": "good", "regex": r"\b(abc_[a-z0-9]{32})\b", "filter": 'entropy(finding["secret"]) <= 3.0'},
        {"id": "beside-a-word", "regex": r"(?i)(?:adafruit)(?:[ \t\w.-]{0,20})[\s'\"]{0,3}(?:=)([a-z0-9_-]{32})"},
        {"id": "some-client-id", "regex": r"\b(abc_[a-z0-9]{32})\b", "skipReport": True},
        {"id": "no-beginning", "regex": r"\b([a-z0-9]{32})\b"},
        {"id": "no-regex"},
    ]

    [rule] = import_rules(rules)

    assert (rule["id"], rule["prefixes"], rule["entropy_min"]) == ("good", ["abc"], 3.0)
    assert find_prefixes("[sr]k_(?:live|test)_") == {"sk_", "rk_"}


def test_no_rule_takes_more_than_linear_time() -> None:
    """A text of every rule's own beginning, over and over: what would make a pattern try again and again."""

    def seconds(repeats: int) -> float:
        pieces = []
        for rule in load_vendor_rules():
            key = _key(rule)
            pieces += [(key[: len(key) // 2] * repeats)[: 100 * repeats], (rule.prefixes[0].decode() * 40 * repeats)]
        text = "\n".join(pieces)
        return processor_s(lambda: redact_code(text))

    seconds(1)
    # Eight times the text, about a megabyte in the end: eight times the work, or 64 times if it were quadratic.
    assert seconds(24) < 20 * max(seconds(3), 0.02)
