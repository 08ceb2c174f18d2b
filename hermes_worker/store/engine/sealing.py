"""Columns whose text is encrypted at rest: one column type, for statements of SQLAlchemy and for prepared ones.

Theory of operation. A column of the type ``SealedText`` holds clear text, or *sealed* text: AES-256-GCM with a random
nonce, in base64 behind a mark and the id of its key. Its place (``messages.body``) is authenticated with it, so a text
that was moved to another column does not open. The ``Sealer`` of the database's dialects knows the keys: the first key
seals, all of them open. So rows in clear and rows of several keys stand side by side, and each value says by itself how
it is stored. A clear text that begins like a sealed one gets a mark of its own.

SQL cannot look into such a column: the type refuses every operator but the test for NULL. ``select_stored_text`` gives
the stored text to code that only asks how it is stored.
"""

from __future__ import annotations

import os
import threading
import time
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.sql import operators

from hermes_worker.core.errors import ConfigurationError, HermesError, UnavailableError
from hermes_worker.core.home_paths import from_stored_document, to_stored_document
from hermes_worker.store.engine.stored_texts import get_homes, make_storable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

CLEAR = "clear"
"""Stands in the place of a key when texts are written as they are."""
MARK = "hws1:"
"""The beginning of every sealed text. The number is the version of the format."""
_AS_IS = f"{MARK}=:"
"""The beginning of a clear text that would otherwise be taken for a sealed one."""
ID_CHARS = 8
_PURPOSE = b"hermes-worker text"
_ID_PURPOSE = b"hermes-worker text key id"
_NONCE_BYTES = 12
_LOOK_AGAIN_S = 1.0
"""Seconds between two looks for an unknown key, at least."""


class KeyMissing(UnavailableError):
    """A text is sealed with a key that this process does not have. Nothing is wrong with the row: it can be read when
    the key is there."""


class TextTampered(HermesError, ValueError):
    """A sealed text was changed, cut off or moved to another column since it was written: its row makes no sense."""


class KeySource(Protocol):
    """A source of keys that were added after the start of the process."""

    def read_if_changed(self, *, at_once: bool) -> Sequence[str] | None:
        """Return the keys, of which the first seals, if they differ from the last ones returned; else ``None``.
        ``at_once`` says that a text needs a key that is missing. Raises ``ConfigurationError``."""


class TextKeys(NamedTuple):
    """Keys by id."""

    first: str
    """The id of the key that seals, or ``CLEAR``."""
    boxes: Mapping[str, AESGCM]

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(self.boxes)


NO_KEYS = TextKeys(CLEAR, MappingProxyType({}))


def build_text_keys(keys: Sequence[str]) -> TextKeys:
    """Build ``TextKeys`` from the keys as they were configured; ``CLEAR`` may be among them."""
    ids = [CLEAR if key == CLEAR else derive_key_id(key) for key in keys]
    boxes = {name: _build_box(key) for name, key in zip(ids, keys, strict=True) if name != CLEAR}
    return TextKeys(ids[0] if ids else CLEAR, MappingProxyType(boxes))


def derive_key_id(key: str) -> str:
    """Derive the id of a key, which reveals nothing of it. It stands in every text that the key sealed."""
    return _derive(key, _ID_PURPOSE)[: ID_CHARS // 2].hex()


def _build_box(key: str) -> AESGCM:
    # Imported when it is needed: most installations encrypt nothing.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(_derive(key, _PURPOSE))


@lru_cache(maxsize=64)
def _derive(key: str, purpose: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose).derive(key.encode())


class Sealer:
    """Seals and opens the texts of one database. Thread-safe."""

    def __init__(self, keys: TextKeys = NO_KEYS, source: KeySource | None = None) -> None:
        """``source`` is asked when a text names a key that is not here."""
        self._looked_at = 0.0
        self._looking = threading.Lock()
        self.source = source
        self.learned: Sequence[str] | None = None
        """Keys of which only the ability to open was taken over yet."""
        self.use_keys(keys)

    def use_keys(self, keys: TextKeys) -> None:
        """Seal and open with ``keys`` from now on."""
        self.keys = keys
        box = keys.boxes.get(keys.first)
        self._sealing = None if box is None else (f"{MARK}{keys.first}:", box)

    @property
    def is_on(self) -> bool:
        """Whether there is any key, or a source of keys."""
        return self.source is not None or bool(self.keys.boxes)

    def seal(self, text: str, place: str) -> str:
        """Return ``text`` as it is to be stored in the column ``place``."""
        sealing = self._sealing  # read once: keys may change at any moment
        if sealing is None:
            return f"{_AS_IS}{text}" if text.startswith(MARK) else text
        prefix, box = sealing
        nonce = os.urandom(_NONCE_BYTES)
        sealed = box.encrypt(nonce, _encode(text), place.encode())
        return prefix + b2a_base64(nonce + sealed, newline=False).decode("ascii")

    def open(self, stored: str, places: Sequence[str]) -> str:
        """Decrypt what was stored in one of the columns ``places``; clear text is returned as it is. Raises
        ``KeyMissing`` and ``TextTampered``."""
        if not stored.startswith(MARK):
            return stored
        if stored.startswith(_AS_IS):
            return stored[len(_AS_IS) :]
        name, _, body = stored[len(MARK) :].partition(":")
        box = self.keys.boxes.get(name) or self._find_key(name, places[0])
        try:
            sealed = a2b_base64(body, strict_mode=True)
        except (Base64Error, ValueError):
            raise _tampering_error(name, places[0]) from None
        for place in places:
            if (text := _decrypt(box, sealed, place)) is not None:
                return text
        raise _tampering_error(name, places[0])

    def _find_key(self, name: str, place: str) -> AESGCM:
        """Return the key ``name``, which another process may have begun to use a moment ago. Raises ``KeyMissing``."""
        with self._looking:
            if self.source is not None and time.monotonic() - self._looked_at > _LOOK_AGAIN_S:
                self._looked_at = time.monotonic()
                self.add_keys(self.source)
        box = self.keys.boxes.get(name)
        if box is None:
            raise KeyMissing(
                f"a text in {place} is encrypted with the key {name[:ID_CHARS]!r}, which is not here: add it to "
                "HERMES_ENCRYPTION_KEYS (encryption.keys) of every process"
            )
        return box

    def add_keys(self, source: KeySource) -> None:
        """Open texts with the new keys of ``source`` as well. The key that seals stays: that is decided before a
        transaction and not in the middle of one (``store.text_keys``)."""
        try:
            found = source.read_if_changed(at_once=True)
        except ConfigurationError:
            return  # reported by the next regular look; the loaded keys stay valid
        if found is not None:
            self.learned = found
            self.use_keys(
                TextKeys(self.keys.first, MappingProxyType({**self.keys.boxes, **build_text_keys(found).boxes}))
            )


PLAIN = Sealer()
"""The sealer of a database without keys."""


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return make_storable(text).encode()


def _decrypt(box: AESGCM, sealed: bytes, place: str) -> str | None:
    from cryptography.exceptions import InvalidTag

    try:
        return box.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place.encode()).decode()
    except (InvalidTag, ValueError):
        return None


def _tampering_error(name: str, place: str) -> TextTampered:
    return TextTampered(
        f"a text in {place} cannot be decrypted with its key {name[:ID_CHARS]!r}: it was changed, or moved there"
    )


_SEALER = "hermes_sealer"


def seal_with(engine: sa.Engine, sealer: Sealer) -> None:
    """Have every statement on ``engine`` use ``sealer``."""
    setattr(engine.dialect, _SEALER, sealer)


def get_sealer(dialect: Dialect) -> Sealer:
    """The sealer of the database that a connection with ``dialect`` belongs to."""
    found: Sealer = getattr(dialect, _SEALER, PLAIN)
    return found


class SealedText(sa.types.TypeDecorator[str]):
    """Text that may be encrypted at rest. ``places`` are the columns it may come from: for a column, the column itself.
    With ``path_in`` it is a JSON object with a path in that field, and the path is stored as by ``PlacedText``."""

    impl = sa.Text
    cache_ok = True

    class Comparator(sa.types.TypeDecorator.Comparator[str]):
        """Refuses comparisons: equal texts are stored as different values, and their order is random."""

        def operate(self, op: operators.OperatorType, *other: Any, **kwargs: Any) -> sa.ColumnElement[Any]:
            if op not in (operators.is_, operators.is_not):
                raise TypeError(
                    f"SQL cannot look into {self.expr}, which may be encrypted: read it and compare there, or ask how "
                    "it is stored (store.engine.sealing.stored_text)"
                )
            return super().operate(op, *other, **kwargs)

        def reverse_operate(self, op: operators.OperatorType, other: Any, **kwargs: Any) -> sa.ColumnElement[Any]:
            return self.operate(op, other, **kwargs)

    comparator_factory = Comparator

    def __init__(self, *places: str, clear_chars: int | None = None, path_in: str | None = None) -> None:
        """``clear_chars``: the length with which the column is declared in SQLite, which does not enforce it; it keeps
        the declaration from before there was encryption."""
        super().__init__()
        self.places = places
        self.clear_chars = clear_chars
        self.path_in = path_in

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name == "sqlite" and self.clear_chars is not None:
            return sa.String(self.clear_chars)
        return sa.Text()

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        if self.path_in is not None:
            value = to_stored_document(value, self.path_in, get_homes(dialect))
        return get_sealer(dialect).seal(value, self.places[0])

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        text = get_sealer(dialect).open(value, self.places)
        return text if self.path_in is None else from_stored_document(text, self.path_in, get_homes(dialect))

    def is_as_stored(self, value: str) -> bool:
        """Whether the stored text ``value`` can be given to callers unchanged."""
        return not value.startswith(MARK) and (self.path_in is None or "/./" not in value)

    def process_literal_param(self, value: str | None, dialect: Dialect) -> str:
        raise TypeError("a text that may be encrypted is a parameter of its statement, never a part of it")


def select_stored_text(column: sa.ColumnElement[Any]) -> sa.ColumnElement[str | None]:
    """The stored text of ``column``, sealed or not."""
    return sa.type_coerce(column, sa.Text())


def begins_with(column: sa.ColumnElement[Any], prefix: str) -> sa.ColumnElement[bool]:
    """Whether the stored text of ``column`` begins with ``prefix``. The rest of a long text is not read."""
    return sa.func.substr(select_stored_text(column), 1, len(prefix), type_=sa.Text()) == prefix


def is_stored_by(column: sa.ColumnElement[Any], key: str) -> sa.ColumnElement[bool]:
    """Whether ``column`` is stored with the key of this id, or in clear for ``CLEAR``. NULL for NULL."""
    if key != CLEAR:
        return begins_with(column, f"{MARK}{key}:")
    return ~begins_with(column, MARK) | begins_with(column, _AS_IS)


def may_contain(column: sa.ColumnElement[Any], pattern: str) -> sa.ColumnElement[bool]:
    """Whether ``column`` matches the LIKE pattern ``pattern``, or is encrypted and cannot be looked into; the reader
    decides then."""
    return select_stored_text(column).like(pattern) | begins_with(column, MARK)


def coalesce_texts(first: sa.ColumnElement[Any], second: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
    """``first``, or ``second`` where the first is NULL, of two columns that may be encrypted."""
    places = dict.fromkeys((*_list_places(first), *_list_places(second)))
    return sa.func.coalesce(select_stored_text(first), select_stored_text(second), type_=SealedText(*places))


def select_text_prefix(column: sa.ColumnElement[Any], chars: int) -> sa.ColumnElement[str]:
    """The first ``chars`` characters of a text that is stored in clear, and all of one that is encrypted."""
    stored = select_stored_text(column)
    part = sa.case((begins_with(column, MARK), stored), else_=sa.func.substr(stored, 1, chars))
    return sa.type_coerce(part, column.type)


def _list_places(column: sa.ColumnElement[Any]) -> tuple[str, ...]:
    assert isinstance(column.type, SealedText)
    return column.type.places
