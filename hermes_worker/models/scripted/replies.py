"""Files of replies for the scripted model: written scripts, recorded bytes of a provider (a *cassette*), or both.

A file is a list in YAML. An entry with ``when`` is a written script, in the form of ``script``, for messages that the
pattern is found in; its named groups can stand in braces wherever ``{i}`` can:

    - when: Pack order (?P<number>[0-9]+)
      steps:
      - calls: [{name: pack, arguments: {order: "{number}"}}]
      final: Order {number} is packed.

An entry with ``body`` is an answer of a provider, byte for byte. ``user`` is the newest text of the user in its request
and ``replies`` how many messages of the model the request had. So a request that is repeated gets the same answer, and
a prompt that another version words differently still finds it.

A recording has the path, the status, the type of the content and the body of each answer, and nothing else: no
headers, and no request beyond the text of the user. What looks like a credential is masked; an answer in which one is
spread over several events cannot be masked and is not recorded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from hermes_worker.models.scripted.reply import Reply
from hermes_worker.models.scripted.script import Script
from hermes_worker.models.scripted.transcript import read_content_text
from hermes_worker.safety.redaction import mask_known, redact_code

_OF_MODELS = frozenset({"assistant", "model"})
_ITEMS_OF_MODELS = frozenset({"function_call", "reasoning"})
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class InvalidReplies(ValueError):
    """A file of replies cannot be used; the message says why."""


class UnrecordedRequest(LookupError):
    """A file with recorded answers has none for this request."""


class HoldsSecret(ValueError):
    """An answer holds what looks like a credential, in pieces that cannot be masked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAnswer:
    """An answer of a provider."""

    user: str
    replies: int
    path: str
    status: int
    type: str
    """The type of the content."""
    body: str | bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenScript:
    """A script for the messages that its pattern is found in."""

    when: re.Pattern[str]
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReplyFile:
    """What the scripted model says to which request."""

    recorded: tuple[RecordedAnswer, ...] = ()
    written: tuple[WrittenScript, ...] = ()

    def find_answer(self, path: str, request: Mapping[str, Any]) -> RecordedAnswer | None:
        """Find the recorded answer to a request; ``None`` when the file has no recorded answers. Raises
        ``UnrecordedRequest``."""
        if not self.recorded:
            return None
        user, replies = read_place(request)
        found = [one for one in self.recorded if one.replies == replies and _have_same_end(one.path, path)]
        same = [one for one in found if one.user == _mask(user)] or found
        if len({one.user for one in same}) == 1:
            return same[-1]  # the answers before it were refusals, after which the client asked again
        raise UnrecordedRequest(
            f"{len(same)} recorded answers fit message {replies} of the model after {user[:200]!r}: record again"
        )

    def find_reply(self, request: Mapping[str, Any]) -> Reply | None:
        """Find the next reply of the script that is written for a request's newest message; ``None`` when none is, or
        its script has come to its end. Raises ``InvalidScript``."""
        user, _ = read_place(request)
        for one in self.written:
            if (match := one.when.search(user)) is not None:
                rows = _list_rows(request)
                newest = max((number for number, row in enumerate(rows) if _says_user(row)), default=0)
                names = {name: value or "" for name, value in match.groupdict().items()}
                script = Script(one.document, sum(row.get("role") == "assistant" for row in rows[newest:]), names)
                return None if script.is_finished else script.take_next_reply()
        return None


NO_REPLIES = ReplyFile()


def load_replies(path: Path) -> ReplyFile:
    """Load a file of replies. Raises ``InvalidReplies``."""
    try:
        entries = yaml.load(path.read_text(encoding="utf-8"), _LOADER)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InvalidReplies(f"{str(path)!r} cannot be read: {error}") from None
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise InvalidReplies(f"{str(path)!r} is no list of entries: docs/testing.md shows one")
    try:
        return ReplyFile(
            tuple(RecordedAnswer(**one) for one in entries if "body" in one),
            tuple(_read_written(one) for one in entries if "body" not in one),
        )
    except (TypeError, KeyError, re.error) as error:
        raise InvalidReplies(f"{str(path)!r} has an entry that cannot be used: {error}") from None


def _read_written(entry: Mapping[str, Any]) -> WrittenScript:
    return WrittenScript(when=re.compile(str(entry["when"])), document=entry)


def read_place(request: Mapping[str, Any]) -> tuple[str, int]:
    """Read the user's newest text, and how many messages of the model a request has, in the form of any wire."""
    rows = _list_rows(request)
    text = request.get("input")
    usual = text if isinstance(text, str) else ""
    spoken = next((_read_text(row) for row in reversed(rows) if _says_user(row)), usual)
    return spoken, sum(row.get("role") in _OF_MODELS or row.get("type") in _ITEMS_OF_MODELS for row in rows)


def _list_rows(request: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = next(
        (rows for name in ("messages", "input", "contents") if isinstance(rows := request.get(name), list)), []
    )
    return [row for row in found if isinstance(row, dict)]


def _says_user(row: Mapping[str, Any]) -> bool:
    return row.get("role") == "user" and bool(_read_text(row))


def _read_text(row: Mapping[str, Any]) -> str:
    return read_content_text(row if "content" in row else {"content": row.get("parts")})


def _have_same_end(one: str, other: str) -> bool:
    """Whether two paths name the same operation, below different addresses."""
    return one.rpartition("/")[2] == other.rpartition("/")[2]


# --- recording ---


def append_answer(
    file: Path, request: Mapping[str, Any], *, path: str, status: int, kind: str, body: bytes, secrets: Iterable[str]
) -> None:
    """Append an answer to a recording. ``secrets`` are credentials of the request. Raises ``HoldsSecret``."""
    user, replies = read_place(request)
    try:
        text: str | bytes = mask_known(_mask(body.decode("utf-8")), secrets)
    except UnicodeDecodeError:
        text = body
    if isinstance(text, str) and any(_mask(said) != said for said in _join_pieces(text)):
        raise HoldsSecret("what looks like a credential is spread over several events of the answer")
    answer = RecordedAnswer(
        user=mask_known(_mask(user), secrets), replies=replies, path=path, status=status, type=kind, body=text
    )
    entry = yaml.dump([asdict(answer)], Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000)
    with file.open("a", encoding="utf-8") as opened:
        opened.write(entry.removesuffix("...\n"))  # the end of a document, where a text ends with empty lines


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such, so that people can read a recording and its changes."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _mask(text: str) -> str:
    return redact_code(text)


def _join_pieces(body: str) -> Iterable[str]:
    """Join the pieces of a stream's texts, each kind of text by itself."""
    pieces: dict[tuple[str, ...], list[str]] = {}
    for line in body.splitlines():
        try:
            document = json.loads(line.removeprefix("data:"))
        except (ValueError, RecursionError):
            continue
        for place, text in _walk(document, ()):
            pieces.setdefault(place, []).append(text)
    # What every event repeats, such as the id of the answer, is no text in pieces.
    return ["".join(texts if len(set(texts)) > 1 else texts[:1]) for texts in pieces.values()]


def _walk(value: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _walk(each, (*place, name))
    elif isinstance(value, list):
        for each in value:
            yield from _walk(each, place)
