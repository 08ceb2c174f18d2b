"""Dangerous calls of programs, as rows: a reason, programs, the words after them, and options.

Words must follow in this order, options of the program left out; ``a|b`` is a choice. One of the options must be there.
A long option matches its abbreviations, a letter matches in a cluster. Programs stand without their folders, in lower
case. A danger that a row cannot express is a rule in ``safety.dangers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hermes_worker.safety.commands import EXPANSION, SPLIT, has_option, short_flags


@dataclass(frozen=True, slots=True)
class Row:
    reason: str
    programs: str
    words: str = ""
    options: str = ""
    unless: str = ""
    """One of these options makes it harmless."""


ROWS: Final = (
    # --- git: what is lost or rewritten, and what git is told to run
    Row("git reset --hard", "git", "reset", "--hard"),
    Row("git push with force", "git", "push", "-f --force --force-with-lease --force-if-includes --mirror --prune"),
    Row("git push that deletes", "git", "push", "-d --delete"),
    Row("git clean with force", "git", "clean", "-f --force"),
    Row("git branch deletion with force", "git", "branch", "-D"),
    Row("discarding changes in the working tree", "git", "restore", unless="-S --staged"),
    Row("dropping stashed changes", "git", "stash drop|clear"),
    Row("rewriting history", "git", "filter-branch|filter-repo"),
    Row("rewriting history", "git", "reflog expire|delete"),
    Row("rewriting history", "git", "update-ref", "-d --stdin"),
    Row("a command that git runs", "git", "bisect run"),
    Row("a command that git runs", "git", "submodule foreach"),
    Row("a command that git runs", "git", "rebase", "-x --exec"),
    Row("a command that git runs", "git", "difftool", "-x --extcmd"),
    Row("a command that git runs", "git", "grep", "-O --open-files-in-pager"),
    Row("rewriting history", "git-filter-repo bfg"),
    # --- publishing
    Row("publishing a package", "npm pnpm yarn bun", "publish|unpublish|deprecate"),
    Row("publishing a package", "npm pnpm yarn", "npm publish"),
    Row("publishing a package", "cargo", "publish|yank"),
    Row("publishing a package", "twine", "upload"),
    Row("publishing a package", "poetry uv hatch flit pdm lerna vsce ovsx jsr changeset", "publish"),
    Row("publishing a package", "deno", "publish"),
    Row("publishing a package", "gem", "push|yank"),
    Row("publishing a package", "mvn mvnw", "deploy"),
    Row("publishing a package", "mvn mvnw", "release:perform"),
    Row("publishing a package", "gradle gradlew sbt", "publish"),
    Row("publishing a package", "dotnet", "nuget push|delete"),
    Row("publishing a package", "nuget", "push|delete"),
    Row("publishing a package", "pod", "trunk push|delete"),
    Row("publishing a package", "semantic-release"),
    Row("publishing a package", "goreleaser", "release"),
    Row("publishing a package", "conda anaconda", "upload"),
    # --- infrastructure and clouds
    Row("destroying infrastructure", "terraform tofu terragrunt pulumi cdk vagrant copilot", "destroy"),
    Row("destroying infrastructure", "terraform tofu terragrunt", "apply", "-destroy --destroy"),
    Row("destroying infrastructure", "terraform tofu terragrunt", "state rm"),
    Row("destroying infrastructure", "terragrunt", "destroy-all"),
    Row("destroying infrastructure", "terragrunt", "run-all destroy"),
    Row("destroying infrastructure", "terraform tofu", "workspace delete"),
    Row("destroying infrastructure", "pulumi", "stack rm"),
    Row("destroying infrastructure", "sls serverless", "remove"),
    Row("deleting from a cluster", "kubectl oc k3s k", "delete|drain"),
    Row("deleting from a cluster", "kubectl oc", "replace", "--force"),
    Row("deleting from a cluster", "kubectl oc", "apply", "--prune"),
    Row("deleting from a cluster", "helm", "uninstall|delete|del|un"),
    Row("deleting from a cluster", "kind k3d minikube eksctl", "delete"),
    Row("deleting from a cluster", "k3d kind eksctl", "cluster delete"),
    Row("deleting from a cluster", "argocd", "app delete"),
    Row("deleting from a cloud", "aws", "s3 rb"),
    Row("deleting from a cloud", "aws", "s3 rm"),
    Row("deleting from a cloud", "aws", "s3 sync", "--delete"),
    Row("deleting from a cloud", "gsutil", "rm|rb"),
    Row("deleting from a cloud", "s3cmd", "del|rm|rb"),
    Row("deleting from a cloud", "rclone", "delete|purge|deletefile|rmdirs|cleanup"),
    Row("deleting from a cloud", "mc", "rm|rb"),
    Row("deleting from a cloud", "bq", "rm"),
    Row("deleting from a cloud", "vercel now", "rm|remove"),
    Row("deleting from a cloud", "wrangler", "delete"),
    Row("deleting from a cloud", "firebase", "projects:delete|firestore:delete|database:remove|hosting:disable"),
    Row(
        "deleting from a forge", "gh", "repo|release|secret|variable|gist|label|issue|run|cache|ssh-key|gpg-key delete"
    ),
    Row("deleting from a forge", "gh", "release delete-asset"),
    Row("deleting from a forge", "gh", "repo archive"),
    Row("deleting from a forge", "glab", "repo|release|issue|mr|variable|snippet delete"),
    Row("a command that gh runs", "gh", "alias set|import"),
    Row("a command that gh runs", "gh", "extension exec"),
    # --- containers
    Row(
        "deleting containers, images or volumes",
        "docker podman nerdctl",
        "volume|image|container|network|system|builder|buildx rm|prune",
    ),
    Row("deleting containers, images or volumes", "docker podman nerdctl", "rm|rmi", "-f --force"),
    Row("deleting containers, images or volumes", "docker podman nerdctl", "swarm leave"),
    Row("deleting containers, images or volumes", "docker podman nerdctl", "stack|service rm"),
    Row("a container with all rights", "docker podman nerdctl", "run|create", "--privileged"),
    # --- databases
    Row("dropping a database", "dropdb"),
    Row("dropping a database", "dropuser"),
    Row("dropping a database", "mysqladmin", "drop"),
    Row("dropping a database", "rails rake", "db:drop|db:reset|db:migrate:reset|db:purge|db:schema:load"),
    Row("dropping a database", "prisma", "migrate reset"),
    Row("dropping a database", "prisma", "db push", "--force-reset"),
    Row("dropping a database", "alembic", "downgrade"),
    Row("dropping a database", "mix", "ecto.drop|ecto.reset"),
    Row("dropping a database", "sequelize sequelize-cli", "db:drop"),
    Row("dropping a database", "typeorm", "schema:drop"),
    Row("dropping a database", "artisan", "migrate:fresh|migrate:reset|db:wipe"),
    Row("dropping a database", "manage.py django-admin", "flush|reset_db|sqlflush"),
    Row("dropping a database", "supabase", "db reset"),
    Row("dropping a database", "influx", "delete"),
    Row("dropping a database", "influx", "bucket delete"),
    # --- services, schedules, accounts, firewall, disks
    Row(
        "stopping or restarting a system service",
        "systemctl",
        "stop|restart|disable|mask|kill|try-restart|isolate|revert",
    ),
    Row("stopping or restarting a system service", "launchctl", "unload|bootout|remove|stop|kill|disable"),
    Row("stopping or restarting a system service", "supervisorctl initctl", "stop|restart|shutdown|reload"),
    Row("stopping or restarting a system service", "pm2", "delete|kill|stop|restart"),
    Row("scheduling commands", "crontab", unless="-l"),
    Row("scheduling commands", "at batch", unless="-l"),
    Row("scheduling commands", "schtasks"),
    Row(
        "changing accounts",
        "useradd userdel usermod adduser deluser groupadd groupdel groupmod chpasswd gpasswd vipw visudo chsh",
    ),
    Row("changing accounts", "passwd", unless="-S --status"),
    Row("changing accounts", "dscl"),
    Row("changing the firewall", "iptables ip6tables", unless="-L -S --list --list-rules -V --version"),
    Row("changing the firewall", "iptables-restore ip6tables-restore"),
    Row("changing the firewall", "nft", "flush|delete|add|insert|replace|destroy|reset"),
    Row("changing the firewall", "nft", "", "-f --file"),
    Row("changing the firewall", "ufw", "enable|disable|reset|allow|deny|reject|limit|delete|default|reload|insert"),
    Row(
        "changing the firewall",
        "firewall-cmd",
        "",
        "--add-port --add-service --remove-port --remove-service --reload --panic-on --set-default-zone",
    ),
    Row("changing the firewall", "pfctl", "", "-d -F -f -e"),
    Row("weakening security", "setenforce"),
    Row("weakening security", "spctl csrutil"),
    Row("changing the kernel", "sysctl", "", "-w --write -p --load"),
    Row("changing the kernel", "rmmod insmod kexec"),
    Row("changing the kernel", "modprobe", "", "-r --remove"),
    Row("changing disks", "fdisk sfdisk parted gdisk sgdisk cfdisk", unless="-l --list"),
    Row(
        "changing disks", "wipefs blkdiscard lvremove vgremove pvremove lvreduce swapoff mkswap mke2fs hdparm badblocks"
    ),
    Row("changing disks", "cryptsetup", "luksformat|erase|luksErase|luksFormat|reencrypt"),
    Row("changing disks", "zfs zpool", "destroy|rollback"),
    Row("changing disks", "btrfs", "subvolume delete"),
    Row("changing disks", "diskutil", "erasedisk|eraseDisk|eraseVolume|partitionDisk|apfs"),
    Row("deleting beyond recovery", "shred srm"),
    Row(
        "deleting what is not in the source",
        "rsync",
        "",
        "--delete --delete-before --delete-during --delete-delay --delete-after --delete-excluded",
    ),
    Row("deleting what is not in the source", "rsync", "", "--del --remove-source-files"),
    # --- builtins of the shell that make other words run
    Row("a name that stands for another program", "hash", "", "-p"),
    Row("a name that stands for another program", "shopt", "expand_aliases"),
    Row("a builtin from a library", "enable", "", "-f"),
    Row("running commands of the history", "fc"),
    Row("a key that runs commands", "bind", "", "-x"),
)


def _by_program(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        for program in row.programs.split():
            found.setdefault(program, []).append(row)
    return found


BY_PROGRAM: Final = _by_program(ROWS)


def reasons(name: str, args: Sequence[str]) -> Iterable[str]:
    """The reasons why a call of ``name`` is dangerous, by the rows."""
    for row in BY_PROGRAM.get(name, ()):
        if row.unless and _has_any(args, row.unless):
            continue
        if row.options and not _has_any(args, row.options):
            continue
        if follows(args, [choice.split("|") for choice in row.words.split()]):
            yield row.reason


def follows(args: Sequence[str], words: Sequence[Sequence[str]]) -> bool:
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
            letters = short_flags(args) if letters is None else letters
            if option[1] in letters:
                return True
        elif option in args or any(arg.startswith(f"{option}=") for arg in args):
            return True
    return False
