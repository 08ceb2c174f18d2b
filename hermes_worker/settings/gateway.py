"""The settings of people who write on platforms."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.core.chat_accounts import ACCOUNT_PATTERN, RULE_PATTERN, ChatRules
from hermes_worker.core.chat_commands import COMMAND_RULE
from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import (
    SECRET,
    SWITCH,
    WEB_URL,
    Secret,
    integer,
    list_of_names,
    number,
    one_of,
    text_matching,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """People who write to the agent on platforms (docs/gateway.md). Who may speak to one platform alone stands in
    `<PLATFORM>_ALLOWED_USERS` and `<PLATFORM>_GUESTS`."""

    is_enabled: bool = declare_setting(
        "chats.enabled",
        "HERMES_GATEWAY",
        SWITCH,
        False,
        audience="anyone",
        reason="people should write to the agent on platforms; nobody is listened to without it.",
    )
    """Whether people who write to accounts are listened to. The credentials alone, which deliveries need as well, begin
    nothing."""
    allowed_users: tuple[str, ...] = declare_setting(
        "chats.allowed_users",
        "HERMES_GATEWAY_ALLOWED_USERS GATEWAY_ALLOWED_USERS",
        list_of_names(r"[^\s,]{1,200}", "ids of people, or * for everybody"),
        (),
        audience="security",
        reason="some people may write on every platform; each must be paired or listed for one without it.",
    )
    """People who may write on every platform: ids, numbers and addresses, and user names as `@name`. They are owners;
    `*` makes everybody a member."""
    guests: tuple[str, ...] = declare_setting(
        "chats.guests",
        "HERMES_GATEWAY_GUESTS",
        list_of_names(r"[^\s,]{1,200}", "ids of people, or * for everybody"),
        (),
        audience="security",
        reason="people may talk and change nothing; they are strangers without it.",
    )
    """People who may talk on every platform, and for whom nothing is done that has an effect; `*` for everybody."""
    groups: str = declare_setting(
        "chats.groups",
        "HERMES_GATEWAY_GROUPS",
        one_of("known", "guests", "off"),
        "known",
        audience="security",
        reason="everybody in a group may speak, or nobody; known people may without it.",
    )
    """Who may speak in groups: those who may elsewhere, everybody else as a guest, or nobody."""
    reset_mode: str = declare_setting(
        "chats.reset_mode",
        "HERMES_GATEWAY_RESET_MODE",
        one_of("none", "idle", "daily", "both"),
        "none",
        audience="operator",
        reason="chats should begin anew by themselves; a session goes on for ever without it.",
    )
    """When a chat begins a new session by itself: never, after silence, at an hour of each day, or both."""
    reset_at_hour: int = declare_setting(
        "chats.reset_at_hour",
        "HERMES_GATEWAY_RESET_AT_HOUR",
        integer(0, 23),
        4,
        audience="operator",
        reason="people work at four in the night; their session ends then without it.",
    )
    """The hour of `daily` and `both`, in the time zone of the machine that takes the message."""
    reset_idle_minutes: int = declare_setting(
        "chats.reset_idle_minutes",
        "HERMES_GATEWAY_RESET_IDLE_MINUTES",
        integer(1, 10_000_000),
        1_440,
        audience="operator",
        reason="a pause of a day is too long or too short; idle sessions end after one without it.",
    )
    """After how many minutes of silence `idle` and `both` end a session."""
    reset_told: bool = declare_setting(
        "chats.reset_told",
        "HERMES_GATEWAY_RESET_TOLD",
        SWITCH,
        True,
        audience="operator",
        reason="the notice of a new session disturbs; it is sent without it.",
    )
    """Whether the chat is told of it."""
    reset_modes: tuple[str, ...] = declare_setting(
        "chats.reset_modes",
        "HERMES_GATEWAY_RESET_MODES",
        list_of_names(r"[a-z_]{1,30}=(none|idle|daily|both)", "`WHERE=MODE`"),
        (),
        audience="operator",
        reason="groups and direct chats differ; all follow one mode without it.",
    )
    """Other modes for a platform or a type of chat (`dm`, `group`, `channel`, `thread`): `telegram=daily,group=idle`.
    That of the platform comes first."""
    strangers: str = declare_setting(
        "chats.strangers",
        "HERMES_GATEWAY_STRANGERS",
        one_of("pair", "ignore"),
        "pair",
        audience="security",
        reason="nobody may learn that an agent is there; strangers get a pairing code without it.",
    )
    """What somebody else who writes directly gets: a pairing code, or nothing."""
    busy_mode: str = declare_setting(
        "chats.busy_input_mode",
        "HERMES_GATEWAY_BUSY_INPUT_MODE",
        one_of("interrupt", "queue", "steer"),
        "interrupt",
        audience="operator",
        reason="a second message should not stop the first; the run is interrupted without it.",
    )
    """What a message does while the agent works on another: stop it, wait for it, or be said to it."""
    burst_s: float = declare_setting(
        "chats.burst_s",
        "HERMES_GATEWAY_BURST_S",
        number(0.0, 60.0, "seconds"),
        3.0,
        audience="operator",
        reason="people write in many short messages; each is a turn after three seconds without it.",
    )
    """What somebody writes so soon after a message of theirs that waits is one turn with it; 0 for never."""
    file_mb_max: int = declare_setting(
        "chats.file_mb_max",
        "HERMES_GATEWAY_FILE_MB_MAX",
        integer(1, 100),
        20,
        audience="operator",
        reason="people send larger files, or disks are small; files above 20 MiB are not read without it.",
    )
    """MiB of a file that somebody sends. A larger one is not read further, and the agent is told so."""
    transcription_url: str | None = declare_setting(
        "chats.transcription_url",
        "HERMES_TRANSCRIPTION_URL",
        WEB_URL,
        audience="operator",
        reason="people send voice messages; nobody listens to them without it.",
    )
    """Where voice messages and other recordings are transcribed: a service with OpenAI's `/audio/transcriptions`, such
    as `https://api.openai.com/v1`. Asked by delivery workers. Not set: nobody listens to them."""
    transcription_key: Secret | None = declare_setting(  # noqa: RUF009 - a field
        "chats.transcription_key",
        "HERMES_TRANSCRIPTION_API_KEY",
        SECRET,
        audience="operator",
        reason="the transcription service needs a key; it refuses recordings without it.",
    )
    """Key of that service."""
    transcription_model: str = declare_setting(
        "chats.transcription_model",
        "HERMES_TRANSCRIPTION_MODEL",
        text_matching(r"[\w.:/@+-]{1,200}", "a model"),
        "whisper-1",
        audience="operator",
        reason="the transcription service has no whisper-1; it refuses recordings without it.",
    )
    """Model of that service."""
    commands: tuple[str, ...] = declare_setting(
        "chats.commands",
        "HERMES_GATEWAY_COMMANDS",
        list_of_names(
            COMMAND_RULE,
            "`COMMAND=ROLE`, the least role that may use it, such as `jobs=member` or `model=nobody`, behind"
            " `ACCOUNT/CHAT/` for a chat; or `ACCOUNT/@PERSON/COMMAND=yes` or `=no`",
        ),
        (),
        audience="security",
        reason="members should use more or fewer commands; the usual roles count without it.",
    )
    """Who may use a command, where that is not as docs/gateway.md says: `jobs=member,undo=owner,usage=nobody`; in a
    chat or all of an account: `telegram:default/-100123/undo=owner,telegram:ops/*/new=member`; and for a person,
    whatever their role: `telegram:default/@4242/stop=no`."""
    reply_to: str = declare_setting(
        "chats.reply_to_mode",
        "HERMES_GATEWAY_REPLY_TO",
        one_of("off", "first", "all"),
        "first",
        audience="operator",
        reason="replies clutter a chat, or are missed; the first part of an answer is one without it.",
    )
    """Which parts of an answer are replies to the message that was asked, where the platform has replies."""
    redacts_ids: bool = declare_setting(
        "chats.redact_pii",
        "HERMES_GATEWAY_REDACT_PII",
        SWITCH,
        False,
        audience="security",
        reason="a provider must not see who people are; agents are shown real ids without it.",
    )
    """Whether agents are shown ids of people and chats as hashes, on platforms where no message needs the real ones."""
    streams: bool = declare_setting(
        "chats.streaming",
        "HERMES_GATEWAY_STREAMING",
        SWITCH,
        False,
        audience="operator",
        reason="people should see an answer grow; it comes when it is whole without it.",
    )
    """Whether an answer is shown while it is written, as one message that is edited, where the platform can do that."""
    types: bool = declare_setting(
        "chats.typing_indicator",
        "HERMES_GATEWAY_TYPING",
        SWITCH,
        False,
        audience="operator",
        reason="people should see that work goes on; a chat is silent until the answer without it.",
    )
    """Whether a chat is shown that the agent writes, until the answer comes, where the platform can do that."""
    tool_progress: str = declare_setting(
        "chats.tool_progress",
        "HERMES_GATEWAY_TOOL_PROGRESS",
        one_of("off", "short", "full"),
        "off",
        audience="operator",
        reason="people should see what tools do; a growing answer shows text alone without it.",
    )
    """What an answer that is shown while it is written shows of tools: nothing, which are at work and how many were, or
    the last twelve calls and how they ended."""
    tool_progress_modes: tuple[str, ...] = declare_setting(
        "chats.tool_progress_modes",
        "HERMES_GATEWAY_TOOL_PROGRESS_MODES",
        list_of_names(r"[a-z_]{1,30}=(off|short|full)", "`PLATFORM=MODE`"),
        (),
        audience="operator",
        reason="platforms differ in how much fits; all follow one mode without it.",
    )
    """Other modes for a platform: `telegram=full,slack=off`."""
    accounts: tuple[str, ...] = declare_setting(
        "chats.accounts",
        "HERMES_GATEWAY_ACCOUNTS",
        list_of_names(ACCOUNT_PATTERN, "accounts, as `telegram:ops`"),
        (),
        audience="operator",
        reason="one platform has several bots; only its first one is known without it.",
    )
    """More accounts than one of a platform. The variables of `telegram:ops` end with its name:
    `TELEGRAM_BOT_TOKEN__OPS`."""
    chats: tuple[str, ...] = declare_setting(
        "chats.rules",
        "HERMES_GATEWAY_CHATS",
        list_of_names(RULE_PATTERN, "`ACCOUNT/CHAT=TENANT`"),
        (),
        audience="operator",
        reason="chats belong to different tenants; all belong to the default one without it.",
    )
    """Tenants of chats: `telegram:ops/*=acme,telegram:default/-100123=globex`, with `TENANT/PROFILE` for sessions of
    their own. Others are the default tenant's."""
    lease_s: float = declare_setting(
        "chats.lease_s",
        "HERMES_GATEWAY_LEASE_S",
        number(2.0, 600.0, "seconds"),
        60.0,
        audience="developer",
        reason="tests cannot wait a minute for a takeover; they would without it.",
    )
    """For how long a gateway holds an account without renewing; another takes it then."""

    @property
    def rules(self) -> ChatRules:
        return ChatRules(self.chats)
