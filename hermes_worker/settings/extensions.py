"""The settings of extensions."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import VARIABLES, list_of_names


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionSettings:
    """What others wrote and the operator wants."""

    enabled: tuple[str, ...] = declare_setting(
        "extensions.enabled",
        "HERMES_EXTENSIONS",
        list_of_names(r"[a-z0-9][a-z0-9_-]{0,63}", "names of extensions"),
        (),
        audience="anyone",
        reason="an extension should be used; none is loaded without it.",
    )
    """Extensions to use, of installed packages and of `plugins/` in the home: their code runs with all rights of the
    processes. `hermes-worker extensions list` shows which there are."""
    modules: tuple[str, ...] = declare_setting(
        "extensions.modules",
        "HERMES_TOOLS",
        list_of_names(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", "names of Python modules"),
        (),
        audience="anyone",
        reason="your own program has tools and agents in its modules; no run has them without it.",
    )
    """Python modules of yours with functions made by `tool` and with `Agent`s: their code runs with all rights of the
    processes, each of which must be able to import them."""
    settings: tuple[tuple[str, str], ...] = declare_setting(
        "extensions.settings",
        "HERMES_EXTENSION_SETTINGS",
        VARIABLES,
        (),
        audience="operator",
        reason="an extension's values belong into config.yaml; only its variables give them without it.",
    )
    """What enabled extensions are to know, by the variables that they name; the variables themselves win. Not their
    secrets: every process sees it."""
