"""Dangerous calls of programs, as rows: a reason, programs, the words after them, and options.

Words must follow in this order, options of the program left out; ``a|b`` is a choice. One of the options must be there.
A long option matches its abbreviations, a letter matches in a cluster. Programs stand without their folders, in lower
case. A danger that a row cannot express is a rule in ``safety.dangers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hermes_worker.safety.commands import EXPANSION, SPLIT, find_short_flags, has_option


@dataclass(frozen=True, slots=True)
class DangerRow:
    reason: str
    programs: str
    words: str = ""
    options: str = ""
    unless: str = ""
    """One of these options makes it harmless."""


ROWS: Final = (
    # --- git: what is lost or rewritten, and what git is told to run
    DangerRow("git reset --hard", "git", "reset", "--hard"),
    DangerRow(
        "git push with force", "git", "push", "-f --force --force-with-lease --force-if-includes --mirror --prune"
    ),
    DangerRow("git push that deletes", "git", "push", "-d --delete"),
    DangerRow("git clean with force", "git", "clean", "-f --force"),
    DangerRow("git branch deletion with force", "git", "branch", "-D"),
    DangerRow("discarding changes in the working tree", "git", "restore", unless="-S --staged"),
    DangerRow("dropping stashed changes", "git", "stash drop|clear"),
    DangerRow("rewriting history", "git", "filter-branch|filter-repo"),
    DangerRow("rewriting history", "git", "reflog expire|delete"),
    DangerRow("rewriting history", "git", "update-ref", "-d --stdin"),
    DangerRow("a command that git runs", "git", "bisect run"),
    DangerRow("a command that git runs", "git", "submodule foreach"),
    DangerRow("a command that git runs", "git", "rebase", "-x --exec"),
    DangerRow("a command that git runs", "git", "difftool", "-x --extcmd"),
    DangerRow("a command that git runs", "git", "grep", "-O --open-files-in-pager"),
    DangerRow("rewriting history", "git-filter-repo bfg"),
    # --- publishing
    DangerRow("publishing a package", "npm pnpm yarn bun", "publish|unpublish|deprecate"),
    DangerRow("publishing a package", "npm pnpm yarn", "npm publish"),
    DangerRow("publishing a package", "cargo", "publish|yank"),
    DangerRow("publishing a package", "twine", "upload"),
    DangerRow("publishing a package", "poetry uv hatch flit pdm lerna vsce ovsx jsr changeset", "publish"),
    DangerRow("publishing a package", "deno", "publish"),
    DangerRow("publishing a package", "gem", "push|yank"),
    DangerRow("publishing a package", "mvn mvnw", "deploy"),
    DangerRow("publishing a package", "mvn mvnw", "release:perform"),
    DangerRow("publishing a package", "gradle gradlew sbt", "publish"),
    DangerRow("publishing a package", "dotnet", "nuget push|delete"),
    DangerRow("publishing a package", "nuget", "push|delete"),
    DangerRow("publishing a package", "pod", "trunk push|delete"),
    DangerRow("publishing a package", "semantic-release"),
    DangerRow("publishing a package", "goreleaser", "release"),
    DangerRow("publishing a package", "conda anaconda", "upload"),
    # --- infrastructure and clouds
    DangerRow("destroying infrastructure", "terraform tofu terragrunt pulumi cdk vagrant copilot", "destroy"),
    DangerRow("destroying infrastructure", "terraform tofu terragrunt", "apply", "-destroy --destroy"),
    DangerRow("destroying infrastructure", "terraform tofu terragrunt", "state rm"),
    DangerRow("destroying infrastructure", "terragrunt", "destroy-all"),
    DangerRow("destroying infrastructure", "terragrunt", "run-all destroy"),
    DangerRow("destroying infrastructure", "terraform tofu", "workspace delete"),
    DangerRow("destroying infrastructure", "pulumi", "stack rm"),
    DangerRow("destroying infrastructure", "sls serverless", "remove"),
    DangerRow("deleting from a cluster", "kubectl oc k3s k", "delete|drain"),
    DangerRow("deleting from a cluster", "kubectl oc", "replace", "--force"),
    DangerRow("deleting from a cluster", "kubectl oc", "apply", "--prune"),
    DangerRow("deleting from a cluster", "helm", "uninstall|delete|del|un"),
    DangerRow("deleting from a cluster", "kind k3d minikube eksctl", "delete"),
    DangerRow("deleting from a cluster", "k3d kind eksctl", "cluster delete"),
    DangerRow("deleting from a cluster", "argocd", "app delete"),
    DangerRow("deleting from a cloud", "aws", "s3 rb"),
    DangerRow("deleting from a cloud", "aws", "s3 rm"),
    DangerRow("deleting from a cloud", "aws", "s3 sync", "--delete"),
    DangerRow("deleting from a cloud", "gsutil", "rm|rb"),
    DangerRow("deleting from a cloud", "s3cmd", "del|rm|rb"),
    DangerRow("deleting from a cloud", "rclone", "delete|purge|deletefile|rmdirs|cleanup"),
    DangerRow("deleting from a cloud", "mc", "rm|rb"),
    DangerRow("deleting from a cloud", "bq", "rm"),
    DangerRow("deleting from a cloud", "vercel now", "rm|remove"),
    DangerRow("deleting from a cloud", "wrangler", "delete"),
    DangerRow("deleting from a cloud", "firebase", "projects:delete|firestore:delete|database:remove|hosting:disable"),
    DangerRow(
        "deleting from a forge", "gh", "repo|release|secret|variable|gist|label|issue|run|cache|ssh-key|gpg-key delete"
    ),
    DangerRow("deleting from a forge", "gh", "release delete-asset"),
    DangerRow("deleting from a forge", "gh", "repo archive"),
    DangerRow("deleting from a forge", "glab", "repo|release|issue|mr|variable|snippet delete"),
    DangerRow("a command that gh runs", "gh", "alias set|import"),
    DangerRow("a command that gh runs", "gh", "extension exec"),
    # --- containers
    DangerRow(
        "deleting containers, images or volumes",
        "docker podman nerdctl",
        "volume|image|container|network|system|builder|buildx rm|prune",
    ),
    DangerRow("deleting containers, images or volumes", "docker podman nerdctl", "rm|rmi", "-f --force"),
    DangerRow("deleting containers, images or volumes", "docker podman nerdctl", "swarm leave"),
    DangerRow("deleting containers, images or volumes", "docker podman nerdctl", "stack|service rm"),
    DangerRow("a container with all rights", "docker podman nerdctl", "run|create", "--privileged"),
    # --- databases
    DangerRow("dropping a database", "dropdb"),
    DangerRow("dropping a database", "dropuser"),
    DangerRow("dropping a database", "mysqladmin", "drop"),
    DangerRow("dropping a database", "rails rake", "db:drop|db:reset|db:migrate:reset|db:purge|db:schema:load"),
    DangerRow("dropping a database", "prisma", "migrate reset"),
    DangerRow("dropping a database", "prisma", "db push", "--force-reset"),
    DangerRow("dropping a database", "alembic", "downgrade"),
    DangerRow("dropping a database", "mix", "ecto.drop|ecto.reset"),
    DangerRow("dropping a database", "sequelize sequelize-cli", "db:drop"),
    DangerRow("dropping a database", "typeorm", "schema:drop"),
    DangerRow("dropping a database", "artisan", "migrate:fresh|migrate:reset|db:wipe"),
    DangerRow("dropping a database", "manage.py django-admin", "flush|reset_db|sqlflush"),
    DangerRow("dropping a database", "supabase", "db reset"),
    DangerRow("dropping a database", "influx", "delete"),
    DangerRow("dropping a database", "influx", "bucket delete"),
    # --- services, schedules, accounts, firewall, disks
    DangerRow(
        "stopping or restarting a system service",
        "systemctl",
        "stop|restart|disable|mask|kill|try-restart|isolate|revert",
    ),
    DangerRow("stopping or restarting a system service", "launchctl", "unload|bootout|remove|stop|kill|disable"),
    DangerRow("stopping or restarting a system service", "supervisorctl initctl", "stop|restart|shutdown|reload"),
    DangerRow("stopping or restarting a system service", "pm2", "delete|kill|stop|restart"),
    DangerRow("scheduling commands", "crontab", unless="-l"),
    DangerRow("scheduling commands", "at batch", unless="-l"),
    DangerRow("scheduling commands", "schtasks"),
    DangerRow(
        "changing accounts",
        "useradd userdel usermod adduser deluser groupadd groupdel groupmod chpasswd gpasswd vipw visudo chsh",
    ),
    DangerRow("changing accounts", "passwd", unless="-S --status"),
    DangerRow("changing accounts", "dscl"),
    DangerRow("changing the firewall", "iptables ip6tables", unless="-L -S --list --list-rules -V --version"),
    DangerRow("changing the firewall", "iptables-restore ip6tables-restore"),
    DangerRow("changing the firewall", "nft", "flush|delete|add|insert|replace|destroy|reset"),
    DangerRow("changing the firewall", "nft", "", "-f --file"),
    DangerRow(
        "changing the firewall", "ufw", "enable|disable|reset|allow|deny|reject|limit|delete|default|reload|insert"
    ),
    DangerRow(
        "changing the firewall",
        "firewall-cmd",
        "",
        "--add-port --add-service --remove-port --remove-service --reload --panic-on --set-default-zone",
    ),
    DangerRow("changing the firewall", "pfctl", "", "-d -F -f -e"),
    DangerRow("weakening security", "setenforce"),
    DangerRow("weakening security", "spctl csrutil"),
    DangerRow("changing the kernel", "sysctl", "", "-w --write -p --load"),
    DangerRow("changing the kernel", "rmmod insmod kexec"),
    DangerRow("changing the kernel", "modprobe", "", "-r --remove"),
    DangerRow("changing disks", "fdisk sfdisk parted gdisk sgdisk cfdisk", unless="-l --list"),
    DangerRow(
        "changing disks", "wipefs blkdiscard lvremove vgremove pvremove lvreduce swapoff mkswap mke2fs hdparm badblocks"
    ),
    DangerRow("changing disks", "cryptsetup", "luksformat|erase|luksErase|luksFormat|reencrypt"),
    DangerRow("changing disks", "zfs zpool", "destroy|rollback"),
    DangerRow("changing disks", "btrfs", "subvolume delete"),
    DangerRow("changing disks", "diskutil", "erasedisk|eraseDisk|eraseVolume|partitionDisk|apfs"),
    DangerRow("deleting beyond recovery", "shred srm"),
    DangerRow(
        "deleting what is not in the source",
        "rsync",
        "",
        "--delete --delete-before --delete-during --delete-delay --delete-after --delete-excluded",
    ),
    DangerRow("deleting what is not in the source", "rsync", "", "--del --remove-source-files"),
    # --- builtins of the shell that make other words run
    DangerRow("a name that stands for another program", "hash", "", "-p"),
    DangerRow("a name that stands for another program", "shopt", "expand_aliases"),
    DangerRow("a builtin from a library", "enable", "", "-f"),
    DangerRow("running commands of the history", "fc"),
    DangerRow("a key that runs commands", "bind", "", "-x"),
)


def _index_by_program(rows: Iterable[DangerRow]) -> dict[str, list[DangerRow]]:
    found: dict[str, list[DangerRow]] = {}
    for row in rows:
        for program in row.programs.split():
            found.setdefault(program, []).append(row)
    return found


BY_PROGRAM: Final = _index_by_program(ROWS)


def find_row_reasons(name: str, args: Sequence[str]) -> Iterable[str]:
    """The reasons why a call of ``name`` is dangerous, by the rows."""
    for row in BY_PROGRAM.get(name, ()):
        if row.unless and _has_any(args, row.unless):
            continue
        if row.options and not _has_any(args, row.options):
            continue
        if starts_with_words(args, [choice.split("|") for choice in row.words.split()]):
            yield row.reason


def starts_with_words(args: Sequence[str], words: Sequence[Sequence[str]]) -> bool:
    """Whether ``words`` are the first words of ``args`` that are no options.

    It is not known which options take the next word, so each may. A word that is an expansion may be any.
    """
    if not words:
        return True
    # How many of the words have been seen, and whether the last argument was an option.
    states = {(0, False)}
    for arg in args:
        after: set[tuple[int, bool]] = set()
        for seen, is_after_option in states:
            if arg.startswith("-") and arg != "-":
                after.add((seen, "=" not in arg and arg != "--"))
                continue
            if arg.lower() in [word.lower() for word in words[seen]] or arg in (EXPANSION, SPLIT):
                if seen + 1 == len(words):
                    return True
                after.add((seen + 1, False))
            if is_after_option:
                after.add((seen, False))
        states = after
        if not states:
            return False
    return False


def _has_any(args: Sequence[str], options: str) -> bool:
    letters: set[str] | None = None
    for option in options.split():
        if option.startswith("--"):
            if has_option(args, option):
                return True
        elif len(option) == 2:
            letters = find_short_flags(args) if letters is None else letters
            if option[1] in letters:
                return True
        elif option in args or any(arg.startswith(f"{option}=") for arg in args):
            return True
    return False
