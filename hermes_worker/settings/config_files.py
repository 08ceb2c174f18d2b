"""``config.yaml`` and ``.env`` of the home, as raw values by key and by variable."""

from __future__ import annotations

import difflib
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings.composed import DECLARATION_OF
from hermes_worker.settings.kinds import SettingKind
from hermes_worker.settings.retired import RETIRED
from hermes_worker.system.plainfiles import read_plain


def split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_REFERENCE_TOP_LEVEL = split_words(
    "_config_version always_log_local auxiliary bedrock browser checkpoints code_execution"
    " compression computer_use context context_file_max_chars credential_pool_strategies curator custom_providers"
    " dashboard delegation desktop discord display fallback_model file_read_max_chars"
    " filter_silence_narration gateway goals group_sessions_per_user honcho hooks hooks_auto_accept human_delay"
    " image_gen kanban known_plugin_toolsets lsp matrix mattermost max_concurrent_sessions max_live_sessions mcp"
    " mcp_discovery_timeout mcp_servers memory moa model_catalog multiplex_profiles network onboarding openrouter"
    " paste_collapse_char_threshold paste_collapse_threshold paste_collapse_threshold_fallback personalities"
    " platform_hints platform_toolsets platforms plugins prefill_messages_file privacy profile_routes prompt_caching"
    " providers quick_commands require_mention reset_triggers secrets security session_reset sessions signal skills"
    " slack smart_model_routing streaming stt stt_echo_transcripts telegram thread_sessions_per_user timezone"
    " tool_output tools toolsets tts unauthorized_dm_behavior updates vertex video_gen voice web"
    " whatsapp x_search"
)
"""Top-level keys of Hermes Agent 0.19 (hermes_cli/config.py, DEFAULT_CONFIG and the extra known roots)."""
_REFERENCE_KEYS = split_words(
    "memory.provider memory.flush_min_turns"
    " browser.allow_private_urls browser.auto_local_for_private_urls browser.camofox browser.cdp_url"
    " browser.cloud_provider browser.command_timeout browser.dialog_policy browser.dialog_timeout_s browser.engine"
    " browser.inactivity_timeout browser.record_sessions "
    "compression.abort_on_summary_failure compression.hygiene_hard_message_limit compression.in_place"
    " compression.summary_model compression.summary_provider compression.summary_base_url"
    " agent.clarify_timeout agent.coding_context agent.coding_instructions agent.disabled_toolsets"
    " agent.environment_hint agent.environment_probe agent.gateway_auto_continue_freshness"
    " agent.gateway_notify_interval agent.gateway_timeout_warning agent.image_input_mode"
    " agent.intent_ack_continuation agent.local_stream_stale_timeout agent.max_verify_nudges"
    " agent.parallel_tool_call_guidance agent.reasoning_overrides agent.restart_drain_timeout"
    " cron.max_parallel_jobs cron.mirror_delivery cron.provider cron.session_db_timeout_seconds"
    " agent.service_tier agent.task_completion_guidance agent.tool_use_enforcement agent.verify_guidance"
    " agent.verify_on_stop agent.verbose agent.system_prompt logging.backup_count logging.max_size_mb"
    " terminal.auto_source_bashrc terminal.backend terminal.container_cpu"
    " terminal.container_disk terminal.container_memory terminal.container_persistent terminal.cwd"
    " terminal.daemon_term_grace_seconds terminal.daytona_image terminal.docker_env terminal.docker_extra_args"
    " terminal.docker_forward_env terminal.docker_image terminal.docker_mount_cwd_to_workspace"
    " terminal.docker_network terminal.docker_run_as_host_user terminal.docker_volumes terminal.home_mode"
    " terminal.lifetime_seconds terminal.modal_image terminal.modal_mode terminal.persistent_shell"
    " terminal.shell_init_files terminal.singularity_image terminal.sudo_password"
)
"""Keys of the original inside groups that we have as well."""
_CONFIG_KEYS = tuple(key for key in DECLARATION_OF if key != "home")
"""The home directory is where config.yaml is, so it cannot be named there."""
_CONFIG_GROUPS = frozenset(key.partition(".")[0] for key in DECLARATION_OF if "." in key)
_DOTENV_LINE = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*)")
_DOUBLE_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"[ \t]*(?:#.*)?')
_SINGLE_QUOTED = re.compile(r"'([^']*)'[ \t]*(?:#.*)?")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_FILE_BYTES_MAX = 4_000_000


def _read_text(path: Path) -> str | None:
    """The file's text; ``None`` when there is no such file."""
    try:
        content = read_plain(path, bytes_max=_FILE_BYTES_MAX + 1)
        if len(content) > _FILE_BYTES_MAX:
            raise ConfigurationError(f"{path} cannot be read: it has more than {_FILE_BYTES_MAX} bytes.")
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"{path} cannot be read: {reason}.") from error


def read_dotenv(path: Path) -> dict[str, str]:
    """Variables of a ``.env`` file: ``NAME=value`` lines, quoted or not, with or without ``export``. Nothing in it is
    expanded or executed."""
    variables = {}
    for position, raw_line in enumerate((_read_text(path) or "").splitlines(), start=1):
        line = raw_line.strip()
        if not line or line.startswith("#"):
            continue
        match = _DOTENV_LINE.fullmatch(line)
        value = _parse_dotenv_value(match[2]) if match else None
        if match is None or value is None:
            # The line is not shown: it may be half a key.
            raise ConfigurationError(f"line {position} of {path} must have the form NAME=value.")
        variables[match[1]] = value
    return variables


def _parse_dotenv_value(text: str) -> str | None:
    if text.startswith('"'):
        quoted = _DOUBLE_QUOTED.fullmatch(text)
        return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), quoted[1]) if quoted else None
    if text.startswith("'"):
        quoted = _SINGLE_QUOTED.fullmatch(text)
        return quoted[1] if quoted else None
    return re.sub(r"[ \t]+#.*", "", text).strip()


def list_dotenv_notes(path: Path) -> Iterator[str]:
    if path.exists() and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        yield f"{path} can be read by other users of this machine; chmod 600 it."


def read_config(path: Path | str, text: str | None = None) -> tuple[dict[str, object], list[str]]:
    """Our keys of ``config.yaml`` with their raw values, and a note about the original's keys that we do not use.
    ``text`` stands in for the file."""
    text = _read_text(Path(path)) if text is None else text
    if text is None:
        return {}, []
    # Who was handed its settings, and who has no file, needs no parser, which takes as long to load as all settings.
    import yaml

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark else ""
        raise ConfigurationError(f"{path} is not valid YAML{place}.") from None
    if document is None:
        return {}, []
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path} must be a mapping of setting groups, such as 'model:'.")
    config: dict[str, object] = {}
    unused = []
    for key, value in _flatten_keys(document):
        if key in _CONFIG_KEYS or key in RETIRED:
            config[key] = value
        elif key in _REFERENCE_TOP_LEVEL or key in _REFERENCE_KEYS:
            unused.append(key)
        else:
            known = (*_CONFIG_KEYS, *_REFERENCE_KEYS, *_REFERENCE_TOP_LEVEL, *_CONFIG_GROUPS)
            raise ConfigurationError(f"{key!r} in {path} is not a setting{format_suggestion(key, known)}.")
    notes = [f"Hermes worker does not use these keys of {path}: {', '.join(unused)}."] if unused else []
    return config, notes


def _flatten_keys(document: Mapping[object, object]) -> Iterator[tuple[str, object]]:
    """Dotted keys of the groups we have; other keys as they are."""
    for name, value in document.items():
        if name not in _CONFIG_GROUPS:
            yield str(name), value
        elif isinstance(value, dict):
            yield from _flatten_below(str(name), value)
        elif name == "model" and isinstance(value, str):
            yield "model.default", value
        elif value is not None:
            raise ConfigurationError(f"{name} in config.yaml must be a mapping of settings.")


def _flatten_below(group: str, values: Mapping[object, object]) -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        key = f"{group}.{name}"
        if isinstance(value, dict) and any(known.startswith(f"{key}.") for known in _CONFIG_KEYS):
            yield from _flatten_below(key, value)
        else:
            yield key, value


def parse_config_text(text: str, *, place: str) -> dict[str, object]:
    """What a text that is written as ``config.yaml`` says of our settings, retired ones among them, by key, as YAML
    reads it. Raises ``ConfigurationError``, in words that call it ``place``."""
    return read_config(place, text)[0]


def find_setting(key: str) -> tuple[str, SettingKind[Any]]:
    """The variable of a setting and what it may hold. Raises ``ConfigurationError`` for what is none."""
    if key in RETIRED:
        raise ConfigurationError(f"{key} {RETIRED[key].explanation}.")
    if key not in _CONFIG_KEYS:
        raise ConfigurationError(f"{key!r} is not a setting{format_suggestion(key, _CONFIG_KEYS)}.")
    declaration = DECLARATION_OF[key]
    return declaration.variables[0], declaration.kind


def format_suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
