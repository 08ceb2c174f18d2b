"""The directory that the agent of a chat works in: only one that the person named, or said yes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_worker.cli.chat.directory import ChosenDirectory, choose_directory
from hermes_worker.cli.chat.remembered import ChatFolder
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings import Settings, TerminalSettings


class Person:
    """Somebody who answers, and how often they were asked."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.asked: list[Path] = []

    def __call__(self, directory: Path) -> bool:
        self.asked.append(directory)
        return self.answer


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "me" / "project").mkdir(parents=True)
    (tmp_path / "home" / "inside").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.chdir(tmp_path / "me" / "project")
    return (tmp_path / "me" / "project").resolve()


def chosen(
    tmp_path: Path,
    person: Person | None = None,
    *,
    named: Path | None = None,
    declined: bool = False,
    kind: str = "local",
) -> ChosenDirectory:
    settings = Settings(home=tmp_path / "home", terminal=TerminalSettings(workspace=kind))
    folder = ChatFolder(settings.home)
    return choose_directory(settings, folder, named=named, is_declined=declined, confirm=person)


@pytest.mark.parametrize("answer", [True, False])
def test_the_current_directory_is_asked_about_once(tmp_path: Path, project: Path, answer: bool) -> None:
    person = Person(answer)
    expected = ChosenDirectory(path=project if answer else None)
    assert chosen(tmp_path, person) == chosen(tmp_path, person) == chosen(tmp_path) == expected
    assert person.asked == [project]
    assert (tmp_path / "home" / "chat" / "directories.json").stat().st_mode & 0o777 == 0o600


def test_without_a_person_no_directory_is_taken(tmp_path: Path, project: Path) -> None:
    assert chosen(tmp_path) == ChosenDirectory()
    person = Person(True)
    assert chosen(tmp_path, person, declined=True) == ChosenDirectory() and person.asked == []


@pytest.mark.parametrize(("place", "why"), [("me", "your home directory"), ("/", "the root"), (".", "above the home")])
def test_wide_directories_need_the_flag(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch, place: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path / place)
    person = Person(True)
    found = chosen(tmp_path, person)
    assert found.path is None and why in found.why_not and "--workspace ." in found.why_not
    assert person.asked == []
    assert chosen(tmp_path, named=Path()).path == (tmp_path / place).resolve()


def test_the_state_of_the_product_is_never_a_workspace(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "home" / "inside")
    person = Person(True)
    assert "holds the state of hermes-worker" in chosen(tmp_path, person).why_not and person.asked == []
    with pytest.raises(ConfigurationError, match="holds the state of hermes-worker"):
        chosen(tmp_path, named=Path())


def test_agents_that_work_elsewhere_are_said_to(tmp_path: Path, project: Path) -> None:
    person = Person(True)
    assert chosen(tmp_path, person, kind="docker").why_not == (
        "the agent works in a workspace of the kind docker and cannot see this directory"
    )
    remote = choose_directory(None, ChatFolder(tmp_path), named=None, is_declined=False, confirm=person)
    assert remote.why_not == "the agent works on the server and cannot see this directory"
    assert person.asked == []
    with pytest.raises(ConfigurationError, match="the run works on the server's"):
        choose_directory(None, ChatFolder(tmp_path), named=project, is_declined=False, confirm=None)
    with pytest.raises(ConfigurationError, match="give one of them"):
        chosen(tmp_path, named=project, declined=True)
