"""Secrets from files: ``NAME_FILE`` names the file that holds the value of ``NAME``, as containers mount them.

What is in such a file is in no environment, so neither ``docker inspect`` nor ``/proc`` shows it. The ending and its
rules are those of the official images of databases (``POSTGRES_PASSWORD_FILE``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.system.plainfiles import read_plain

ENDING = "_FILE"
DIRECTORIES = "HERMES_SECRETS_DIRECTORIES"
"""Names directories, with colons between them, each of whose files is a secret under its variable's name."""
_BYTES_MAX = 65_536
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class SecretFiles(NamedTuple):
    """Variables, once the files that some of them name were read."""

    variables: dict[str, str]
    """With the values in place of the names of files."""
    files: dict[str, str]
    """Which variable named which file."""


def list_directory_files(variables: Mapping[str, str]) -> dict[str, str]:
    """List the files of the directories that ``variables`` names, as if each were named by ``NAME_FILE``. What has a
    value or a file otherwise is left out, and so is a file whose name is no variable's. A directory that is missing
    is empty: a secret of Kubernetes may be optional. Raises ``ConfigurationError`` for one that cannot be read."""
    found: dict[str, str] = {}
    for directory in filter(None, variables.get(DIRECTORIES, "").split(":")):
        try:
            names = sorted(path.name for path in Path(directory).iterdir() if path.is_file())
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigurationError(
                f"{DIRECTORIES} names {directory!r}, which cannot be read: {error.strerror}."
            ) from error
        for name in filter(_VARIABLE.fullmatch, names):
            if not variables.get(name, "").strip() and not variables.get(name + ENDING, "").strip():
                found[name + ENDING] = f"{directory}/{name}"
    return found


def find_named_files(variables: Mapping[str, str], is_secret: Callable[[str], bool]) -> dict[str, str]:
    """The variables that name a file with a secret, and what they name. ``is_secret`` says of a variable without the
    ending whether it is one of those that may be given by file."""
    return {
        name: path.strip()
        for name, path in variables.items()
        if name.endswith(ENDING) and path.strip() and is_secret(name.removesuffix(ENDING))
    }


def read_files(variables: Mapping[str, str], is_secret: Callable[[str], bool], *, place: str) -> SecretFiles:
    """``variables`` of ``place`` ("the environment") with what the files say. One line end at the end of a file does
    not count; an empty file is like an empty variable: not set. Raises ``ConfigurationError``."""
    files = find_named_files(variables, is_secret)
    values = {name: value for name, value in variables.items() if name not in files}
    for name, path in files.items():
        variable = name.removesuffix(ENDING)
        if variables.get(variable, "").strip():
            raise ConfigurationError(f"{variable} and {name} are both set in {place}; remove one of them.")
        values[variable] = _read_content(path, f"{name} in {place} names {path!r}")
    return SecretFiles(values, files)


def _read_content(path: str, said: str) -> str:
    try:
        content = read_plain(path, bytes_max=_BYTES_MAX + 1)
        if len(content) > _BYTES_MAX:
            raise ConfigurationError(f"{said}, which has more than {_BYTES_MAX} bytes.")
        text = content.decode("utf-8")
    except FileNotFoundError:
        raise ConfigurationError(f"{said}, and there is no such file.") from None
    except OSError as error:
        raise ConfigurationError(f"{said}, which cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise ConfigurationError(f"{said}, which is not UTF-8 text.") from None
    return text.removesuffix("\n").removesuffix("\r")
