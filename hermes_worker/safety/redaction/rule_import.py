"""Makes ``vendor_rules.json`` from the published rules of Betterleaks, the successor of Gitleaks.

``python -m hermes_worker.safety.redaction.rule_import betterleaks.toml VERSION > vendor_rules.json``

Only rules that know a key by its own shape are taken: those whose pattern begins with letters that nothing but the
vendor's keys begins with. Rules that need a word beside the key ("adafruit ... 32 hex digits") are left to
``names``, identifiers that are no secret are left out, and what a rule says around the key (the boundary before it, the
quote behind it) is cut off, because ``vendors`` looks at the text's words itself. Patterns are published for Go's RE2;
what Python spells differently is translated, and a pattern that cannot be is left out and named on stderr.
"""

from __future__ import annotations

import json
import re
import re._constants as sre  # type: ignore[import-not-found]
import re._parser as sre_parser  # type: ignore[import-not-found]
import sys
import tomllib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

__all__ = ["find_prefixes", "import_rules", "translate_pattern"]

SOURCE = "https://github.com/betterleaks/betterleaks, config/betterleaks.toml"
LICENCE = "MIT; see vendor_rules.LICENSE beside this file"
PREFIX_CHARS = 3
"""A rule is looked up by this many characters, folded to lower case."""
_PREFIXES_MAX = 64
_CONTEXT = re.compile(r"^(?:\(\?i\))?(?:\[\\w\.-\]\{0,50\}\?)?\(\?:.*?\)\(\?:\[ \\t\\w\.-\]\{0,20\}\).*?\{0,5\}(?=\()")
"""The part of a rule that wants the vendor's name and a sign of assignment before the key."""
_ENDINGS = (
    r"""(?:\\?['"\x60]|[\s;]|\\[nr]|$)""",
    r"""(?:[\x60'"\s;]|\\[nr]|$|\b)""",
    r"""(?:[\x60'"\s;]|\\[nr]|$)""",
    r"(?:[^A-Za-z0-9_-]|$)",
    r"(?:$|[^A-Za-z0-9_-])",
    r"(?:[^\w-]|\z)",
    r"(?:[^\w\/+=-]|\z)",
    r"(?:[^a-zA-Z0-9+/]|\z)",
    r"\b",
)
_BEGINNINGS = (r"(?:^|[^A-Za-z0-9_-])", r"\b")
_ENTROPY = re.compile(r"entropy\(finding\[\"secret\"\]\) <=? ([0-9.]+)")
_NOT_KEYS = re.compile(
    r"-(?:url|host|domain|username|client-id|app-id|name)(?:\.\d+)?$|-pub(?:lic)?-|-project-api-key$|^jwt|private-key$"
    r"|webhook|^generic-|-session-cookie$|^endorlabs-|^authress-|incoming-mail-address"
)
_SUPABASE = "supabase-project-api-key"
"""Named like a public key, but a secret one."""
_TOKEN_CHARS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_FOREIGN = frozenset(b" \t\r\n\"'`<>;&?#")
"""Characters that no key contains: a pattern that may match one of these describes the text around a key."""
WORD_CHARS_MIN = 13
"""A key that begins with so many characters of a word is found by looking at the words of a text."""


def import_rules(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rules to keep, as they stand in the file."""
    kept = []
    for rule in rules:
        if (
            rule.get("skipReport")
            or not rule.get("regex")
            or (_NOT_KEYS.search(rule["id"]) and rule["id"] != _SUPABASE)
        ):
            continue
        taken = _import_rule(rule)
        if taken is not None:
            kept.append(taken)
    return kept


def _import_rule(rule: dict[str, Any]) -> dict[str, Any] | None:
    try:
        pattern, is_bounded = translate_pattern(rule["regex"])
        prefixes = find_prefixes(pattern)
    except (re.error, ValueError) as error:
        print(f"{rule['id']}: {error}", file=sys.stderr)  # noqa: T201 - what a person runs by hand
        return None
    items = list(sre_parser.parse(pattern))
    if not prefixes or _is_about_surroundings(items):
        return None
    word_chars = _count_word_chars_min(items)[0]
    literals = [] if word_chars >= WORD_CHARS_MIN else _find_literals(items)
    if word_chars < WORD_CHARS_MIN and not literals:
        return None
    entropy = _ENTROPY.search(rule.get("filter", ""))
    return {
        "id": rule["id"],
        "prefixes": sorted(prefixes),
        "literals": literals,
        "pattern": pattern,
        "is_bounded": is_bounded,
        "entropy_min": float(entropy[1]) if entropy else 0.0,
    }


def translate_pattern(pattern: str) -> tuple[str, bool]:
    """The pattern of the key alone for Python's ``re``, and whether a key ends where it ends. Raises ``re.error``,
    ``ValueError``."""
    ignores_case = pattern.startswith("(?i)")
    pattern = _CONTEXT.sub("", pattern).removeprefix("(?i)")
    is_bounded = False
    for ending in _ENDINGS:
        if pattern.endswith(ending):
            pattern, is_bounded = pattern.removesuffix(ending), True
            break
    for beginning in _BEGINNINGS:
        pattern = pattern.removeprefix(beginning)
    pattern = pattern.replace("[[:alnum:]]", "[A-Za-z0-9]").replace(r"\z", r"\Z")
    pattern = _confine_flags(_strip_group(pattern))
    if ignores_case:
        pattern = f"(?i:{pattern})"
    re.compile(pattern.encode())
    return pattern, is_bounded


def _strip_group(pattern: str) -> str:
    """The pattern without the capturing group around all of it."""
    if not pattern.startswith("(") or pattern.startswith("(?") or _find_closing(pattern, 0) != len(pattern) - 1:
        return pattern
    return pattern[1:-1]


def _find_closing(pattern: str, start: int) -> int:
    """The position at which the group that opens at ``start`` closes. Raises ``ValueError``."""
    depth, is_class, skip = 0, False, False
    for at, char in islice(enumerate(pattern), start, None):
        if skip:
            skip = False
        elif char == "\\":
            skip = True
        elif is_class:
            is_class = char != "]"
        elif char == "[":
            is_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
            if depth == 0:
                return at
    raise ValueError("a group is not closed")


def _confine_flags(pattern: str) -> str:
    """``x(?i)y`` as ``x(?i:y)``: RE2 lets a flag begin in the middle of a group and hold to its end."""
    at = pattern.find("(?i)")
    if at < 0:
        return pattern
    rest = pattern[at + 4 :]
    end = _find_scope_end(rest)
    return _confine_flags(f"{pattern[:at]}(?i:{rest[:end]}){rest[end:]}")


def _find_scope_end(rest: str) -> int:
    try:
        return _find_closing(f"({rest}", 0) - 1
    except ValueError:
        return len(rest)


def find_prefixes(pattern: str) -> frozenset[str]:
    """The beginnings of a key: every possible one of ``PREFIX_CHARS`` characters, in lower case. Empty when there are
    too many, or when a beginning may be shorter.
    """
    found = _extend_beginnings(list(sre_parser.parse(pattern)), frozenset({""}))
    complete = frozenset(prefix.lower() for prefix in found)
    return complete if all(len(prefix) == PREFIX_CHARS for prefix in complete) else frozenset()


def _extend_beginnings(items: list[Any], found: frozenset[str]) -> frozenset[str]:
    for operation, argument in items:
        if all(len(prefix) >= PREFIX_CHARS for prefix in found):
            break
        found = _extend_by_item(operation, argument, found)
        if not found or len(found) > _PREFIXES_MAX:
            return frozenset()
    return frozenset(prefix[:PREFIX_CHARS] for prefix in found)


def _extend_by_item(operation: Any, argument: Any, found: frozenset[str]) -> frozenset[str]:
    """The beginnings with one more item of the pattern; empty when it may be too much."""
    if operation is sre.LITERAL:
        return frozenset(prefix + chr(argument) for prefix in found)
    if operation is sre.SUBPATTERN:
        return _extend_beginnings(list(argument[3]), found)
    if operation is sre.BRANCH:
        return frozenset().union(*(_extend_beginnings(list(branch), found) for branch in argument[1]))
    if operation is sre.IN and all(kind is sre.LITERAL for kind, _ in argument):
        return frozenset(prefix + chr(code) for prefix in found for _, code in argument)
    return frozenset()


def _is_about_surroundings(items: Sequence[Any]) -> bool:
    for operation, argument in items:
        if operation in (sre.ANY, sre.NOT_LITERAL, sre.CATEGORY):
            return True
        if operation is sre.LITERAL and argument in _FOREIGN:
            return True
        if operation is sre.IN and any(kind is sre.NEGATE or detail is sre.CATEGORY_SPACE for kind, detail in argument):
            return True
        if any(_is_about_surroundings(inner) for inner in _list_inner_items(operation, argument)):
            return True
    return False


def _list_inner_items(operation: Any, argument: Any) -> list[Sequence[Any]]:
    if operation is sre.SUBPATTERN:
        return [list(argument[3])]
    if operation is sre.BRANCH:
        return [list(branch) for branch in argument[1]]
    if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        return [list(argument[2])]
    return []


def _count_word_chars_min(items: Sequence[Any]) -> tuple[int, bool]:
    """The least number of word characters that the pattern begins with, and whether all of it is such characters."""
    total = 0
    for operation, argument in items:
        if operation is sre.BRANCH:
            branches = [_count_word_chars_min(inner) for inner in _list_inner_items(operation, argument)]
            count, is_all = min(count for count, _ in branches), all(is_all for _, is_all in branches)
        elif operation is sre.MAX_REPEAT:
            count, is_all = _count_word_chars_min(list(argument[2]))
            count, is_all = count * argument[0], is_all and argument[0] > 0
        elif operation is sre.SUBPATTERN:
            count, is_all = _count_word_chars_min(list(argument[3]))
        else:
            count = is_all = _is_word_item(operation, argument)
        total += count
        if not is_all:
            return total, False
    return total, True


def _is_word_item(operation: Any, argument: Any) -> bool:
    if operation is sre.LITERAL:
        return argument in _TOKEN_CHARS
    # Random text of such a class does not hold the signs that pad or part it, so they do not end the word.
    return operation is sre.IN and all(
        (kind is sre.LITERAL and (detail in _TOKEN_CHARS or detail in b"=."))
        or (kind is sre.RANGE and set(range(detail[0], detail[1] + 1)) <= _TOKEN_CHARS)
        or (kind is sre.CATEGORY and detail in (sre.CATEGORY_DIGIT, sre.CATEGORY_WORD))
        for kind, detail in argument
    )


def _find_literals(items: Sequence[Any]) -> list[str]:
    """The letters that the keys begin with, in lower case, without those that would be found in every other line."""
    found = sorted({text.lower() for text, _ in _find_openings(items)})
    return [text for text in found if len(text) > PREFIX_CHARS or (len(text) == PREFIX_CHARS and not text.isalnum())]


def _find_openings(items: Sequence[Any]) -> list[tuple[str, bool]]:
    """The fixed beginnings of what ``items`` match, each with whether all of it is fixed."""
    found = [("", True)]
    for operation, argument in items:
        if operation is sre.LITERAL:
            more = [(chr(argument), True)]
        elif operation in (sre.SUBPATTERN, sre.BRANCH):
            more = [opening for inner in _list_inner_items(operation, argument) for opening in _find_openings(inner)]
        else:
            more = [("", False)]
        found = [
            (text + longer, is_longer) if is_fixed else (text, False)
            for text, is_fixed in found
            for longer, is_longer in (more if is_fixed else more[:1])
        ]
    return found


def main(path: str, version: str) -> None:
    """Print the file made of the rules at ``path``; ``version`` is theirs."""
    rules = import_rules(tomllib.loads(Path(path).read_text(encoding="utf-8"))["rules"])
    document = {"source": SOURCE, "version": version, "licence": LICENCE}
    lines = ",\n".join(f"  {json.dumps(rule)}" for rule in rules)
    print(f'{json.dumps(document)[:-1]},\n "rules": [\n{lines}\n ]}}')  # noqa: T201 - its output


if __name__ == "__main__":
    main(*sys.argv[1:])
