"""The settings of commands that tools run, and where they run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import (
    CONTAINER_ENGINE,
    DIRECTORY,
    FILE,
    HOST,
    SWITCH,
    UMASK,
    WEB_URL,
    integer,
    list_of_names,
    number,
    one_of,
    optional_integer,
    text_matching,
)

_PORT = r"[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
_IMAGE_NAME = text_matching(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}", "the name of an image")
_OBJECT_NAME = text_matching(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", "the name of an object of Kubernetes")
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds who it is (kubernetes.io/docs/tasks/run-application/access-api-from-pod)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalSettings:
    """Commands that tools run."""

    timeout_s: float = declare_setting(
        "terminal.timeout",
        "HERMES_TERMINAL_TIMEOUT_S TERMINAL_TIMEOUT",
        number(1, 86_400, "seconds"),
        180.0,
        audience="operator",
        reason="builds and tests take longer than three minutes; their commands are ended without it.",
    )
    """Seconds a command may run when the model asks for no other limit."""
    env_passthrough: tuple[str, ...] = declare_setting(
        "terminal.env_passthrough",
        "HERMES_ENV_PASSTHROUGH TERMINAL_ENV_PASSTHROUGH",
        list_of_names(r"(?!HERMES_|API_SERVER_KEY$)[A-Za-z_][A-Za-z0-9_]*", "variable names, none of them HERMES_..."),
        (),
        audience="anyone",
        reason="commands need a variable such as a token; they do not see it without it.",
    )
    """Variables of the worker that commands may see beside the harmless ones (PATH, HOME, LANG ...)."""
    workspace: str = declare_setting(
        "terminal.workspace",
        "HERMES_WORKSPACE",
        text_matching(r"[a-z0-9][a-z0-9_-]{0,63}", "a kind of workspace"),
        "local",
        audience="anyone",
        reason="agents should work on another machine or in a container; they work on this one without it.",
    )
    """Kind of the workspaces that new sessions get: `local`, a directory of this machine, `ssh`, a directory of another
    one, `docker`, a container, `kubernetes`, a pod, or a kind that an enabled extension brings."""
    ssh_host: str | None = declare_setting(
        "terminal.ssh_host",
        "HERMES_SSH_HOST TERMINAL_SSH_HOST",
        HOST,
        audience="operator",
        reason="workspaces are on another machine; none can be opened there without it.",
    )
    """Host of workspaces of the kind `ssh`."""
    ssh_user: str = declare_setting(
        "terminal.ssh_user",
        "HERMES_SSH_USER TERMINAL_SSH_USER",
        text_matching(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}", "a user name"),
        "hermes",
        audience="operator",
        reason="the account there has another name than hermes; the login fails without it.",
    )
    """User to be there."""
    ssh_port: int = declare_setting(
        "terminal.ssh_port",
        "HERMES_SSH_PORT TERMINAL_SSH_PORT",
        integer(1, 65_535),
        22,
        audience="operator",
        reason="ssh listens on another port than 22; the connection fails without it.",
    )
    """Port of its ssh server."""
    ssh_key: Path | None = declare_setting(  # noqa: RUF009 - a field
        "terminal.ssh_key",
        "HERMES_SSH_KEY_PATH TERMINAL_SSH_KEY",
        FILE,
        audience="operator",
        reason="the key is not in the home; the login fails without it.",
    )
    """File with the private key for it, without a passphrase. Not set: `ssh/id_ed25519` in the home."""
    ssh_known_hosts: Path | None = declare_setting(  # noqa: RUF009 - a field
        "terminal.ssh_known_hosts",
        "HERMES_SSH_KNOWN_HOSTS",
        FILE,
        audience="security",
        reason="the host's key is not in the home; the host is refused without it.",
    )
    """File with the key of the host; a host that is not in it is refused. Not set: `ssh/known_hosts` in the home."""
    ssh_directory: str = declare_setting(
        "terminal.ssh_directory",
        "HERMES_SSH_DIRECTORY",
        text_matching(r"/[A-Za-z0-9_.][A-Za-z0-9_./-]{0,200}", "an absolute directory"),
        "/var/tmp/hermes-workspaces",
        audience="operator",
        reason="the disk for workspaces is elsewhere; they are made below /var/tmp without it.",
    )
    """Directory there, in which each session gets one of its own."""
    docker_host: str = declare_setting(
        "terminal.docker_host",
        "HERMES_DOCKER_HOST",
        CONTAINER_ENGINE,
        "unix:///var/run/docker.sock",
        audience="operator",
        reason="the engine is podman's, or on another machine; it is not found without it.",
    )
    """Container engine for workspaces of the kind `docker`: `unix://PATH` of Docker's or podman's socket, or
    `tcp://HOST:PORT` of an engine that speaks TLS."""
    docker_certs: Path | None = declare_setting(  # noqa: RUF009 - a field
        "terminal.docker_certs",
        "HERMES_DOCKER_CERTS",
        DIRECTORY,
        audience="operator",
        reason="an engine behind TLS has its certificates elsewhere; it cannot be asked without it.",
    )
    """Directory with `ca.pem`, `cert.pem` and `key.pem` for an engine behind TLS. Not set: `docker` in the home."""
    docker_image: str = declare_setting(
        "terminal.docker_image",
        "HERMES_DOCKER_IMAGE TERMINAL_DOCKER_IMAGE",
        _IMAGE_NAME,
        "debian:stable-slim",
        audience="operator",
        reason="agents need compilers or tools; commands find only those of a small Debian without it.",
    )
    """Image that its containers are made of. It must be on the engine already."""
    docker_user: str = declare_setting(
        "terminal.docker_user",
        "HERMES_DOCKER_USER",
        text_matching(r"[1-9][0-9]{0,8}:[1-9][0-9]{0,8}", "two numbers such as 10001:10001, none of them 0"),
        "10001:10001",
        audience="operator",
        reason="files must belong to an account of yours; they belong to 10001 without it.",
    )
    """Numbers of the user and the group in containers and pods."""
    docker_network: str = declare_setting(
        "terminal.docker_network",
        "HERMES_DOCKER_NETWORK",
        text_matching(
            r"(?!host$|container$)[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", "a network of the engine's, but not `host`"
        ),
        "none",
        audience="operator",
        reason="commands in containers need a network; they have none without it.",
    )
    """Network of the engine's that containers are in; `none` for no network."""
    docker_proxy: str | None = declare_setting(
        "terminal.docker_proxy",
        "HERMES_DOCKER_PROXY",
        WEB_URL,
        audience="security",
        reason="containers should reach the web by a proxy alone; commands do not know of it without it.",
    )
    """URL of a proxy in that network, the only way out of it: commands are told of it, and count as `proxy`."""
    docker_runtime: str | None = declare_setting(
        "terminal.docker_runtime",
        "HERMES_DOCKER_RUNTIME",
        text_matching(r"[A-Za-z0-9_./-]{1,100}", "a runtime's name"),
        audience="security",
        reason="containers should be confined by gVisor or Kata; the usual runtime is used without it.",
    )
    """Runtime of the engine's for containers, such as `runsc`. Not set: its usual one."""
    docker_cpus: float = declare_setting(
        "terminal.docker_cpus",
        "HERMES_DOCKER_CPUS",
        number(0.1, 1024, "processors"),
        2.0,
        audience="operator",
        reason="builds need more processors, or must take fewer; each workspace has two without it.",
    )
    """Processors that all commands of a container or a pod may use together."""
    kubernetes_url: str = declare_setting(
        "terminal.kubernetes_url",
        "HERMES_KUBERNETES_URL",
        WEB_URL,
        "https://kubernetes.default.svc",
        audience="operator",
        reason="workers are outside the cluster of the workspaces; they ask their own cluster without it.",
    )
    """API server for workspaces of the kind `kubernetes`."""
    kubernetes_ca: Path = declare_setting(  # noqa: RUF009 - a field
        "terminal.kubernetes_ca",
        "HERMES_KUBERNETES_CA",
        FILE,
        _ACCOUNT / "ca.crt",
        audience="operator",
        reason="workers are no pods of that cluster; its certificate cannot be checked without it.",
    )
    """File with the certificates that its own is signed by."""
    kubernetes_account: Path = declare_setting(  # noqa: RUF009 - a field
        "terminal.kubernetes_account",
        "HERMES_KUBERNETES_ACCOUNT",
        FILE,
        _ACCOUNT / "token",
        audience="operator",
        reason="workers are no pods of that cluster; its API refuses them without it.",
    )
    """File with the token of a service account that may make pods; read anew for each request, because it changes."""
    kubernetes_namespace: str = declare_setting(
        "terminal.kubernetes_namespace",
        "HERMES_KUBERNETES_NAMESPACE",
        _OBJECT_NAME,
        "hermes-workspaces",
        audience="operator",
        reason="workspaces live in a namespace of another name; pods cannot be made without it.",
    )
    """Namespace of the pods."""
    kubernetes_image: str = declare_setting(
        "terminal.kubernetes_image",
        "HERMES_KUBERNETES_IMAGE",
        _IMAGE_NAME,
        "debian:stable-slim",
        audience="operator",
        reason="agents need compilers or tools; commands find only those of a small Debian without it.",
    )
    """Image of the pods."""
    kubernetes_runtime: str | None = declare_setting(
        "terminal.kubernetes_runtime",
        "HERMES_KUBERNETES_RUNTIME",
        _OBJECT_NAME,
        audience="security",
        reason="pods should be confined by gVisor or Kata; the cluster's usual class is used without it.",
    )
    """Runtime class of the pods, such as `gvisor`. Not set: the cluster's usual one."""
    kubernetes_network: str = declare_setting(
        "terminal.kubernetes_network",
        "HERMES_KUBERNETES_NETWORK",
        one_of("open", "proxy", "none"),
        "none",
        audience="operator",
        reason="policies of yours open the network for pods; a policy closes it without it.",
    )
    """What the network policies of the cluster let pods reach. For `none` a policy is made that lets nothing through;
    the others say what policies of yours do."""
    kubernetes_storage_mb: int | None = declare_setting(
        "terminal.kubernetes_storage_mb",
        "HERMES_KUBERNETES_STORAGE_MB",
        optional_integer(1, 100_000_000),
        None,
        audience="operator",
        reason="files must outlive the pod of a workspace; they go with it without it.",
    )
    """Size of the volume that keeps the files of a workspace when its pod goes, in megabytes. Not set: they go with
    it."""
    kubernetes_storage_class: str | None = declare_setting(
        "terminal.kubernetes_storage_class",
        "HERMES_KUBERNETES_STORAGE_CLASS",
        _OBJECT_NAME,
        audience="operator",
        reason="the cluster's usual storage class does not fit; volumes are made of it without it.",
    )
    """Storage class of these volumes. Not set: the cluster's usual one."""
    kubernetes_warm_pool: str | None = declare_setting(
        "terminal.kubernetes_warm_pool",
        "HERMES_KUBERNETES_WARM_POOL",
        _OBJECT_NAME,
        audience="operator",
        reason="agent-sandbox keeps pods ready; sessions wait for a new pod without it.",
    )
    """A `SandboxWarmPool` of agent-sandbox, from which sessions claim their pods. Not set: pods are made."""
    remote_idle_s: float = declare_setting(
        "terminal.remote_idle_s",
        "HERMES_REMOTE_IDLE_S",
        number(60, 31_536_000, "seconds"),
        3600.0,
        audience="operator",
        reason="idle containers cost too much, or go too early; they stay for an hour without it.",
    )
    """Seconds without a call after which the container or pod of a workspace is removed. Files on a volume stay."""
    sandbox: str | None = declare_setting(
        "terminal.sandbox",
        "HERMES_SANDBOX",
        one_of("require", "auto", "off"),
        audience="security",
        reason="commands must never run unconfined, or need more rights; the best that works is taken without it.",
    )
    """How commands are confined: `require` refuses them where neither bubblewrap nor Landlock works, `auto` takes the
    best that works, `off` confines none. Not set: `auto`, and `require` when the API listens beyond this machine."""
    profile: str = declare_setting(
        "terminal.profile",
        "HERMES_SANDBOX_PROFILE",
        one_of("workstation", "tenant"),
        "workstation",
        audience="security",
        reason="several people use one machine; commands can read its other files without it.",
    )
    """What a confined command sees beside its workspace: `workstation` all files, read-only, without credential stores
    and the home of Hermes worker; `tenant` only system directories."""
    network: str = declare_setting(
        "terminal.network",
        "HERMES_SANDBOX_NETWORK",
        one_of("open", "proxy", "none"),
        "open",
        audience="security",
        reason="commands must not reach the network; those of people here reach all of it without it.",
    )
    """Network of confined commands that people at this machine ask for: `open`, `proxy` (http and https to public
    addresses, through a proxy of the worker) or `none`."""
    network_api: str | None = declare_setting(
        "terminal.network_api",
        "HERMES_SANDBOX_NETWORK_API",
        one_of("open", "proxy", "none"),
        audience="security",
        reason="callers of the API should have another network; it follows terminal.network without it.",
    )
    """Network of confined commands that callers of the API ask for. Not set: as `terminal.network`, and at most `proxy`
    when the API listens beyond this machine."""
    network_unattended: str | None = declare_setting(
        "terminal.network_unattended",
        "HERMES_SANDBOX_NETWORK_UNATTENDED",
        one_of("open", "proxy", "none"),
        audience="security",
        reason="jobs and webhooks should have another network; they get the proxy without it.",
    )
    """Network of confined commands of webhooks, scheduled jobs and their scripts. Not set: `proxy`, or `none` if
    `terminal.network` is."""
    network_hosts: tuple[str, ...] = declare_setting(
        "terminal.network_hosts",
        "HERMES_SANDBOX_NETWORK_HOSTS",
        list_of_names(
            r"(?:\*\.)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,250}[A-Za-z0-9])?",
            "host names, or *.suffix for what is under one",
        ),
        (),
        audience="security",
        reason="commands may reach a few hosts only; the proxy lets them reach every public one without it.",
    )
    """Hosts that the proxy connects to, such as `example.org,*.example.net`. Empty: every public host."""
    network_ports: tuple[str, ...] = declare_setting(
        "terminal.network_ports",
        "HERMES_SANDBOX_NETWORK_PORTS",
        list_of_names(_PORT, "port numbers"),
        (),
        audience="security",
        reason="a service listens on an unusual port; the proxy refuses it without it.",
    )
    """Ports that the proxy connects to beside 80 and 443. Those of mail, ssh and databases stay refused."""
    processes_max: int | None = declare_setting(
        "terminal.processes_max",
        "HERMES_COMMAND_PROCESSES_MAX",
        optional_integer(16, 1_000_000),
        4096,
        audience="operator",
        reason="builds start more processes, or one must not flood the machine; 4096 may run without it.",
    )
    """Processes and threads that a command may have; 0 for no limit."""
    open_files_max: int | None = declare_setting(
        "terminal.open_files_max",
        "HERMES_COMMAND_OPEN_FILES_MAX",
        optional_integer(64, 1_000_000),
        16_384,
        audience="operator",
        reason="a tool opens more files than 16,384; it fails with too many open files without it.",
    )
    """Files that one process of a command may have open; 0 for no limit."""
    file_mb_max: int | None = declare_setting(
        "terminal.file_mb_max",
        "HERMES_COMMAND_FILE_MB_MAX",
        optional_integer(1, 100_000_000),
        10_240,
        audience="operator",
        reason="agents work with larger files, or the disk is small; a file may take 10 GB without it.",
    )
    """Size that a command may give to a file, in megabytes; 0 for no limit."""
    memory_mb_max: int | None = declare_setting(
        "terminal.memory_mb_max",
        "HERMES_COMMAND_MEMORY_MB_MAX",
        optional_integer(64, 10_000_000),
        8192,
        audience="operator",
        reason="the machine has less memory, or builds need more; a command may take 8 GB without it.",
    )
    """Memory that one process of a command may take, in megabytes, and all together where control groups are delegated;
    0 for no limit."""
    cpu_s_max: int | None = declare_setting(
        "terminal.cpu_s_max",
        "HERMES_COMMAND_CPU_S_MAX",
        optional_integer(1, 1_000_000),
        3600,
        audience="operator",
        reason="computations take longer than an hour of processor time; they are ended without it.",
    )
    """Processor time that one process of a command may use, in seconds; 0 for no limit."""
    umask: int | None = declare_setting(
        "terminal.umask",
        "HERMES_COMMAND_UMASK",
        UMASK,
        audience="operator",
        reason="a group shares the files of agents; they get the usual permissions without it.",
    )
    """Permissions that new files of commands and file tools do not get, in octal digits (`022`). Not set: those of
    the user who started the program. Its own files are always for itself alone."""
    allow_hermes_worker: bool = declare_setting(
        "terminal.allow_hermes_worker",
        "HERMES_ALLOW_HERMES_WORKER",
        SWITCH,
        False,
        audience="security",
        reason="agents should administer this installation; their commands are refused without it.",
    )
    """Whether commands of agents may call `hermes-worker`, and so answer approvals, make jobs and start runs. The home
    of Hermes worker stays hidden from confined commands."""
    free_mb_min: int = declare_setting(
        "terminal.free_mb_min",
        "HERMES_FREE_MB_MIN",
        integer(0, 10_000_000),
        100,
        audience="operator",
        reason="the disk of the workspace is tiny; commands are refused below 100 MB without it.",
    )
    """Megabytes that must be free on the disk of the workspace before `terminal` or `write_file` begins; a command that
    leaves less is ended."""
    workspace_mb_max: int | None = declare_setting(
        "terminal.workspace_mb_max",
        "HERMES_WORKSPACE_MB_MAX",
        integer(0, 100_000_000),
        audience="operator",
        reason="one workspace must not fill the disk; it may on a workstation without it.",
    )
    """Megabytes that a workspace may hold, a file counting as 16 KB at least; 0 for no limit. A command that fills it
    further is ended, and `write_file` refused. Not set: no limit for the profile `workstation`, 10240 for `tenant` and
    in containers and pods."""
