"""Which functions of the product are called neither by a verb nor for a reason that excuses them."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

import hermes_worker.extending as extending
import hermes_worker.testing as testing
from hermes_worker.client import HermesClient

Function = ast.FunctionDef | ast.AsyncFunctionDef

_READ_AS_THINGS = {"property", "cached_property", "contextmanager", "asynccontextmanager", "fixture"}
_TURNS = {"as", "for", "from", "of", "on", "to", "with"}
"""How conversions (``to_row``), variants (``with_limits``, ``for_tenant``) and handlers (``on_close``) begin."""
_CLAIMS = {"always", "are", "can", "cannot", "did", "differ", "does", "has", "have", "is", "may", "must", "was", "were"}
_MADE_FOR_TABLES = {"Metric", "SettingKind", "WithJsonSchema", "_Command", "_Test"}
"""What is written into a declaration is called like a word of it: ``integer(1, 5)``, ``@reachable``."""
_TABLES = {"hermes_worker.safety.dangers"}
"""Where functions are the rows of a table and read as what they find: ``_danger_of_git``, ``_deletes_system``."""
_NAMED_BY_OTHERS = {
    "structlog and logging": {"debug", "info", "warning", "error", "exception", "msg"},
    "DB-API and SQLAlchemy": {"cursor", "executemany", "fetchone", "fetchall", "first", "one", "all"},
    "HTTPX": {"aread", "aiter_bytes"},
    "compactors of extensions": {"pruning"},
}


@dataclass(frozen=True)
class NamedFunction:
    """A function of a module, with the class in whose body it stands."""

    module: str
    node: Function
    owner: ast.ClassDef | None

    @property
    def words(self) -> list[str]:
        return self.node.name.strip("_").split("_")

    @cached_property
    def result(self) -> str:
        return ast.unparse(self.node.returns) if self.node.returns else ""

    @cached_property
    def decorators(self) -> set[str]:
        return {ast.unparse(each).partition("(")[0].rpartition(".")[2] for each in self.node.decorator_list}

    @property
    def is_registered(self) -> bool:
        """Whether a decorator with arguments makes a route, a command, a tool or the like of it, or sets its name."""
        calls = [each.func for each in self.node.decorator_list if isinstance(each, ast.Call)]
        return any(ast.unparse(each).rpartition(".")[2] != "lru_cache" for each in calls)

    @property
    def is_public_name(self) -> bool:
        """Whether extensions, their tests or users of the client call it or define it so: those names stay."""
        if self.module.endswith(".operations") or self.module == "hermes_worker.client.conversation":
            return hasattr(HermesClient, self.node.name)
        offers = [getattr(offer, name) for offer in (extending, testing) for name in offer.__all__]
        if self.owner is not None:
            return any(self.node.name in vars(each) for each in offers if isinstance(each, type))
        names = {(getattr(each, "__module__", ""), getattr(each, "__name__", "")) for each in offers}
        return (self.module, self.node.name) in names

    def is_inherited(self) -> bool:
        """Whether a library sets the name: a class of it, or of the standard library, has one that it replaces."""
        if self.owner is None:
            return False
        scope = vars(importlib.import_module(self.module))
        for base in self.owner.bases:
            try:
                found = eval(ast.unparse(base), scope)  # noqa: S307  # our own source
            except (NameError, AttributeError):
                continue
            for each in getattr(found, "__mro__", ()):
                if not each.__module__.startswith(("hermes_worker", "scheduler")) and self.node.name in vars(each):
                    return True
        return False


def list_functions(module: str, tree: ast.Module) -> Iterator[NamedFunction]:
    def walk(node: ast.AST, owner: ast.ClassDef | None) -> Iterator[NamedFunction]:
        for each in ast.iter_child_nodes(node):
            if isinstance(each, Function) and not each.name.startswith("__"):
                yield NamedFunction(module, each, owner)
            opens = isinstance(each, Function | ast.ClassDef)
            yield from walk(each, (each if isinstance(each, ast.ClassDef) else None) if opens else owner)

    return walk(tree, None)


def list_exceptions(trees: Collection[ast.Module]) -> set[str]:
    """The names of exceptions: those of Python, and what the product derives from them."""
    types = {name: each for name, each in vars(builtins).items() if isinstance(each, type)}
    found = {name for name, each in types.items() if issubclass(each, BaseException)}
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    count = 0
    while count < len(found):
        count = len(found)
        for node in classes:
            bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
            if any(base in found or base.endswith(("Error", "Exception")) for base in bases):
                found.add(node.name)
    return found


class VerbRule:
    """Tells which functions need another name."""

    def __init__(self, verbs: Collection[str], trees: Collection[ast.Module]) -> None:
        self._verbs = verbs
        self._exceptions = list_exceptions(trees)

    def is_broken(self, function: NamedFunction) -> bool:
        words, results = function.words, set(re.findall(r"\w+", function.result))
        is_claim = any(map(self._is_claim, words))
        return not (
            self._begins_with_verb(words)
            or words[0] in _TURNS
            or (is_claim and "bool" in results)
            or (function.module in _TABLES and (is_claim or words[0].startswith("danger")))
            or function.decorators & _READ_AS_THINGS
            or "AbstractContextManager" in results
            or results & self._exceptions  # ``raise tenant_not_found(name)``
            or results & _MADE_FOR_TABLES
            or function.is_registered
            or any(function.node.name in names for names in _NAMED_BY_OTHERS.values())
            or function.is_public_name
            or function.is_inherited()
        )

    def _begins_with_verb(self, words: list[str]) -> bool:
        is_thing = len(words) == 2 and words[1] == "of"  # ``limit_of`` is one, whatever else ``limit`` is
        return words[0] in self._verbs and not is_thing

    def _is_claim(self, word: str) -> bool:
        """``is``, or the third person of a verb."""
        endings = (("s", ""), ("es", ""), ("ies", "y"))
        stems = {word.removesuffix(ending) + rest for ending, rest in endings if word.endswith(ending)}
        return word in _CLAIMS or bool(stems & self._verbs)
