"""Which variables of a worker's environment a command may see.

The original blocks the names it knows to be secret. A worker's environment holds the secrets of every provider, broker
and database of the deployment, so here a name passes only when it is known to be harmless.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

_ALLOWED = frozenset(
    {
        "HOME",
        "LANG",
        "LANGUAGE",
        "LOGNAME",
        "PATH",
        "SHELL",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "TERM",
        "TMPDIR",
        "TZ",
        "USER",
    }
)
_ALLOWED_PREFIX = "LC_"
_INTERNAL_PREFIX = "HERMES_"
"""Our own settings, secrets among them: not even an operator's pass list lets them through."""
_PATH_DEFAULT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def filter_environment(environ: Mapping[str, str], *, passthrough: Collection[str] = ()) -> dict[str, str]:
    """The part of ``environ`` that commands get: the allow-list and the names an operator listed in ``passthrough``."""
    allowed = {name: value for name, value in environ.items() if _may_pass(name, passthrough)}
    allowed.setdefault("PATH", _PATH_DEFAULT)
    return allowed


def _may_pass(name: str, passthrough: Collection[str]) -> bool:
    if name.startswith(_INTERNAL_PREFIX):
        return False
    return name in _ALLOWED or name.startswith(_ALLOWED_PREFIX) or name in passthrough
