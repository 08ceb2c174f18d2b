"""The hostile inputs of tools as one set: paths, URLs, documents, archives, results of MCP servers, arguments.

``counted`` says how many there are of each kind. ``tests/tools/test_hostile_inputs.py`` plays those of this module and
holds the number of all; documents and archives are played where their readers are tested
(``tests/tools/test_read_documents.py``, ``tests/cli/test_backup.py``).
"""

# ruff: noqa: E501
from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping

from support.hostile_documents import hostile_documents

# --- paths: each leads out of the workspace, to a credential, or to what is no file -----------------------------------

SECRET = "s3cret-of-another"
"""What stands outside the workspace, in the file that the links of ``PATHS`` lead to."""
_OUTSIDE = (
    *("../outside/secret", "./../outside/secret", "sub/../../outside/secret", "sub/.././../outside/secret"),
    *("..", "../", "../..", "../../../../../../../../etc/passwd", "sub/../..", "./.././outside", "..//outside//secret"),
    *("/", "//", "/etc/passwd", "//etc/passwd", "/etc/../etc/passwd", "/./etc/passwd", "/etc/shadow", "/root/.ssh/id_rsa"),
    *("/proc/self/environ", "/proc/self/mem", "/proc/1/cmdline", "/proc/self/root/etc/passwd", "/proc/self/cwd/x"),
    *("/dev/zero", "/dev/stdin", "/dev/fd/0", "/sys/kernel/notes", "/tmp/x", "/var/run/docker.sock", "/run/secrets/x"),
    *("~", "~/notes", "~/.bashrc"),
    *("", "a\0b", "\0", "sub/\0/../../outside/secret", "n" * 300, "n" * 100_000, "sub/" * 2_000 + "n"),
    *("out/secret", "out/../outside/secret", "out", "link", "dangling", "chain", "circle", "out/new/file", "sub/up/secret"),
)  # fmt: skip
_PROTECTED = (
    *(".env", "./.env", "sub/../.env", "sub//.env", "sub/.env", ".ENV", ".Env.Local", ".env.production", ".envrc"),
    *(".ssh/config", ".ssh/id_ed25519", "sub/.ssh/known_hosts", ".aws/credentials", ".gnupg/private-keys", ".netrc"),
    *(".pgpass", ".git-credentials", "keys/id_rsa", "keys/id_ecdsa", "alias-of-env", ".env/../.env"),
)
PATHS = (*_OUTSIDE, *_PROTECTED)

# --- URLs: none may be asked, and none needs a resolver to be refused -------------------------------------------------

_SCHEMES = (
    *("file:///etc/passwd", "FILE:///etc/passwd", "ftp://93.184.216.34/", "gopher://93.184.216.34/_x", "dict://h:11211/"),
    *("javascript:alert(1)", "data:text/html,x", "blob:http://h/x", "view-source:http://h/", "ws://h/", "ldap://h/"),
    *("//93.184.216.34/x", "93.184.216.34", "", " ", "http:", "http://", "http:///x", "https://:443/", "http://?x", "http://#x"),
    *("jar:http://h!/x", "ht\ttp://h/", "http:\\\\h\\x", "://h", "http//h"),
)  # fmt: skip
_HOSTS = (
    *("127.0.0.1", "127.255.255.254", "127.0.0.1.", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1"),
    *("100.64.0.1", "169.254.169.254", "169.254.170.2", "169.254.169.254.", "100.100.100.200", "192.0.0.192"),
    *("168.63.129.16", "198.18.0.1", "192.0.2.1", "203.0.113.5", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
    *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]"),
    *("[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "[fd00:ec2::254]", "[fe80::1]", "[fc00::1]"),
    *("[ff02::1]", "[2001:db8::1]", "[::1%25lo]", "[fe80::1%eth0]", "[::g]", "[v1.x:y]", "[", "[::1", "::1"),
    *("2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001", "127.1", "127.0.1", "0", "2852039166", "0xa9fea9fe"),
    *("0251.0376.0251.0376", "025177524776", "169.254.43518", "１２７.1", "127。1", "①②⑦.1"),
    *("metadata.google.internal", "METADATA.google.internal.", "x.metadata.goog", "a..b", "ex*mple.org", "%31.example"),
    *("user@93.184.216.34", "user:pw@93.184.216.34", "93.184.216.34\\@h", "a b", "h\t", "h\r\nHost: x", "h\0", "a" * 64 + ".example"),
)  # fmt: skip
_PORTS = (
    *(0, 1, 22, 23, 25, 53, 110, 143, 389, 445, 587, 3306, 5432, 6379, 11211, 27017, 65536, -1),
    "x",
    "８０",
    "80a",
)
URLS = (
    *_SCHEMES,
    *(f"http://{host}/" for host in _HOSTS),
    *(f"http://93.184.216.34:{port}/" for port in _PORTS if port != 445),
    "http://93.184.216.34/" + "x" * 9_000,
)

# --- answers of MCP servers: what stands in the body of a response ----------------------------------------------------


def _result(result: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()


_CONTENTS: tuple[object, ...] = (
    *(None, 7, True, "text", {}, [], [None], [[]], [{}], [7], ["text"], [{"type": "text"}], [{"type": "text", "text": 7}]),
    *([{"type": [], "uri": {}}], [{"text": None}], [{"text": ["a"]}], [{"resource": []}], [{"resource": {"text": 5}}]),
    *([{"type": "image", "data": "x" * 10_000}], [{"uri": "x" * 10_000}], [{"type": "x" * 10_000, "mimeType": []}]),
    *([{"text": "x"}] * 5_000, [{"type": "text", "text": "x" * 2_000_000}], [{"text": "\ud800"}], [{"text": "\0" * 1_000}]),
)  # fmt: skip
_TASKS: tuple[Mapping[str, object], ...] = (
    {},
    {"taskId": "t"},
    {"taskId": "t", "status": []},
    {"taskId": "t", "status": {}},
    {"taskId": "t", "status": "done"},
    {"taskId": "t" * 10_000, "status": "working"},
    {"taskId": "../../x", "status": "working"},
    {"taskId": "a\nb", "status": "working"},
    {"taskId": 7, "status": "working"},
    {"taskId": [], "status": "working"},
    {"taskId": "t", "status": None},
    {
        "taskId": "t",
        "status": "working",
        "pollIntervalMs": "soon",
        "statusMessage": {},
        "error": [],
        "inputRequests": [],
    },
    {"taskId": "t", "status": "working", "pollIntervalMs": -1e308, "statusMessage": "x" * 100_000},
)
_TOOLS: tuple[object, ...] = (
    *(None, {}, "tools", [None], [{}], [{"name": 7}], [{"name": ""}], [{"name": "a b"}], [{"name": "x" * 1_000}]),
    *([{"name": "a"}], [{"name": "a", "inputSchema": []}], [{"name": "a", "inputSchema": {"type": "array"}}]),
    *([{"name": "a", "description": 7, "inputSchema": {"type": "object"}}], [{"name": "\u202ea"}], [{"name": "a\0"}]),
    *([{"name": "a", "inputSchema": {"type": "object", "properties": {"p": {"x-mcp-header": "Cookie"}}}}],),
    *([{"name": "a", "inputSchema": {"type": "object", "d": "x" * 1_000_000}}],),
)
MCP_BODIES: tuple[bytes, ...] = (
    *(b"", b" ", b"\0", b"\xff\xfe", b"{", b"[", b"[]", b"null", b"7", b'"x"', b"{}", b"<html>", b"[" * 100_000),
    *(b'{"id": 1}', b'{"id": 1, "result": null}', b'{"id": 1, "result": []}', b'{"id": 2, "result": {}}'),
    *(b'{"id": "1", "result": {}}', b'{"id": 1, "method": "x", "result": {}}', b'{"id": 1, "result": {}', b"9" * 6_000),
    *(b'{"id": 1, "error": {}}', b'{"id": 1, "error": []}', b'{"id": 1, "error": {"code": [], "message": {}}}'),
    *(b'{"id": 1, "error": {"code": 1e999}}', b'{"id": 1, "error": {"message": "' + b"x" * 100_000 + b'"}}'),
    *(_result({"resultType": kind}) for kind in ([], {}, None, 7, "input_required", "x" * 10_000)),
    _result({"resultType": "input_required", "inputRequests": {"a": {"method": ["x"]}}}),
    _result({"resultType": "input_required", "inputRequests": [{"method": "x"}]}),
    *(_result({"content": content, "isError": "yes"}) for content in _CONTENTS),
    *(_result({"structuredContent": content}) for content in (float("nan"), "x" * 1_000_000, [[[[]]]] * 1_000)),
    *(_result({"resultType": "task", **task}) for task in _TASKS),
    *(_result({"tools": tools, "nextCursor": []}) for tools in _TOOLS),
)

# --- arguments of tools, as a model writes them -----------------------------------------------------------------------

_ANY_TOOL = (
    *("null", "[]", "5", '"x"', "true", "{", "}", "{'a': 1}", '{"a": 1}{"a": 2}', "[" * 50_000, '{"a":' * 50_000),
    *("NaN", '{"a": NaN}', '{"path": 1e999}', "9" * 6_000, "\0", "\ufeff{}", '{"\ud800": 1}', "<tool>x</tool>"),
)
_OF_TOOLS: tuple[tuple[str, Mapping[str, object]], ...] = (
    ("read_file", {}),
    ("read_file", {"path": None}),
    ("read_file", {"path": ["a"]}),
    ("read_file", {"path": {"$ref": "#"}}),
    ("read_file", {"path": "notes.txt", "offset": -1}),
    ("read_file", {"path": "notes.txt", "offset": 10**30}),
    ("read_file", {"path": "notes.txt", "limit": "many"}),
    ("read_file", {"path": "notes.txt", "limit": 0}),
    ("read_file", {"path": "x" * 100_000}),
    ("write_file", {"path": "a"}),
    ("write_file", {"content": "x"}),
    ("write_file", {"path": "sub", "content": "a directory"}),
    ("write_file", {"path": "notes.txt/below", "content": "x"}),
    ("write_file", {"path": "a", "content": {"x": 1}, "extra": []}),
    ("write_file", {"path": "a", "content": "key: «redacted:sk-…»"}),
    ("patch", {}),
    ("patch", {"mode": "replace", "path": "notes.txt", "old_string": "", "new_string": "x"}),
    ("patch", {"mode": "replace", "path": "notes.txt", "old_string": "not there", "new_string": "x"}),
    ("patch", {"mode": "replace", "path": "../outside/secret", "old_string": "s", "new_string": "x"}),
    ("patch", {"mode": "nonsense", "path": "notes.txt"}),
    ("patch", {"mode": "patch"}),
    ("patch", {"mode": "patch", "patch": ""}),
    ("patch", {"mode": "patch", "patch": "*** Begin Patch"}),
    ("patch", {"mode": "patch", "patch": "*** Begin Patch\n*** End Patch"}),
    ("patch", {"mode": "patch", "patch": "*** Begin Patch\n*** Add File: ../outside/new\n+x\n*** End Patch"}),
    ("patch", {"mode": "patch", "patch": "*** Begin Patch\n*** Add File: /etc/new\n+x\n*** End Patch"}),
    ("patch", {"mode": "patch", "patch": "*** Begin Patch\n*** Delete File: ../outside/secret\n*** End Patch"}),
    ("patch", {"mode": "patch", "patch": "*** Begin Patch\n*** Move File: notes.txt -> ../outside/n\n*** End Patch"}),
    ("patch", {"mode": "patch", "patch": "*** Begin Patch\n*** Add File: .env\n+x\n*** End Patch"}),
    ("patch", {"mode": "patch", "patch": "*** Begin Patch\n*** Update File: out/secret\n@@\n-s\n+x\n*** End Patch"}),
    ("search_files", {}),
    ("search_files", {"pattern": "("}),
    ("search_files", {"pattern": "x", "path": "../outside"}),
    ("search_files", {"pattern": "x", "path": "/etc"}),
    ("search_files", {"pattern": "x", "path": "out"}),
    ("search_files", {"pattern": "x", "target": "nonsense"}),
    ("search_files", {"pattern": ["x"]}),
    ("web_extract", {}),
    ("web_extract", {"urls": []}),
    ("web_extract", {"urls": "file:///etc/passwd"}),
    ("web_extract", {"urls": [7]}),
    ("web_extract", {"urls": ["http://127.0.0.1/"] * 100}),
    ("vision_analyze", {"image_url": "../outside/secret", "question": "?"}),
    ("vision_analyze", {"image_url": "out/secret", "question": "?"}),
    ("vision_analyze", {"image_url": ".env", "question": "?"}),
    ("vision_analyze", {"image_url": "data:image/png;base64,!!!!", "question": "?"}),
    ("vision_analyze", {"image_url": "file:///etc/passwd", "question": "?"}),
    ("clarify", {}),
    ("todo", {"todos": "x"}),
    ("todo", {"todos": [7]}),
    ("delegate_task", {"tasks": "x"}),
    ("delegate_task", {"tasks": [None]}),
)
ARGUMENTS: tuple[tuple[str, str], ...] = (
    *(("write_file", text) for text in _ANY_TOOL),
    *((name, json.dumps(arguments)) for name, arguments in _OF_TOOLS),
)

# --- archives that are no documents: backups that somebody has had in their hands -------------------------------------


def member(name: str, kind: bytes = tarfile.REGTYPE, *, size: int = 0, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return info


BACKUPS: dict[str, Callable[[tarfile.TarFile], None]] = {
    "above": lambda tar: tar.addfile(member("../x")),
    "far above": lambda tar: tar.addfile(member("a/../../x")),
    "absolute": lambda tar: tar.addfile(member("/tmp/x")),
    "a link": lambda tar: tar.addfile(member("a", tarfile.SYMTYPE, link="/etc")),
    "a hard link": lambda tar: tar.addfile(member("a", tarfile.LNKTYPE, link="manifest.json")),
    "a device": lambda tar: tar.addfile(member("a", tarfile.CHRTYPE)),
    "a pipe": lambda tar: tar.addfile(member("a", tarfile.FIFOTYPE)),
    "a directory": lambda tar: tar.addfile(member("a", tarfile.DIRTYPE)),
    "the lock": lambda tar: tar.addfile(member("run/lock")),
    "a journal": lambda tar: tar.addfile(member("hermes-worker.db-wal")),
    "below the database": lambda tar: tar.addfile(member("hermes-worker.db/x")),
    "too large": lambda tar: tar.addfile(member("a", size=2_000_000), io.BytesIO(bytes(2_000_000))),
    "twice": lambda tar: tar.addfile(member("a")) or tar.addfile(member("a")),
    "without a database": lambda tar: None,
    "a file where a directory is": lambda tar: tar.addfile(member("a")) or tar.addfile(member("a/b")),
}


def counted() -> Mapping[str, int]:
    """How many different hostile inputs there are of each kind."""
    documents = [file for _, file, _ in hostile_documents()]
    papers = [file for file in documents if file.endswith(".pdf")]
    return {
        "paths": len(set(PATHS)),
        "URLs": len(set(URLS)),
        "documents": len(papers),
        "archives": len(documents) - len(papers) + len(BACKUPS),
        "MCP results": len(set(MCP_BODIES)),
        "tool arguments": len(set(ARGUMENTS)),
    }
