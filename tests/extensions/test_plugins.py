"""Extensions of others: found without being imported, imported when they are enabled, refused in one sentence."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.extensions_of_others import CODE, MANIFEST, package, plugin

from hermes_worker import installed
from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.agent.tools.catalog import build_default_catalog, get_declared_catalog
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.extension import ExtensionConflict
from hermes_worker.models.catalog import resolve_wire
from hermes_worker.plugins import begin_extensions, build_compactor, list_available, read_manifest, require_settings
from hermes_worker.settings import Settings, build_handover, load_settings
from hermes_worker.settings.role_secrets import ProcessRole


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [name for name in sys.modules if name.endswith("_package") or name.startswith("hermes_plugins")]:
        del sys.modules[name]


def settings(home: Path, *enabled: str, **environ: str) -> Settings:
    return load_settings({"HERMES_EXTENSIONS": ",".join(enabled), **environ}, home=home)


def test_a_directory_of_the_home_is_a_plugin(home: Path, site: Path) -> None:
    plugin(home)
    begin_extensions(settings(home, "loud"))
    assert get_declared_catalog().get_spec("shout").description == "Say it louder."
    begin_extensions(settings(home))
    assert "shout" not in get_declared_catalog().names


def test_a_package_with_an_entry_point_is_an_extension(home: Path, site: Path) -> None:
    package(site)
    [found] = [one for one in list_available(home) if one.name == "loud"]
    assert (found.place, found.problem) == ("loud_package 1.0", "")
    begin_extensions(settings(home, "loud"))
    assert "shout" in get_declared_catalog().resolve(["hermes-cli"])


@pytest.mark.parametrize("make", [plugin, package])
def test_what_is_not_enabled_is_listed_and_never_imported(home: Path, site: Path, make: object) -> None:
    code = f"from pathlib import Path\nPath({str(home / 'imported')!r}).touch()\n{CODE}"
    plugin(home, code) if make is plugin else package(site, code)
    [found] = [one for one in list_available(home) if one.name == "loud"]
    assert found.manifest is not None
    assert found.manifest.brings == {"tools": ("shout",)}
    assert found.manifest.summary == "Says things louder."
    begin_extensions(settings(home))
    assert not (home / "imported").exists()
    begin_extensions(settings(home, "loud"))
    assert (home / "imported").exists()


@pytest.mark.parametrize("make", [plugin, package])
def test_its_tool_is_called_as_a_worker_calls_it(home: Path, site: Path, context: ToolContext, make: object) -> None:
    plugin(home) if make is plugin else package(site)
    begin_extensions(settings(home, "loud"))
    assert run_tool(build_default_catalog().get("shout"), '{"text": "hi"}', context).text == "HI"


def test_the_same_settings_import_once(home: Path, site: Path) -> None:
    plugin(home)
    assert begin_extensions(settings(home, "loud")) is begin_extensions(settings(home, "loud"))


REFUSED = {
    "it is not there": (None, MANIFEST, "'loud' is enabled .* and is not there: install its package, put it into"),
    "no manifest": (CODE, None, "holds no plugin.yaml"),
    "another name": (CODE, "name: quiet\n", "must be a mapping with name: loud"),
    "no mapping": (CODE, "- name: loud\n", "must be a mapping with name: loud"),
    "no YAML": (CODE, "{{{", "cannot be read as YAML"),
    "other version": ("import nothing_like_that", f"{MANIFEST}api_version: 99\n", "made for version 99"),
    "it raises": ("raise RuntimeError('no luck')", MANIFEST, "cannot be imported: RuntimeError: no luck"),
    "it ends the process": ("raise SystemExit(3)", MANIFEST, "cannot be imported: SystemExit: 3"),
    "no extension": ("EXTENSION = 1", MANIFEST, "must be a hermes_worker.extension.Extension"),
    "nothing": ("", MANIFEST, "cannot be imported: AttributeError"),
    "calls itself": (CODE.replace('name="loud"', 'name="quiet"'), MANIFEST, "calls itself 'quiet'"),
    "says less": (CODE, "name: loud\n", r"brings what its plugin.yaml does not name: shout \(tools\)"),
    "same tool": (
        CODE.replace("def shout", "def todo").replace("(shout,)", "(todo,)"),
        "name: loud\nprovides_tools: [todo]\n",
        "'tools' and 'loud' both bring the tool 'todo': disable one of them",
    ),
    "wrong default of a secret": (
        CODE.replace(
            "tools=(shout,)",
            "tools=(shout,), settings=(SettingDeclaration("
            'name="a", variable="LOUD_TOKEN", summary="A.", is_secret=True, default="x"),)',
        ),
        f"{MANIFEST}provides_settings: [LOUD_TOKEN]\n",
        "LOUD_TOKEN of the extension 'loud' is a secret: it is text and has no default",
    ),
    "quiet secret": (
        CODE.replace(
            "tools=(shout,)",
            'tools=(shout,), settings=(SettingDeclaration(name="a", variable="LOUD_A", summary="A.", is_secret=True),)',
        ),
        f"{MANIFEST}provides_settings: [LOUD_A]\n",
        "LOUD_A of the extension 'loud' holds a secret and is not called like one",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_keeps_it_from_being_used_is_one_sentence(home: Path, site: Path, case: str) -> None:
    code, manifest, sentence = REFUSED[case]
    if code is not None:
        plugin(home, code, manifest)
    with pytest.raises(ExtensionConflict, match=sentence) as raised:
        begin_extensions(settings(home, "loud"))
    assert "\n" not in str(raised.value)
    assert "todo" in installed.get_installed().tools, "what was in force stays so"


def test_two_of_one_name_are_refused(home: Path, site: Path) -> None:
    plugin(home)
    package(site)
    with pytest.raises(ExtensionConflict, match="two extensions are named 'loud', in"):
        begin_extensions(settings(home, "loud"))


def test_code_that_others_may_change_is_not_loaded(home: Path, site: Path) -> None:
    folder = plugin(home)
    folder.chmod(0o777)
    with pytest.raises(ExtensionConflict, match=r"can be changed by others, .* \(chmod go-w "):
        begin_extensions(settings(home, "loud"))


def test_nothing_is_imported_in_the_thread_of_an_event_loop(home: Path, site: Path) -> None:
    plugin(home)

    async def serve() -> None:
        begin_extensions(settings(home, "loud"))

    with pytest.raises(RuntimeError, match="never in the thread of an event loop"):
        asyncio.run(serve())


@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("HERMES_WORKSPACE", "terminal.workspace"),
        ("HERMES_COMPACTOR", "compression.compactor"),
        ("HERMES_API_MODE", "model.api_mode"),
    ],
)
def test_a_plug_that_is_chosen_and_that_nobody_brings_is_refused(
    home: Path, site: Path, variable: str, key: str
) -> None:
    with pytest.raises(ExtensionConflict, match=rf"{key} .* is 'moon', which no enabled extension brings: choose one"):
        begin_extensions(settings(home, **{variable: "moon"}))


MOON = """
from hermes_worker.extending import CompactorDeclaration, Extension, WireDeclaration

class Forgetful:
    def __init__(self, values):
        self.values = values

EXTENSION = Extension(
    name="loud",
    version="1",
    wires=(WireDeclaration(name="moon", implementation="hermes_plugins.loud:Forgetful"),),
    compactors=(CompactorDeclaration(name="moon", implementation="hermes_plugins.loud:Forgetful"),),
)
"""


def test_a_wire_and_a_compactor_of_others_can_be_chosen(home: Path, site: Path) -> None:
    plugin(home, MOON, "name: loud\nprovides_wires: [moon]\nprovides_compactors: [moon]\n")
    ours = settings(home, "loud", HERMES_API_MODE="Moon", HERMES_COMPACTOR="moon")
    begin_extensions(ours)
    assert ours.model.api_mode == "moon"
    assert resolve_wire(api_mode="moon", provider="custom", base_url="http://x.example", model="m").wire == "moon"
    assert type(build_compactor("moon")).__name__ == "Forgetful"
    with pytest.raises(ExtensionConflict, match="no enabled extension brings the compactor 'sun'"):
        build_compactor("sun")


SECRET = CODE.replace(
    "tools=(shout,)",
    "tools=(shout,), settings=(SettingDeclaration("
    'name="token", variable="LOUD_TOKEN", summary="The token.", is_required=True, is_secret=True, roles=("tools",)),)',
)


def test_a_secret_goes_to_the_roles_that_its_declaration_names(home: Path, site: Path) -> None:
    plugin(home, SECRET, f"{MANIFEST}provides_settings: [LOUD_TOKEN]\n")
    ours = settings(home, "loud", LOUD_TOKEN="hush-hush-hush")
    begin_extensions(ours)
    assert "hush-hush-hush" in {secret.reveal() for secret in ours.secrets}, "no log shows it"

    def given(role: ProcessRole) -> Mapping[str, str]:
        environ, handover = build_handover(ours, role)
        assert "LOUD_TOKEN" not in environ
        return handover.variables

    assert given(ProcessRole.TOOLS)["LOUD_TOKEN"] == "hush-hush-hush"
    assert all(
        "LOUD_TOKEN" not in given(role)
        for role in (ProcessRole.MODEL, ProcessRole.DELIVERY, ProcessRole.API, ProcessRole.BEAT)
    )


def test_a_required_setting_is_asked_for_by_the_roles_that_use_it(home: Path, site: Path) -> None:
    """A command that lists runs needs no key of a warehouse, and neither does the API."""
    plugin(home, SECRET, f"{MANIFEST}provides_settings: [LOUD_TOKEN]\n")
    ours = settings(home, "loud")
    begin_extensions(ours)
    require_settings(
        ours, [ProcessRole.API, ProcessRole.BEAT, ProcessRole.MODEL, ProcessRole.DELIVERY, ProcessRole.SYSTEM]
    )
    with pytest.raises(ExtensionConflict, match=r"'loud' needs LOUD_TOKEN \(The token\): set it, or disable the ext"):
        require_settings(ours, [ProcessRole.TOOLS])
    require_settings(settings(home, "loud", LOUD_TOKEN="hush-hush-hush"), [ProcessRole.TOOLS])


@pytest.mark.parametrize("text", ["name: loud\nprovides_tools: shout\n", "name: loud\nprovides_tools: [1]\n"])
def test_a_manifest_lists_names(tmp_path: Path, text: str) -> None:
    (tmp_path / "plugin.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"provides_tools in .* must be a list of names"):
        read_manifest(tmp_path / "plugin.yaml", "loud")
