"""What a process hands on to its children: its settings, and to each role the secrets that it needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING

from hermes_worker import installed
from hermes_worker.core.chat_accounts import strip_account_suffix
from hermes_worker.settings.composed import GROUPS, SECRET_VARIABLES, VARIABLES, Settings
from hermes_worker.settings.declaring import iterate_declared
from hermes_worker.settings.role_secrets import ProcessRole, find_owners, list_withheld
from hermes_worker.settings.secret_transfer import Handover


def render_environ(settings: Settings) -> dict[str, str]:
    """An environment for child processes, in which ``load_settings`` gives these very settings.

    It is the environment this process was started with, with every setting spelled out, so that a child started
    later does not pick up an edit of ``config.yaml`` that its siblings do not have. Holds secrets: what is handed to
    another process goes through ``build_handover``.
    """
    environ = {name: value for name, value in settings.environ.items() if name not in VARIABLES}
    for group in (settings, *(getattr(settings, name) for name in GROUPS)):
        for item, declaration in iterate_declared(type(group)):
            value = getattr(group, item.name)
            # A limit that is ``None`` was taken off and must not come back as the default.
            is_given = value is not None or item.default not in (None, MISSING)
            if is_given and (text := declaration.kind.render(value)):
                environ[declaration.variables[0]] = text
    return environ


def build_handover(settings: Settings, *roles: ProcessRole) -> tuple[dict[str, str], Handover]:
    """The environment of a child process that has these roles, without any secret, and what it gets by descriptor:
    the secrets of its roles. Its ``load_settings`` reads no file and gives ``settings``, but for the secrets of
    others."""
    environ = {}
    secrets = {}
    for name, value in render_environ(settings).items():
        whose = None if _is_harmless_setting(name) else find_variable_owners(name, value)
        if whose is not None and not _is_needed_by_api(settings, name):
            whose -= {ProcessRole.API}
        if whose is None:
            environ[name] = value
        elif not whose.isdisjoint(roles) or _is_for_commands(settings, name, roles):
            secrets[name] = value
    environ |= settings.secret_files
    return environ, Handover(
        variables=secrets, is_complete=True, withheld=list_withheld(roles), origins=dict(settings.origins)
    )


def find_variable_owners(variable: str, value: str) -> frozenset[ProcessRole] | None:
    """Find the roles that are given a variable of the environment: for a secret that an extension declares, those that
    it names. ``None`` for a variable that is no secret."""
    roles = installed.get_installed().secret_variables.get(strip_account_suffix(variable))
    return find_owners(variable, value) if roles is None else frozenset(ProcessRole(role) for role in roles)


def _is_needed_by_api(settings: Settings, variable: str) -> bool:
    """Whether the API needs this secret if it knows requests of a platform by it: where the platform brings any. What
    answers are sent with may be the same secret, and says nothing of that."""
    usual = strip_account_suffix(variable)
    needs = installed.get_installed().webhook_needs.get(usual, ())
    ending = variable.removeprefix(usual)
    return not needs or (
        settings.gateway.is_enabled
        and all((settings.environ.get(f"{need}{ending}") or settings.environ.get(need, "")).strip() for need in needs)
    )


def _is_harmless_setting(variable: str) -> bool:
    """Whether the variable is a setting of the product that is declared to be no secret: what its name or value
    resembles does not count."""
    return variable in VARIABLES and variable not in SECRET_VARIABLES


def _is_for_commands(settings: Settings, variable: str, roles: Iterable[ProcessRole]) -> bool:
    return variable in settings.terminal.env_passthrough and ProcessRole.TOOLS in roles
