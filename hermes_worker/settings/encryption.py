"""The settings of the encryption of texts in the database."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import TEXT_KEYS, Secret, text_matching


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionSettings:
    """Texts in the database."""

    keys: tuple[Secret, ...] = declare_setting(
        "encryption.keys",
        "HERMES_ENCRYPTION_KEYS",
        TEXT_KEYS,
        (),
        audience="security",
        reason="the database or its backups may be read by others; texts are in clear without it.",
    )
    """Keys that texts in the database are encrypted with: the first encrypts, all decrypt. The word `clear` in the
    first place: texts are written in clear. HERMES_ENCRYPTION_KEYS_FILE names a file, which may be changed at any time.
    Not set: nothing is encrypted. See docs/encryption.md."""
    keys_command: str | None = declare_setting(
        "encryption.keys_command",
        "HERMES_ENCRYPTION_KEYS_COMMAND",
        text_matching(r"[^\x00-\x1f]{1,2000}", "a command"),
        audience="security",
        reason="keys come from a vault; they must stand in the environment or a file without it.",
    )
    """A command that prints the keys instead, run by every process at its start and once a minute, without a shell and
    without the secrets of the environment."""
