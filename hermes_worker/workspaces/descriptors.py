"""Open folders and make files below descriptors, through no link: a command may be changing the workspace meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""With which a folder is opened for what is below it."""
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_new_file(name: str, pieces: Iterable[bytes], mode: int | None, folder: int) -> None:
    """Write a file that does not exist yet into the folder of a descriptor, and have the system store it. ``mode`` is
    its permissions, ``None`` where the system decides. Raises ``OSError``."""
    with os.fdopen(os.open(name, _NEW_FILE, 0o666, dir_fd=folder), "wb") as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())
