"""Extensions are put together, and what cannot be together is said in a sentence."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from hermes_worker import installed
from hermes_worker.agent.tools.catalog import get_declared_catalog
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.replay import Replay
from hermes_worker.extension import (
    API_VERSION,
    EXTRA_OF_MODULE,
    CommandDeclaration,
    Extension,
    ExtensionConflict,
    HookDeclaration,
    Installed,
    SettingDeclaration,
    ToolDeclaration,
    ToolSpec,
    WireDeclaration,
    explain_missing,
    find_conflicts,
    fold_extensions,
    load_reference,
)
from hermes_worker.models.catalog import ProviderRow, find_provider, list_provider_rows
from hermes_worker.plugins import list_brought

ROOT = Path(__file__).parents[1]


def tool(name: str, **changes: Any) -> ToolDeclaration:
    spec = ToolSpec(name=name, description=name, parameters={}, toolset="acme", replay=Replay.PURE, is_untrusted=False)
    return ToolDeclaration(spec=replace(spec, **changes), implementation="acme.tools:it")


def hook(name: str, *events: str, **changes: Any) -> HookDeclaration:
    return replace(HookDeclaration(name=name, events=events, implementation="acme.hooks:it"), **changes)


def row(name: str, *aliases: str) -> ProviderRow:
    return ProviderRow(name=name, aliases=aliases, base_url="https://acme.example/v1", default_model="a-1")


ACME = Extension(name="acme", version="1.0", tools=(tool("look"),), providers=(row("acme", "ac"),))


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    installed.put_in_force(None)


@pytest.mark.parametrize("reference", installed.BUILT_IN)
def test_what_is_built_in_brings_the_kinds_that_its_line_says(reference: str) -> None:
    """By them a process knows what it need not load."""
    assert tuple(list_brought(load_reference(reference))) == installed.BUILT_IN[reference]


def test_only_the_declarations_of_the_kind_that_is_asked_for_are_loaded() -> None:
    code = (
        "import sys; from hermes_worker import installed; from hermes_worker.models.catalog import find_provider\n"
        "places = {reference.partition(':')[0] for reference in installed.BUILT_IN}\n"
        "loaded = lambda: places & set(sys.modules)\n"
        "assert find_provider('openai'); providers = loaded()\n"
        "models = {f'hermes_worker.models.{name}' for name in ('provider_rows', 'vendor_extensions')}\n"
        "assert providers == models, providers\n"
        "assert installed.get_installed().commands; commands = loaded() - providers\n"
        "bring = {name.partition(':')[0] for name, kinds in installed.BUILT_IN.items() if 'commands' in kinds}\n"
        "assert commands == bring, commands\n"
        "assert 'hermes_worker.features.memory.rules' not in sys.modules\n"
        "assert 'click' not in sys.modules and installed.list_foreign() == ()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_loaded_by_kind_is_what_is_loaded_at_once() -> None:
    by_kind, at_once = installed.get_only_built_in(), fold_extensions(installed.load_built_in())
    for item in fields(Installed):
        if item.name not in ("extensions", "values"):
            assert dict(getattr(by_kind, item.name)) == dict(getattr(at_once, item.name)), item.name
    assert tuple(by_kind.extensions) == tuple(at_once.extensions)
    assert all(dict(by_kind.values[one.name]) == dict(at_once.values[one.name]) for one in at_once.extensions)
    assert by_kind.list_bringing("routers") == at_once.list_bringing("routers")


def test_what_is_built_in_can_be_together() -> None:
    assert find_conflicts(installed.load_built_in()) == ()
    assert fold_extensions(installed.load_built_in()).tools.keys() >= {"todo", "terminal"}


def test_an_extension_adds_to_what_is_built_in() -> None:
    installed.put_in_force(fold_extensions((*installed.load_built_in(), ACME)))
    assert get_declared_catalog().get_spec("look") is ACME.tools[0].spec
    assert find_provider(" AC ") is ACME.providers[0]
    assert "todo" in get_declared_catalog().names
    assert "openai" in list_provider_rows()
    installed.put_in_force(None)
    assert find_provider("ac") is None
    assert "look" not in get_declared_catalog().names


def test_its_tools_are_in_sessions_that_name_no_toolset() -> None:
    installed.put_in_force(fold_extensions((*installed.load_built_in(), ACME)))
    for usual in ("hermes-cli", "hermes-api-server", "hermes-cron", "acme"):
        assert "look" in get_declared_catalog().resolve([usual])
    assert "look" not in get_declared_catalog().resolve(["hermes-webhook"])
    assert "look" not in get_declared_catalog().resolve(["safe"])


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (Extension(name="b", version="1", tools=(tool("look"),)), "'acme' and 'b' both bring the tool 'look'"),
        (Extension(name="b", version="1", providers=(row("x", "ac"),)), "both bring the provider 'ac'"),
        (Extension(name="acme", version="2"), "two extensions are named 'acme'"),
        (Extension(name="b", version="1", api_version=API_VERSION + 1), f"'b' is made for version {API_VERSION + 1}"),
        (Extension(name="B c", version="1"), "'B c' is no name for an extension"),
        (Extension(name="b", version="1", tools=(tool("two words"),)), "'two words' of the extension 'b' is no name"),
        (Extension(name="b", version="1", tools=(tool("c", replay="pure?"),)), "the tool 'c' .* says no replay class"),
        (Extension(name="b", version="1", toolsets={"acme": ()}, tools=(tool("c"),)), "names both a toolset and"),
        (
            Extension(name="b", version="1", wires=(WireDeclaration(name="w", implementation="no.colon"),)),
            "'no.colon' of the extension 'b' has not the form",
        ),
        (
            Extension(name="b", version="1", hooks=(hook("x", "pre_tol_call"),)),
            "'x' .* 'pre_tol_call', which is no event",
        ),
        (Extension(name="b", version="1", hooks=(hook("x", "pre_verify"),)), "'pre_verify', which never happens here"),
        (Extension(name="b", version="1", hooks=(hook("x"),)), "the hook 'x' of the extension 'b' names no event"),
        (Extension(name="b", version="1", hooks=(hook("x y", "agent:*"),)), "'x y' .* has no usable name"),
        (Extension(name="b", version="1", hooks=(hook("x", "agent:*", timeout_s=0),)), "'x' .* must have a timeout_s"),
        (
            Extension(name="b", version="1", hooks=2 * (hook("x", "agent:*"),)),
            "the extension 'b' brings the hook 'x' twice",
        ),
        (
            Extension(name="b", version="1", wires=2 * (WireDeclaration(name="w", implementation="a:b"),)),
            "'b' brings the wire 'w' twice",
        ),
    ],
)
def test_what_cannot_be_together_is_said_in_a_sentence(other: Extension, sentence: str) -> None:
    with pytest.raises(ExtensionConflict, match=sentence):
        fold_extensions((ACME, other))


def test_hooks_are_asked_in_their_order() -> None:
    first = Extension(name="a", version="1", hooks=(hook("last", "agent:*", order=5), hook("second", "agent:*")))
    other = Extension(name="b", version="1", hooks=(hook("third", "agent:*"), hook("first", "agent:*", order=-1)))
    assert list(fold_extensions((first, other)).hooks) == ["first", "second", "third", "last"]


def test_every_conflict_is_named_at_once() -> None:
    other = Extension(name="b", version="1", tools=(tool("look"),), providers=(row("acme"),))
    assert len(find_conflicts((ACME, other))) == 2


KEY = SettingDeclaration(name="key", variable="ACME_KEY", summary="The key of Acme.", is_required=True, is_secret=True)


def test_a_setting_that_is_missing_is_named() -> None:
    with pytest.raises(ExtensionConflict, match=r"'acme' needs ACME_KEY \(The key of Acme\): set it, or disable"):
        fold_extensions((replace(ACME, settings=(KEY,)),), {"ACME_KEY": "  "})


def test_a_setting_reaches_the_extension_by_its_own_name() -> None:
    found = fold_extensions((replace(ACME, settings=(KEY,)),), {"ACME_KEY": "k", "OTHER": "x"})
    assert found.values["acme"] == {"key": "k"}


def test_a_secret_of_another_process_is_not_missing_here() -> None:
    assert fold_extensions((replace(ACME, settings=(KEY,)),), {}, withheld=["ACME_KEY"]).values["acme"] == {}


def test_a_row_that_is_none_is_refused() -> None:
    command = CommandDeclaration(name="x", summary="x", implementation="a:b")
    installed.put_in_force(
        fold_extensions((*installed.load_built_in(), Extension(name="b", version="1", commands=(command,))))
    )
    with pytest.raises(ConfigurationError, match=r"must be a hermes_worker\.\S+\.ProviderRow"):
        installed.require_rows(ProviderRow, [command])


def test_a_reference_is_loaded_or_named() -> None:
    assert load_reference("hermes_worker.core.replay:Replay.PURE") is Replay.PURE
    assert load_reference(tool) is tool
    with pytest.raises(ConfigurationError, match=r"'acme\.nowhere:x' of an extension cannot be loaded"):
        load_reference("acme.nowhere:x")


@pytest.mark.parametrize("reference", ["hermes_worker.nowhere:x", "hermes_worker.core.replay:Nothing"])
def test_a_missing_part_of_this_product_is_no_extension_s(reference: str) -> None:
    broken = r"this installation of hermes-worker is broken \(.*\); install it again: pip install --force-reinstall"
    with pytest.raises(ConfigurationError, match=broken):
        load_reference(reference)


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        (
            "flower.app",
            "this needs the module 'flower.app', which is not installed: pip install 'hermes-worker[flower]'",
        ),
        ("celery", "this installation of hermes-worker is broken (No module named 'celery'); install it again: "),
    ],
)
def test_a_missing_dependency_is_told_with_what_brings_it(missing: str, sentence: str) -> None:
    error = ModuleNotFoundError(f"No module named {missing!r}", name=missing)
    assert explain_missing(error).startswith(sentence)


def test_every_extra_with_a_module_of_its_own_is_known_by_it() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = {name for name, needs in document["project"]["optional-dependencies"].items() if needs}
    # websockets come with two of them; of the rest each has modules that nothing else brings.
    assert set(EXTRA_OF_MODULE.values()) == extras - {"test", "deploy-test", "sdk-test", "docs", "kubernetes", "s3"}
