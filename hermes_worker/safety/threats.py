"""Text that tries to take over an agent, as data: patterns with an id each, and what is scanned with which of them.

Two tables, both from the original, with our own expressions:

* ``PATTERNS`` for text that reaches a prompt: context files, memory, tool results, skills. A pattern has a scope, and a
  scan takes the patterns of its scope and of the scopes inside it: all < context < strict.
* ``JOB_PATTERNS`` for scheduled jobs, which run unattended. What the user wrote is scanned with all of them; the
  assembled prompt, which may quote a runbook that *describes* an attack, only with the directives.

Scanning is advice and a tripwire, not a boundary: what an agent may do is decided by its tools and its workspace.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from hermes_worker.core.invisible_characters import is_part_of_emoji
from hermes_worker.safety.redaction.vendors import holds_vendor_key

WINDOW_CHARS = 65_536
"""Text is scanned in windows of this size, so that the time grows with its length and nothing hides behind padding."""
OVERLAP_CHARS = 4_096


class ThreatScope(StrEnum):
    """The kinds of scanned text."""

    ALL = "all"
    """Text from anywhere."""
    CONTEXT = "context"
    """Files, memory and tool results: others may have written them."""
    STRICT = "strict"
    """Text that is about to be kept, as memory or as a skill, while it can still be refused."""


_INCLUDED = {
    ThreatScope.ALL: (ThreatScope.ALL,),
    ThreatScope.CONTEXT: (ThreatScope.ALL, ThreatScope.CONTEXT),
    ThreatScope.STRICT: (ThreatScope.ALL, ThreatScope.CONTEXT, ThreatScope.STRICT),
}


@dataclass(frozen=True, slots=True)
class ThreatPattern:
    """``expression`` is matched against NFKC-folded lower-case text. Repetitions are bounded."""

    id: str
    scope: ThreatScope
    expression: re.Pattern[str]


def _build_pattern(identifier: str, scope: ThreatScope, expression: str) -> ThreatPattern:
    # <some> stands for up to eight words between the telling ones, <line> for the rest of a command line.
    expanded = expression.replace("<some>", r"(?:\w+\s+){0,8}").replace("<line>", r"[^\n]{0,1024}")
    return ThreatPattern(identifier, scope, re.compile(expanded.replace("<secret>", _SECRET_VARIABLE)))


_SECRET_VARIABLE = r"\$\{?\w*(?:key|token|secret|password|credential)s?\b"

HARDCODED_SECRET = "hardcoded_secret"

PATTERNS: tuple[ThreatPattern, ...] = (
    _build_pattern(
        "prompt_injection", ThreatScope.ALL, r"\bignore\s+<some>(?:previous|prior|above|all)\s+<some>instructions\b"
    ),
    _build_pattern(
        "sys_prompt_override",
        ThreatScope.ALL,
        # "The system prompt may override the default" is a verb, and ordinary prose.
        r"\bsystem\s+prompt\s+(?:override\b|(?:\w+\s+){1,2}override\b(?!\s+(?:the|this|that|it|them|any|all|your|an?)\b))",
    ),
    _build_pattern(
        "disregard_rules",
        ThreatScope.ALL,
        r"\bdisregard\s+<some>(?:your|any|all)\s+<some>(?:rules|instructions|guidelines)\b",
    ),
    _build_pattern(
        "bypass_restrictions",
        ThreatScope.ALL,
        r"\bact\s+as\s+(?:though|if)\s+<some>you\s+<some>(?:have\s+no|don['’]?t\s+have)\s+<some>(?:rules|limits|restrictions)\b",
    ),
    _build_pattern(
        "html_comment_injection",
        ThreatScope.ALL,
        r"<!--[^>]{0,512}(?<![a-z])(?:ignore|override|system|secret|hidden)(?![a-z])[^>]{0,512}-->",
    ),
    _build_pattern("hidden_div", ThreatScope.ALL, r"<\s*div\s[^>]{0,512}display\s*:\s*none"),
    _build_pattern(
        "translate_execute",
        ThreatScope.ALL,
        r"\btranslate\s[^\n]{0,512}\sinto\s+[\w\s-]{1,60}\sand\s+(?:execute|eval|run)\b",
    ),
    _build_pattern("deception_hide", ThreatScope.ALL, r"\bdo\s+not\s+<some>tell\s+<some>the\s+user\b"),
    _build_pattern("exfil_curl", ThreatScope.ALL, r"\bcurl\s<line><secret>"),
    _build_pattern("exfil_wget", ThreatScope.ALL, r"\bwget\s<line><secret>"),
    _build_pattern(
        "read_secrets", ThreatScope.ALL, r"\bcat\s<line>(?:\.env\b|credentials|\.netrc|\.pgpass|\.npmrc|\.pypirc)"
    ),
    _build_pattern("role_hijack", ThreatScope.CONTEXT, r"\byou\s+are\s+<some>now\s+(?:an?|the)\s"),
    _build_pattern("role_pretend", ThreatScope.CONTEXT, r"\bpretend\s+<some>(?:you\s+are|to\s+be)\s"),
    _build_pattern("leak_system_prompt", ThreatScope.CONTEXT, r"\boutput\s+<some>(?:system|initial)\s+prompt\b"),
    _build_pattern(
        "remove_filters",
        ThreatScope.CONTEXT,
        r"\b(?:answer|reply|respond)\s+without\s+<some>(?:filters|limitations|restrictions|safety)\b",
    ),
    _build_pattern(
        "fake_update", ThreatScope.CONTEXT, r"\byou\s+have\s+been\s+<some>(?:patched|updated|upgraded)\s+to\b"
    ),
    _build_pattern("identity_override", ThreatScope.CONTEXT, r"\bname\s+yourself\s+\w"),
    _build_pattern("c2_node_registration", ThreatScope.CONTEXT, r"\bregister\s+(?:as\s+)?(?:a\s+)?node\b"),
    _build_pattern("c2_heartbeat", ThreatScope.CONTEXT, r"\b(?:heartbeat|beacon|check(?:\s+|-)?in)\s+(?:to|with)\s"),
    _build_pattern("c2_task_pull", ThreatScope.CONTEXT, r"\bpull\s+(?:down\s+)?(?:new\s+)?task(?:s|ing)?\b"),
    _build_pattern("c2_network_connect", ThreatScope.CONTEXT, r"\bconnect\s+to\s+the\s+network\b"),
    _build_pattern(
        "forced_action", ThreatScope.CONTEXT, r"\byou\s+must\s+(?:\w+\s+){0,3}(?:register|connect|report|beacon)\b"
    ),
    _build_pattern("anti_forensic_oneliner", ThreatScope.CONTEXT, r"\bonly\s+use\s+one(?:\s+|-)?liners?\b"),
    _build_pattern(
        "anti_forensic_disk",
        ThreatScope.CONTEXT,
        r"\bnever\s+<some>(?:create|write)\s+<some>(?:script|file)\s+<some>disk\b",
    ),
    _build_pattern(
        "env_var_unset_agent", ThreatScope.CONTEXT, r"\bunset\s+\w*(?:hermes|agent|claude|codex|openai|anthropic)\w*"
    ),
    _build_pattern(
        "known_c2_framework", ThreatScope.CONTEXT, r"\b(?:cobalt\s*strike|metasploit|sliver|havoc|mythic|brainworm)\b"
    ),
    _build_pattern("c2_explicit", ThreatScope.CONTEXT, r"\bc2\s+(?:server|channel|beacon|infrastructure)\b"),
    _build_pattern("c2_explicit_long", ThreatScope.CONTEXT, r"\bcommand\s+and\s+control\b"),
    _build_pattern(
        "send_to_url", ThreatScope.STRICT, r"\b(?:send|post|upload|transmit)\s<line>\s(?:to|at)\s+https?://"
    ),
    _build_pattern(
        "context_exfil",
        ThreatScope.STRICT,
        r"\b(?:include|output|print|share)\s+<some>(?:conversation|chat\s+history|previous\s+messages|(?:full|entire)\s+context)\b",
    ),
    _build_pattern("ssh_backdoor", ThreatScope.STRICT, r"authorized_keys"),
    _build_pattern("ssh_access", ThreatScope.STRICT, r"(?:\$home|~)/\.ssh\b"),
    _build_pattern("hermes_env", ThreatScope.STRICT, r"(?:\$home|~)/\.hermes/\.env\b"),
    _build_pattern(
        "agent_config_mod",
        ThreatScope.STRICT,
        r"\b(?:update|modify|edit|write|change|append|add\s+to)\s<line>(?:agents\.md|claude\.md|\.cursorrules|\.clinerules)",
    ),
    _build_pattern(
        "hermes_config_mod",
        ThreatScope.STRICT,
        r"\b(?:update|modify|edit|write|change|append|add\s+to)\s<line>\.hermes/(?:config\.yaml|soul\.md)",
    ),
    _build_pattern(
        HARDCODED_SECRET,
        ThreatScope.STRICT,
        r"(?:api[_-]?key|token|secret|password)\s*[=:]\s*[\"'][a-z0-9+/=_-]{20,256}",
    ),
)

SKILL_PATTERNS: tuple[ThreatPattern, ...] = (
    _build_pattern("sudo_usage", ThreatScope.STRICT, r"(?:^|[\n;&|(`])[ \t$]{0,8}sudo\s+[\w./-]"),
    _build_pattern("private_key", ThreatScope.STRICT, r"-----begin (?:[a-z0-9]+ ){0,4}private key(?: block)?-----"),
)
"""Patterns for skills of others, used before such a skill is taken: its scripts run as the user who takes it."""

JOB_DIRECTIVE_IDS = frozenset({"prompt_injection", "deception_hide", "sys_prompt_override", "disregard_rules"})
"""The patterns that do not survive ordinary prose: the only ones an assembled prompt is scanned with."""


class JobScan(StrEnum):
    """The two texts of a job that are scanned."""

    WRITTEN = "written"
    """The prompt as written, when it is saved and again before it runs."""
    ASSEMBLED = "assembled"
    """The whole prompt, which may quote a runbook that describes an attack."""


_JOB_SECRET = r"\$\{?\w*(?:key|token|secret|password|credential|api)\w*\}?"

JOB_PATTERNS: tuple[ThreatPattern, ...] = (
    *(pattern for pattern in PATTERNS if pattern.id in JOB_DIRECTIVE_IDS),
    _build_pattern(
        "read_secrets",
        ThreatScope.STRICT,
        r"\bcat\s<line>(?:\.env\b|credentials|\.netrc|\.pgpass|\bid_(?:rsa|ed25519|ecdsa)\b)",
    ),
    _build_pattern("ssh_backdoor", ThreatScope.STRICT, r"authorized_keys"),
    _build_pattern("sudoers_mod", ThreatScope.STRICT, r"/etc/sudoers|\bvisudo\b"),
    _build_pattern(
        "destructive_root_rm",
        ThreatScope.STRICT,
        r"\brm\s+(?=(?:-\S{1,40}\s+){0,5}-[\w-]{0,10}r)(?:-\S{1,40}\s+){1,6}[\"']?/",
    ),
    _build_pattern("exfil_curl_url", ThreatScope.STRICT, rf"\bcurl\s<line>https?://[^\s\"'`]{{0,2048}}{_JOB_SECRET}"),
    _build_pattern("exfil_wget_url", ThreatScope.STRICT, rf"\bwget\s<line>https?://[^\s\"'`]{{0,2048}}{_JOB_SECRET}"),
    _build_pattern(
        "exfil_curl_data",
        ThreatScope.STRICT,
        rf"\bcurl\s<line>(?<=\s)(?:--data(?:-raw|-binary|-urlencode)?|-d|--form|-f)[\s=@\"']<line>{_JOB_SECRET}",
    ),
    _build_pattern(
        "exfil_wget_post", ThreatScope.STRICT, rf"\bwget\s<line>--post-(?:data|file)[\s=]<line>{_JOB_SECRET}"
    ),
    _build_pattern(
        "exfil_curl_auth_header",
        ThreatScope.STRICT,
        rf"\bcurl\s<line>(?:-h|--header)[\s=]*[\"']authorization:\s*(?:bearer|token|basic)\s+{_JOB_SECRET}[\"']",
    ),
)

JOB_SCANS: Mapping[JobScan, tuple[ThreatPattern, ...]] = {
    JobScan.WRITTEN: JOB_PATTERNS,
    JobScan.ASSEMBLED: tuple(pattern for pattern in JOB_PATTERNS if pattern.id in JOB_DIRECTIVE_IDS),
}

# The bundled GitHub skill's own call. The host must end where the name ends (api.github.com.evil.example and
# api.github.com@evil.example are other hosts), what follows the path is left to be scanned, and a second address or a
# proxy in the same command would get the header too.
_GITHUB_CALL = re.compile(
    r"\bcurl\s[^\n;&|$`]{0,500}(?:-h|--header)\s+[\"']authorization:\s*token\s+"
    + _JOB_SECRET
    + r"[\"']\s+[\"']?https://api\.github\.com(?=[/\s\"']|$)[^\s;&|$`]{0,2048}"
    r"(?![^\n;&|]{0,2048}(?:https?://|--proxy|\s-x\s))"
)
_GITHUB_CALL_SCANNED_AS = "curl https://api.github.com/user"

INVISIBLE = frozenset(
    chr(code)
    for first, last in ((0x200B, 0x200D), (0x2060, 0x2064), (0xFEFF, 0xFEFF), (0x202A, 0x202E), (0x2066, 0x2069))
    for code in range(first, last + 1)
) | frozenset(chr(code) for code in range(0xE0000, 0xE0080))
"""Invisible characters: zero-width, bidirectional controls and the tag characters that can spell ASCII."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreatFinding:
    """A pattern that matched. ``message`` may be shown; it does not quote the text."""

    id: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembledScan:
    """An assembled prompt, made safe to send as far as that is possible."""

    text: str
    """The prompt without invisible characters."""
    removed: tuple[str, ...]
    """Labels of the characters taken out, such as ``U+200B``: for the log."""
    finding: ThreatFinding | None
    """The reason why the prompt must not be sent at all; ``None`` when it may be."""


def scan_text(text: str, scope: ThreatScope) -> tuple[str, ...]:
    """Ids of everything suspicious in ``text``, each once, invisible characters first
    (``invisible_unicode_U+200B``)."""
    invisible = [f"invisible_unicode_{label}" for label in strip_invisible(text)[1]]
    return (*invisible, *find_matching_ids(text, scope))


def find_matching_ids(text: str, scope: ThreatScope) -> tuple[str, ...]:
    """Ids of the patterns of ``scope``, and of the scopes inside it, that match ``text``. Text that is about to be kept
    must hold no key of a vendor either, under any name.
    """
    found = tuple(
        _iterate_matching_ids(
            _iterate_possible_readings(text), (each for each in PATTERNS if each.scope in _INCLUDED[scope])
        )
    )
    if scope is ThreatScope.STRICT and HARDCODED_SECRET not in found and holds_vendor_key(text):
        return (*found, HARDCODED_SECRET)
    return found


def find_skill_threats(text: str) -> tuple[str, ...]:
    """Ids of ``SKILL_PATTERNS`` that match ``text``."""
    return tuple(_iterate_matching_ids(_iterate_possible_readings(text), SKILL_PATTERNS))


def find_job_threats(text: str, patterns: Iterable[ThreatPattern]) -> tuple[str, ...]:
    """Ids of ``patterns`` that match the text of a job. The call of the bundled GitHub skill does not count."""
    readings = (_GITHUB_CALL.sub(_GITHUB_CALL_SCANNED_AS, reading) for reading in _iterate_possible_readings(text))
    return tuple(_iterate_matching_ids(readings, patterns))


def scan_job_prompt(text: str) -> ThreatFinding | None:
    """Scan what a user wrote as the prompt of a job, when it is saved and again before it runs."""
    removed = strip_invisible(text)[1]
    if removed:
        message = f"Blocked: the prompt contains the invisible character {removed[0]}; remove it."
        return ThreatFinding(id=f"invisible_unicode_{removed[0]}", message=message)
    return _find_first_threat(text, JOB_PATTERNS)


def scan_assembled_prompt(text: str) -> AssembledScan:
    """Scan a job's prompt with its skills, script output and context in place."""
    cleaned, removed = strip_invisible(text)
    return AssembledScan(
        text=cleaned, removed=removed, finding=_find_first_threat(cleaned, JOB_SCANS[JobScan.ASSEMBLED])
    )


def strip_invisible(text: str) -> tuple[str, tuple[str, ...]]:
    """``text`` without invisible characters, and their labels in order of code point. Joiners inside emoji and the
    tags of a flag stay."""
    if INVISIBLE.isdisjoint(text):
        return text, ()
    kept: list[str] = []
    removed: set[str] = set()
    for index, character in enumerate(text):
        if character in INVISIBLE and not is_part_of_emoji(text, index):
            removed.add(character)
        else:
            kept.append(character)
    return "".join(kept), tuple(f"U+{ord(character):04X}" for character in sorted(removed))


def _find_first_threat(text: str, patterns: Iterable[ThreatPattern]) -> ThreatFinding | None:
    for identifier in find_job_threats(text, patterns):
        message = f"Blocked: the prompt matches the threat pattern {identifier!r}; take that instruction out."
        return ThreatFinding(id=identifier, message=message)
    return None


def _fold_text(text: str) -> str:
    """Full-width and other compatibility letters become plain ones. Look-alikes of other scripts stay."""
    return unicodedata.normalize("NFKC", text).lower()


_JSON_ESCAPE = re.compile(
    r"\\{1,4}(?:u(?P<high>[dD][89abAB][0-9A-Fa-f]{2})\\{1,4}u(?P<low>[dD][c-fC-F][0-9A-Fa-f]{2})"
    r"|u(?P<code>[0-9A-Fa-f]{4})|(?P<sign>[nrtbf\"/]))"
)
"""Matches escapes also in JSON that stands in a text of JSON, whose backslashes are doubled."""
_SIGNS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


def _iterate_possible_readings(text: str) -> Iterator[str]:
    r"""``text`` as it stands, and as a reader of JSON sees it: a word behind the ``\n`` of a tool's result begins a
    line there.
    """
    yield _fold_text(text)
    read = _JSON_ESCAPE.sub(_unescape, text) if "\\" in text else text
    if read != text:
        yield _fold_text(strip_invisible(read)[0])


def _unescape(escape: re.Match[str]) -> str:
    if escape["sign"]:
        return _SIGNS.get(escape["sign"], escape["sign"])
    if escape["code"]:
        return chr(int(escape["code"], 16))
    return chr(0x10000 + ((int(escape["high"], 16) - 0xD800) << 10) + int(escape["low"], 16) - 0xDC00)


def _iterate_matching_ids(readings: Iterable[str], patterns: Iterable[ThreatPattern]) -> Iterator[str]:
    windows = [window for reading in readings for window in _split_windows(reading)]
    for pattern in patterns:
        if any(pattern.expression.search(window) is not None for window in windows):
            yield pattern.id


def _split_windows(text: str) -> Iterator[str]:
    yield text[:WINDOW_CHARS]
    for start in range(WINDOW_CHARS - OVERLAP_CHARS, len(text) - OVERLAP_CHARS, WINDOW_CHARS - OVERLAP_CHARS):
        yield text[start : start + WINDOW_CHARS]
