"""Extensions of others, as they lie in a home or among installed packages."""

from __future__ import annotations

from pathlib import Path

from hermes_worker import plugins

CODE = '''
from hermes_worker.extending import Extension, SettingDeclaration, tool


@tool(replay="pure")
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


EXTENSION = Extension(name="loud", version="1.0", tools=(shout,))
'''
MANIFEST = "name: loud\nversion: '1.0'\ndescription: Says things louder.\nprovides_tools: [shout]\n"


def plugin(home: Path, code: str = CODE, manifest: str | None = MANIFEST, *, name: str = "loud") -> Path:
    folder = home / "plugins" / name
    folder.mkdir(parents=True, mode=0o755)
    (folder / "__init__.py").write_text(code)
    if manifest is not None:
        (folder / "plugin.yaml").write_text(manifest)
    for place in (home / "plugins", folder):
        place.chmod(0o755)
    return folder


def package(folder: Path, code: str = CODE, manifest: str | None = MANIFEST, *, name: str = "loud") -> None:
    """As pip leaves it: a package and its metadata."""
    module = f"{name}_package"
    (folder / module).mkdir(parents=True)
    (folder / module / "__init__.py").write_text(code)
    if manifest is not None:
        (folder / module / "plugin.yaml").write_text(manifest)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{name} = {module}:EXTENSION\n")
