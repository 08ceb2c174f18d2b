"""Make the JSON schemas beside this file from TypeScript declarations of the custom resources.

The packages are MIT licensed (https://github.com/tommy351/kubernetes-models-ts) and generated from the vendors' own
definitions. Nothing is installed; in an empty directory:

    npm pack @kubernetes-models/keda@2.0.0 @kubernetes-models/prometheus-operator@6.0.0 \\
        @kubernetes-models/external-secrets@2.0.0 @kubernetes-models/cert-manager@4.4.4 \\
        @kubernetes-models/apimachinery kubernetes-models
    python make.py THAT_DIRECTORY

A declaration names every field and its type, and nothing else is allowed: no range, no pattern.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
import tarfile
from pathlib import Path
from typing import Any

KINDS = {
    "ScaledObject": "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject",
    "TriggerAuthentication": "@kubernetes-models/keda/keda.sh/v1alpha1/TriggerAuthentication",
    "ServiceMonitor": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor",
    "PodMonitor": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PodMonitor",
    "PrometheusRule": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PrometheusRule",
    "ExternalSecret": "@kubernetes-models/external-secrets/external-secrets.io/v1/ExternalSecret",
    "Certificate": "@kubernetes-models/cert-manager/cert-manager.io/v1/Certificate",
}
SIMPLE = {
    "string": {"type": "string"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "any": {},
    "unknown": {},
    "{}": {"type": "object"},
    "object": {"type": "object"},
    "null": {"type": "null"},
}
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[A-Za-z_$][\w$]*|[{}\[\]()<>|&?:;,]|-?\d+')
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


class Declarations:
    """The declaration files of some packages, and the schemas of the types that were asked for."""

    def __init__(self, tarballs: Path) -> None:
        self._files: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.schemas: dict[str, Any] = {}
        for path in sorted(tarballs.glob("*.tgz")):
            self._read(path)

    def _read(self, path: Path) -> None:
        with tarfile.open(path) as packed:
            texts = {
                member.name.removeprefix("package/"): found.read().decode()
                for member in packed
                if member.name.endswith((".d.ts", "package.json")) and (found := packed.extractfile(member))
            }
        package = json.loads(texts.pop("package.json"))
        self.versions[package["name"]] = package["version"]
        self._files |= {f"{package['name']}/{name}": _COMMENT.sub("", text) for name, text in texts.items()}

    def reference(self, module: str, name: str) -> dict[str, str]:
        """A reference to a type; its schema is made when it is asked for first."""
        key = f"{module.removeprefix('@kubernetes-models/').replace('/', '.')}:{name}"
        if key not in self.schemas:
            self.schemas[key] = {}  # a type may refer to itself
            self.schemas[key] = _Reader(self, module, self._files[f"{module}.d.ts"]).named(name)
        return {"$ref": f"#/$defs/{key}"}


class _Reader:
    """One file."""

    def __init__(self, all_of: Declarations, module: str, text: str) -> None:
        self._all = all_of
        self._module = module
        self._text = text
        self._imported: dict[str, str] = {}
        for names, source in re.findall(r'import \{([^}]*)\} from "([^"]+)"', text):
            target = source.removesuffix(".js")
            if target.startswith("."):
                target = posixpath.normpath(posixpath.join(posixpath.dirname(module), target))
            self._imported |= {name.strip(): target for name in names.split(",")}
        self._tokens: list[str] = []

    def named(self, name: str) -> dict[str, Any]:
        alias = re.search(r"export (?:type )?\{[^}]*?(\w+) as " + name + r"\b", self._text)
        if alias and not re.search(rf"(interface|type) {name}\b[^,}}]*[{{=]", self._text):
            name = alias[1]
        found = re.search(rf"export interface {name}(?: extends ([\w, ]+))? (\{{.*)", self._text, re.DOTALL)
        if found:
            self._tokens = _TOKEN.findall(found[2])[::-1]
            own = self._object()
            for parent in filter(None, map(str.strip, (found[1] or "").split(","))):
                if parent != "TypeMeta":
                    inherited = self._all.schemas[self._key(self._refer(parent))]
                    own["properties"] = {**inherited["properties"], **own["properties"]}
                    own["required"] = sorted({*inherited["required"], *own["required"]})
            return own
        assigned = re.search(rf"export (?:declare )?type {name} = (.*?;)\n", self._text, re.DOTALL)
        assert assigned, (self._module, name)
        self._tokens = _TOKEN.findall(assigned[1])[::-1]
        return self._type()

    def _key(self, reference: dict[str, str]) -> str:
        return reference["$ref"].removeprefix("#/$defs/")

    def _refer(self, name: str) -> dict[str, str]:
        return self._all.reference(self._imported.get(name, self._module), name)

    def _take(self, *expected: str) -> str:
        token = self._tokens.pop()
        assert not expected or token in expected, (self._module, token, expected)
        return token

    def _object(self) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        required: list[str] = []
        rest: Any = False
        self._take("{")
        while self._tokens[-1] != "}":
            if self._tokens[-1] == "[":
                while self._take() != "]":
                    pass
                self._take(":")
                rest = self._type()
            else:
                name = self._take().strip('"')
                if self._tokens[-1] == "?":
                    self._take()
                else:
                    required.append(name)
                self._take(":")
                properties[name] = self._type()
            self._take(";")
        self._take("}")
        return {
            "type": "object",
            "properties": properties,
            "required": sorted(required),
            "additionalProperties": rest,
        }

    def _type(self) -> dict[str, Any]:
        options = [self._single()]
        while self._tokens and self._tokens[-1] in ("|", "&"):
            self._take()
            options.append(self._single())
        words = [option["const"] for option in options if "const" in option]
        others = [option for option in options if "const" not in option]
        if words:
            others.append({"enum": words})
        return others[0] if len(others) == 1 else {"anyOf": others}

    def _single(self) -> dict[str, Any]:
        token = self._tokens[-1]
        if token == "{":
            return self._object()
        self._take()
        if token == "Array":
            self._take("<")
            items = self._type()
            self._take(">")
            return {"type": "array", "items": items}
        if token.startswith('"'):
            return {"const": json.loads(token)}
        if token == "(":
            inner = self._type()
            self._take(")")
            return inner
        return SIMPLE[token] if token in SIMPLE else self._refer(token)


def main() -> None:
    declarations = Declarations(Path(sys.argv[1]))
    kinds = {kind: declarations.reference(module, f"I{kind}") for kind, module in KINDS.items()}
    document = {
        "$comment": "made by make.py from " + ", ".join(f"{k} {v}" for k, v in sorted(declarations.versions.items())),
        "kinds": kinds,
        "$defs": declarations.schemas,
    }
    text = json.dumps(document, separators=(",", ":"), sort_keys=True)
    Path(__file__).with_name("schemas.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
