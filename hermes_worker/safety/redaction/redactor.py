"""The one way of a tool's result to rows, models, events and files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.safety.redaction.masking import is_secret_name, mark_secret, mask_known, redact, redact_code

__all__ = ["Redactor", "prints_configuration"]

_CONFIGURATION = (
    r"[\w.-]*\.env(?:\.[\w.-]+)?|[\w.-]+\.(?:ini|cfg|cnf|conf|properties|tfvars)|\.netrc|_netrc|\.npmrc|\.pypirc"
    r"|\.pgpass|\.git-credentials|\.htpasswd|\.dockercfg|\.s3cfg|credentials"
)
_CONFIGURATION_FILE = re.compile(rf"(?:^|[\s/\\\"'=<])(?:{_CONFIGURATION})(?=$|[\s\"';|&)<>])")
_PRINTS_VARIABLES = re.compile(
    r"(?:^|[;&|(\n])\s*(?:sudo\s+)?(?:(?:env|set|(?:export|declare)(?:\s+-[px]+)?)\s*(?:$|[;&|)\n>])|printenv\b)"
)


def prints_configuration(text: str) -> bool:
    """Whether a path names a file of settings, or a command prints one or the environment: there every name that
    sounds like a secret's is one, however harmless its value looks."""
    return _CONFIGURATION_FILE.search(text) is not None or _PRINTS_VARIABLES.search(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Redactor:
    """Hides secrets in results of tools."""

    is_on: bool = True
    known: tuple[str, ...] = field(default=(), repr=False)
    """Secrets of this installation: hidden wherever they stand, if they are long enough to be recognised."""

    def redact_text(self, text: str, *, is_configuration: bool = False) -> str:
        """Return ``text`` with a marker for every secret. The number of lines stays; a second time changes nothing."""
        if not self.is_on:
            return text
        text = mask_known(text, self.known, mark_secret)
        return (redact if is_configuration else redact_code)(text, masked_as=mark_secret)

    def remove_secrets(self, text: str, secrets: Iterable[str]) -> str:
        """Return ``text`` with a marker for every one of ``secrets`` that is long enough: secrets that the caller knows
        beside ours.
        """
        return mask_known(text, secrets, mark_secret) if self.is_on else text

    def redact_printed(self, text: str) -> str:
        """The redacted output of a program of the owner for people: every name counts, and ends of secrets are
        shown.
        """
        return redact(mask_known(text, self.known)) if self.is_on else text

    def redact_result(self, text: str, *, is_configuration: bool = False) -> str:
        """Redact a result as a tool returns it: the texts inside a JSON document, or all of it. Returns ``text``
        itself when nothing is hidden.
        """
        if not self.is_on:
            return text
        try:
            document = json.loads(text)
            shown = list(_list_texts(document))
            hidden = self._redact_each(shown, is_configuration)
            return text if hidden == shown else dump_canonical_json(_replace_texts(document, iter(hidden)))
        except (ValueError, RecursionError):
            return self.redact_text(text, is_configuration=is_configuration)

    def _redact_each(self, texts: list[str], is_configuration: bool) -> list[str]:
        """Redact the texts together: a thousand short texts then cost what one long one does."""
        joined = _BETWEEN.join(texts)
        hidden = self.redact_text(joined, is_configuration=is_configuration)
        if hidden == joined:
            return texts
        apart = hidden.split(_BETWEEN)
        if len(apart) == len(texts):
            return apart
        return [self.redact_text(text, is_configuration=is_configuration) for text in texts]


_BETWEEN = "\n\x1e\n"
_NAMED = "{}: {}"
"""The form in which a field is searched whose name sounds like a secret's: its name must stand before its value."""


def _list_texts(value: Any, name: str = "") -> Iterator[str]:
    """Every text of a document, names of fields included, in an order that ``_replace_texts`` repeats."""
    match value:
        case str():
            yield _NAMED.format(name, value) if name else value
        case list():
            for item in value:
                yield from _list_texts(item, name)
        case dict():
            for key, item in value.items():
                yield key
                yield from _list_texts(item, key if is_secret_name(key) else "")


def _replace_texts(value: Any, texts: Iterator[str], name: str = "") -> Any:
    """The document with its texts replaced, in the order of ``_list_texts``."""
    match value:
        case str():
            return next(texts)[len(_NAMED.format(name, "")) if name else 0 :]
        case list():
            return [_replace_texts(item, texts, name) for item in value]
        case dict():
            return {
                next(texts): _replace_texts(item, texts, key if is_secret_name(key) else "")
                for key, item in value.items()
            }
    return value
