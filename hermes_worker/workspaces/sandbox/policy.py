"""What a command may reach, as a value. Pure: nothing here looks at the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from hermes_worker.workspaces.sandbox.network import EgressRules, Network


class SandboxMode(StrEnum):
    """How much an operator insists on confinement."""

    REQUIRE = "require"
    """Bubblewrap or Landlock, or the command is refused."""
    AUTO = "auto"
    """The best rung that works here."""
    OFF = "off"


class Profile(StrEnum):
    """How much of the file system a command sees."""

    WORKSTATION = "workstation"
    """All of it, read-only, without what is hidden."""
    TENANT = "tenant"
    """System directories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLimits:
    """What one command may use. ``None`` sets no limit."""

    processes: int | None = 4096
    """Processes and threads."""
    open_files: int | None = 16_384
    """Open files of one process."""
    file_bytes: int | None = 10 * 1024**3
    """Bytes of one file."""
    memory_bytes: int | None = 8 * 1024**3
    """Data of one process."""
    cpu_s: int | None = 3600
    """Processor time of one process."""
    tmp_bytes: int = 1024**3
    """Bytes of the command's own /tmp, where it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPolicy:
    """What a command may reach. All paths are absolute and canonical."""

    profile: Profile = Profile.WORKSTATION
    network: Network = Network.OPEN
    egress: EgressRules = field(default_factory=EgressRules)
    """What the proxy connects to, where there is one."""
    writable: tuple[str, ...] = ()
    """Directories, such as the workspace."""
    readable: tuple[str, ...] = ()
    """Files and directories that are shown although they lie in what is hidden or, to a tenant, outside the system."""
    hidden: tuple[str, ...] = ()
    """Files and directories that are neither read nor listed. What is granted inside of one is seen."""
    limits: CommandLimits = field(default_factory=CommandLimits)


SYSTEM_DIRECTORIES = ("/bin", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/opt", "/sbin", "/usr")
"""What a tenant's command sees beside its workspace."""

FRESH_DIRECTORIES = ("/tmp", "/var/tmp", "/dev/shm")
"""What every command has of its own, where its rung can give it."""

KEPT_OF_RUN = (
    "/run/NetworkManager/resolv.conf",
    "/run/resolvconf",
    "/run/systemd/resolve/resolv.conf",
    "/run/systemd/resolve/stub-resolv.conf",
)
"""/etc/resolv.conf is often a link to one of these."""

_SYSTEM_HIDDEN = (
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/krb5.keytab",
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/ssl/private",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/wireguard",
    # Sockets of Docker, D-Bus and the user's services: whoever may ask them is outside.
    "/run",
    "/var/run",
    "/var/lib/docker",
    "/var/lib/kubelet",
)

_CREDENTIAL_STORES = (
    # ssh, gpg and passwords
    ".ssh",
    ".gnupg",
    ".password-store",
    ".netrc",
    "_netrc",
    ".pgpass",
    ".my.cnf",
    ".mylogin.cnf",
    ".vault-token",
    ".config/sops",
    ".config/age",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".config/keepassxc",
    ".config/Bitwarden",
    ".config/op",
    # clouds and clusters
    ".aws",
    ".azure",
    ".config/gcloud",
    ".config/doctl",
    ".config/hcloud",
    ".config/rclone",
    ".docker",
    ".kube",
    ".oci",
    ".terraform.d/credentials.tfrc.json",
    ".terraformrc",
    ".s3cfg",
    ".boto",
    ".fly",
    ".config/containers/auth.json",
    # forges and registries of packages
    ".git-credentials",
    ".config/git/credentials",
    ".config/gh",
    ".config/glab-cli",
    ".config/hub",
    ".npmrc",
    ".yarnrc.yml",
    ".pypirc",
    ".config/pypoetry/auth.toml",
    ".config/pip",
    ".pip",
    ".gem/credentials",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".m2/settings.xml",
    ".m2/settings-security.xml",
    ".gradle/gradle.properties",
    ".nuget/NuGet",
    ".composer/auth.json",
    ".config/composer/auth.json",
    # browsers and mail
    ".mozilla",
    ".thunderbird",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".config/vivaldi",
    ".config/opera",
    ".cache/mozilla",
    ".cache/google-chrome",
    ".cache/chromium",
    "snap/firefox",
    "snap/chromium",
    # agents, models and chats
    ".anthropic",
    ".claude",
    ".claude.json",
    ".codex",
    ".gemini",
    ".hermes",
    ".cache/huggingface/token",
    ".huggingface",
    ".config/openai",
    ".config/github-copilot",
    ".config/Slack",
    ".config/discord",
    ".config/Signal",
    ".local/share/TelegramDesktop",
    # what people typed, keys among it
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".psql_history",
    ".mysql_history",
    ".node_repl_history",
    ".local/share/fish/fish_history",
)


def list_hidden_paths(home: str | None, product: tuple[str, ...]) -> tuple[str, ...]:
    """What no command sees: the machine's secrets, the credential stores of ``home``, and the ``product``'s own."""
    stores = tuple(f"{home}/{name}" for name in _CREDENTIAL_STORES) if home and home != "/" else ()
    return (*_SYSTEM_HIDDEN, *stores, *product)


def is_within(path: str, directory: str) -> bool:
    """Whether ``path`` is ``directory`` or lies in it."""
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def find_unseen(paths: tuple[str, ...], profile: Profile, hidden: tuple[str, ...]) -> tuple[str, ...]:
    """Select from ``paths``, such as the worker's interpreter, what a command sees only if it is shown to it."""
    covered = (*hidden, *FRESH_DIRECTORIES)
    return tuple(
        path
        for path in dict.fromkeys(paths)
        if path not in covered and (profile is Profile.TENANT or any(is_within(path, other) for other in covered))
    )


def is_left_writable(path: str, policy: SandboxPolicy) -> bool:
    """Whether ``path`` lies in a writable directory, and not in something hidden inside of that."""
    depth_writable = max((len(root) for root in policy.writable if is_within(path, root)), default=0)
    depth_hidden = max((len(hidden) for hidden in policy.hidden if is_within(path, hidden)), default=0)
    return depth_writable > depth_hidden


def find_hidden_inside(policy: SandboxPolicy) -> tuple[str, ...]:
    """The hidden paths that lie in a writable directory: a rung that only grants cannot take them out."""
    return tuple(path for path in policy.hidden if any(is_within(path, root) for root in policy.writable))


COMMAND_CACHES: Mapping[str, str] = MappingProxyType(
    {"XDG_CACHE_HOME": ".cache", "npm_config_cache": ".npm", "GOMODCACHE": ".gomod"}
)
"""Variables of programs that want to write to the user's home, and the folder of /tmp that they get instead."""
