"""Files that a text asks to send along, and which of them may leave.

A text names a file with ``MEDIA:<path>``. What a model writes is steered by everything it has read, so a path is only a
wish: it is looked up, followed to the real file and judged before anything is opened. The caller passes in the function
that looks; the file is then to be opened at the *judged* path without following links.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from hermes_worker.core.media_kinds import MediaKind

DIRECTIVES_MAX = 20
"""Most directives of one text; the rest are left in it."""
PATH_CHARS_MAX = 1024
RECENT = timedelta(seconds=600)

_EXTENSIONS = {
    "voice": "ogg opus oga",
    "audio": "mp3 wav m4a flac aac",
    "video": "mp4 mov avi mkv webm 3gp m4v mpeg mpg",
    "image": "jpg jpeg png webp gif",
    "document": (
        "pdf txt md rst rtf tex csv tsv json jsonl xml html htm css yaml yml toml ini cfg conf log patch diff "
        "zip tar gz tgz bz2 xz 7z rar doc docx xls xlsx ppt pptx odt ods odp pages numbers epub mobi "
        "svg bmp tiff tif heic avif ics vcf eml py js ts tsx jsx sh sql ipynb parquet c cpp h rs go java rb php db"
    ),
}


_KIND_OF = {extension: MediaKind(kind) for kind, extensions in _EXTENSIONS.items() for extension in extensions.split()}


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPicture:
    """A picture that a text names by its address."""

    url: str
    label: str = ""

    @property
    def link(self) -> str:
        """A link to show where the picture itself cannot be sent."""
        return f"[{self.label or self.url}]({self.url})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractedMedia:
    """A text without its directives, and what the directives asked for."""

    text: str
    paths: tuple[str, ...] = ()
    """The paths as written, each once."""
    audio_as_voice: bool = False
    as_document: bool = False
    pictures: tuple[MediaPicture, ...] = ()
    """The pictures, each address once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """The facts about the file at a path."""

    real_path: str
    """Absolute, every link followed."""
    is_regular: bool
    size: int
    """Bytes."""
    modified_at: datetime


Look = Callable[[str], FileFacts | None]
"""Looks at a path; ``None`` when there is nothing. The caller interprets relative paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPolicy:
    """Which files may be sent."""

    allowed_roots: tuple[str, ...]
    """Real paths below which every file but credentials may leave: the session's workspace, caches."""
    denied_prefixes: tuple[str, ...] = ()
    """Real paths below which nothing may leave; see ``list_denied_prefixes``."""
    is_strict: bool = True
    """Whether outside the allowed roots only files written in the last ten minutes may leave. Otherwise, as in Hermes
    Agent by default, every file may that is not denied."""
    size_max: int = 50_000_000
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFile:
    """A file that may be sent."""

    path: str
    """The real path: the one to open."""
    name: str
    kind: MediaKind
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRefusal:
    """A file that may not be sent, with a sentence for the person who waits for it."""

    path: str
    reason: str


def extract_media(text: str, look: Look, *, has_pictures: bool = False) -> ExtractedMedia:
    """Remove the ``MEDIA:`` directives and the ``[[…]]`` flags from ``text``, and unless the platform itself shows them
    (``has_pictures``) also the addresses of pictures. Directives in code, quotations and JSON are talk about directives
    and stay."""
    protected = _find_protected_spans(text)
    spans: list[tuple[int, int]] = []
    paths: list[str] = []
    flags: set[str] = set()
    for match in _FLAG.finditer(text):
        if not _is_within(match.start(), protected):
            flags.add(match["flag"])
            spans.append(match.span())
    for start, end, path in _find_directives(text, protected, look):
        spans.append((start, end))
        paths.append(path)
    pictures = [] if has_pictures else list(_find_pictures(text, protected))
    spans += [span for span, _ in pictures]
    return ExtractedMedia(
        text=_remove_spans(text, spans) if spans else text,
        paths=tuple(dict.fromkeys(paths)),
        audio_as_voice="audio_as_voice" in flags,
        as_document="as_document" in flags,
        pictures=tuple({picture.url: picture for _, picture in pictures}.values()),
    )


def judge_media(path: str, *, policy: MediaPolicy, look: Look, now: datetime) -> MediaFile | MediaRefusal:
    """Judge whether the file at ``path`` may be sent, and as what."""
    if not path.startswith("/") or "\0" in path or len(path) > PATH_CHARS_MAX:
        return MediaRefusal(path=path, reason="it is not an absolute path")
    facts = look(path)
    if facts is None or not facts.is_regular:
        return MediaRefusal(path=path, reason="there is no such file")
    reason = _explain_policy_refusal(facts, policy, now)
    if reason is not None:
        return MediaRefusal(path=path, reason=reason)
    name = PurePosixPath(facts.real_path).name
    return MediaFile(path=facts.real_path, name=name, kind=choose_media_kind(name), size=facts.size)


def choose_media_kind(name: str) -> MediaKind:
    """Choose the kind of a file by its extension; an unknown one is a document."""
    return _KIND_OF.get(_read_extension(name), MediaKind.DOCUMENT)


def choose_sent_kind(file: MediaFile, wishes: ExtractedMedia) -> MediaKind:
    """Choose the kind to send a file as, given the flags of the text."""
    if wishes.as_document:
        return MediaKind.DOCUMENT
    return MediaKind.VOICE if wishes.audio_as_voice and file.kind is MediaKind.AUDIO else file.kind


def list_denied_prefixes(home: str, hermes_home: str) -> tuple[str, ...]:
    """List the places of credentials, of the system, and of this product (other sessions work there), for a user's home
    directory."""
    system = ("/etc", "/proc", "/sys", "/dev", "/root", "/boot", "/var/log", "/var/lib", "/var/run", "/run")
    personal = (".ssh", ".aws", ".gnupg", ".kube", ".docker", ".config", ".azure", ".gcloud", ".netrc", ".pgpass")
    return (*system, *(f"{home}/{name}" for name in personal), hermes_home)


# --- directives ------------------------------------------------------------------------------------------------------

_KNOWN = "|".join(sorted(_KIND_OF, key=len, reverse=True))
_FLAG = re.compile(r"\[\[(?P<flag>audio_as_voice|as_document)\]\]")
_DIRECTIVE = re.compile(
    rf"(?<![\w`\"'])MEDIA:[ \t]*(?:`(?P<ticked>[^`\n]{{1,{PATH_CHARS_MAX}}})`"
    rf"|\"(?P<double>[^\"\n]{{1,{PATH_CHARS_MAX}}})\"|'(?P<single>[^'\n]{{1,{PATH_CHARS_MAX}}})'"
    rf"|(?P<bare>[^\s`\"']{{1,{PATH_CHARS_MAX}}}))"
)
_WITH_SPACES = re.compile(rf"[^\n`\"']{{1,255}}?\.(?:{_KNOWN})(?=[\s.,;:!?)\]}}*_]|$)", re.IGNORECASE)
_TRAILING = ".,;:!?)]}>*_"

_CODE_BLOCK = re.compile(
    r"^ {0,3}(?P<fence>`{3,}|~{3,})[^\n]*$.*?(?:^ {0,3}(?P=fence)[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
# The backticks of a quoted path are not code; ignoring them keeps the pairs of the others in step.
_INLINE_CODE = re.compile(r"MEDIA:[ \t]*`[^`\n]+`|(?P<code>(?<!`)(?P<ticks>`{1,2})(?!`)[^\n]*?(?<!`)(?P=ticks)(?!`))")
_QUOTATION = re.compile(r"^[ \t]*>[^\n]*$", re.MULTILINE)
_JSON_STRING = re.compile(r"(?:\"[^\"\n]{0,200}\"[ \t]*:|[\[,])[ \t]*\"(?:[^\"\\\n]|\\.)*\"")


_PICTURE = re.compile(
    r"!\[(?P<label>[^\[\]\n]{0,300})\]\((?P<url>https?://[^\s()<>\"]{1,2000})(?:[ \t]+\"[^\"\n]{0,300}\")?\)"
    r"|<img\b(?=[^<>]{0,1000}?\salt=[\"'](?P<alt>[^\"'<>]{0,300})[\"'])?[^<>]{0,1000}?\ssrc=[\"'](?P<src>https?://[^\s\"'<>]{1,2000})[\"']"
    r"[^<>]{0,1000}>(?:[ \t]*</img>)?",
    re.IGNORECASE,
)
_PICTURE_HOSTS = ("fal.media", "fal-cdn.", "replicate.delivery")
"""Hosts of services that make pictures and name them without an extension (Hermes Agent's list)."""


def _find_pictures(text: str, protected: list[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], MediaPicture]]:
    count = 0
    for match in _PICTURE.finditer(text):
        url = match["url"] or html.unescape(match["src"])
        is_picture = (
            match["src"] or choose_media_kind(urlsplit(url).path) is MediaKind.IMAGE or _is_of_picture_host(url)
        )
        if is_picture and count < DIRECTIVES_MAX and not _is_within(match.start(), protected):
            count += 1
            yield match.span(), MediaPicture(url=url, label=match["label"] or match["alt"] or "")


def _is_of_picture_host(url: str) -> bool:
    host = urlsplit(url).netloc.lower()
    return any(named in host for named in _PICTURE_HOSTS)


def _find_protected_spans(text: str) -> list[tuple[int, int]]:
    spans = [match.span("code") for match in _INLINE_CODE.finditer(text) if match["code"] is not None]
    for expression in (_CODE_BLOCK, _QUOTATION, _JSON_STRING):
        spans += [match.span() for match in expression.finditer(text)]
    return spans


def _is_within(position: int, spans: list[tuple[int, int]]) -> bool:
    return any(start <= position < end for start, end in spans)


def _find_directives(text: str, protected: list[tuple[int, int]], look: Look) -> Iterator[tuple[int, int, str]]:
    count = 0
    for match in _DIRECTIVE.finditer(text):
        if count == DIRECTIVES_MAX:
            return
        if _is_within(match.start(), protected):
            continue
        quoted = match["ticked"] or match["double"] or match["single"]
        found = (
            (match.end(), quoted.strip()) if quoted else _find_bare_path(text, match.start("bare"), match["bare"], look)
        )
        if found is not None:
            count += 1
            yield match.start(), found[0], found[1].removeprefix("file://")


def _find_bare_path(text: str, start: int, word: str, look: Look) -> tuple[int, str] | None:
    """Find where an unquoted path ends; ``None`` unless it has a known extension or a file is there: the text only
    talks about something."""
    path = word.rstrip(_TRAILING)
    if _read_extension(path) in _KIND_OF:
        return start + len(path), path
    spaced = _WITH_SPACES.match(text, start)
    if spaced is not None and look(spaced[0]) is not None:
        return spaced.end(), spaced[0]
    if path.startswith("/") and "." not in PurePosixPath(path).name and look(path) is not None:
        return start + len(path), path
    return None


def _remove_spans(text: str, spans: list[tuple[int, int]]) -> str:
    kept, position = [], 0
    for start, end in sorted(spans):
        kept.append(text[position:start])
        position = max(position, end)
    kept.append(text[position:])
    lines = "\n".join(line.rstrip() for line in "".join(kept).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines).strip()


def _read_extension(name: str) -> str:
    return PurePosixPath(name).suffix[1:].lower()


# --- policy ----------------------------------------------------------------------------------------------------------

_CREDENTIAL_NAMES = re.compile(
    r"\.env(?:\..+)?|\.envrc|auth\.json|credentials(?:\.json)?|\.netrc|\.pgpass|\.npmrc|\.pypirc|\.git-credentials"
    r"|id_(?:rsa|dsa|ecdsa|ed25519)|authorized_keys|.+\.(?:pem|key|p12|pfx|kdbx|keystore)",
    re.IGNORECASE,
)


def _explain_policy_refusal(facts: FileFacts, policy: MediaPolicy, now: datetime) -> str | None:
    real = PurePosixPath(facts.real_path)
    if not real.is_absolute() or ".." in real.parts:
        return "its real path is not known"
    if _CREDENTIAL_NAMES.fullmatch(real.name) and real.name.lower() != ".env.example":
        return "files of that name hold credentials"
    if facts.size > policy.size_max:
        return f"it has more than {policy.size_max} bytes"
    if _is_below(real, policy.allowed_roots):
        return None
    if _is_below(real, policy.denied_prefixes):
        return "files from there are never sent"
    if policy.is_strict and not timedelta() <= now - facts.modified_at <= RECENT:
        return "it lies outside the workspace"
    return None


def _is_below(path: PurePosixPath, roots: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(root) for root in roots)
