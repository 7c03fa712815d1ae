"""Presets: the command line, the variables and the configuration files of known programs.

    LaunchContext (model, key, …) ──► a preset ──► Launch (arguments, variables, files)

Each program gets a home folder of its own for the episode, so that it reads no configuration of the
user's and concurrent episodes share nothing. Telemetry, update checks and requests that are no part
of the task are off.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .program import Start

SERVER = "environment"
"""The name of the MCP server of the environment's tools in a program's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """The facts about an episode from which a preset makes a launch."""

    base_url: str
    """The base URL for OpenAI clients, with `/v1`."""
    key: str
    model: str
    mcp_url: str
    """The URL of the environment's tools; empty if none are offered."""
    home: str
    """The home folder of the program."""
    answer_file: str
    """The path where the program may write its final message."""
    own_tools: bool
    """Whether the program may use its own tools."""
    confined: bool = False
    """Whether the program is in a sandbox already, and needs none of its own."""

    @property
    def origin(self) -> str:
        """Return the base URL for Anthropic clients, without `/v1`."""
        return self.base_url.removesuffix("/v1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The way to start a program once; the prompt is its standard input."""

    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """The contents of files, by their path in the home folder."""
    prompt_option: str = ""
    """The option whose value is the prompt, for a program that reads no standard input; `--`: the
    prompt is the last argument."""
    answer: Callable[[str], str] | None = None
    """A function from the standard output to the final message; None: the message is the complete
    output."""
    answer_file: str = ""
    """The path of a file that `answer` reads instead of the standard output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A program that `--agent command:NAME` starts."""

    program: str
    install: str
    """The command that installs the program."""
    launch: Callable[[LaunchContext], Launch]
    takes_mcp: bool = True
    """Whether the program can use the environment's tools; otherwise it has only its own tools."""


def _claude_code(context: LaunchContext) -> Launch:
    """Return the launch of Claude Code. Its attribution header would change with each request, and
    would begin a new row."""
    servers = {SERVER: {"type": "http", "url": context.mcp_url}} if context.mcp_url else {}
    arguments = (
        *("--print", "--output-format", "text", "--no-session-persistence"),
        *("--strict-mcp-config", "--mcp-config", _json({"mcpServers": servers})),
        *("--setting-sources", "", "--permission-mode", "bypassPermissions"),
        *(() if context.own_tools else ("--tools", "")),
    )
    one_model = ("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL")
    families = (f"ANTHROPIC_DEFAULT_{name}_MODEL" for name in ("HAIKU", "SONNET", "OPUS"))
    off = (
        *("DISABLE_AUTOUPDATER", "DISABLE_BUG_COMMAND", "DISABLE_ERROR_REPORTING"),
        *("DISABLE_TELEMETRY", "DISABLE_NON_ESSENTIAL_MODEL_CALLS", "DISABLE_COST_WARNINGS"),
        *("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "CLAUDE_CODE_DISABLE_TERMINAL_TITLE"),
    )
    env = {
        **dict.fromkeys((*one_model, *families), context.model),
        **dict.fromkeys(off, "1"),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "ENABLE_TOOL_SEARCH": "false",  # with `defer_loading` the model would not see the tools
        "CLAUDE_CONFIG_DIR": f"{context.home}/.claude",
        "IS_SANDBOX": "1",  # else it refuses to bypass permissions as root
    }
    return Launch(arguments=arguments, env=env)


def _codex(context: LaunchContext) -> Launch:
    """Return the launch of Codex. Only a provider of the configuration file has another address."""
    shell = "workspace-write" if context.own_tools else "read-only"
    if context.confined:
        shell = "danger-full-access"  # it could make no sandbox in ours
    settings: dict[str, Any] = {
        "model": context.model,
        "model_provider": "arl",
        "approval_policy": "never",
        "sandbox_mode": shell,
        "web_search": "disabled",
        "check_for_update_on_startup": False,
        "analytics.enabled": False,
        "feedback.enabled": False,
        "history.persistence": "none",
        "model_providers.arl.name": "arl",
        "model_providers.arl.base_url": context.base_url,
        "model_providers.arl.env_key": "OPENAI_API_KEY",
        "model_providers.arl.wire_api": "responses",
    }
    if context.mcp_url:
        settings[f"mcp_servers.{SERVER}.url"] = context.mcp_url
        settings[f"mcp_servers.{SERVER}.default_tools_approval_mode"] = "approve"
    if not context.own_tools:
        for name in ("features.shell_tool", "features.multi_agent", "features.goals"):
            settings[name] = False
    config = "".join(f"{name} = {_json(value)}\n" for name, value in settings.items())
    arguments = (
        *("exec", "--skip-git-repo-check", "--ephemeral", "--color", "never"),
        *("--output-last-message", context.answer_file, "-"),
    )
    return Launch(
        arguments=arguments,
        env={"CODEX_HOME": f"{context.home}/.codex"},
        files={".codex/config.toml": config},
    )


def _opencode(context: LaunchContext) -> Launch:
    """Return the launch of opencode. A given title saves the request for one."""
    options = {"baseURL": context.base_url, "apiKey": context.key}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "arl",
        "options": options,
        "models": {context.model: {"name": context.model, "tool_call": True}},
    }
    config: dict[str, Any] = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {"arl": provider},
        "enabled_providers": ["arl"],
        "model": f"arl/{context.model}",
        "small_model": f"arl/{context.model}",
        "autoupdate": False,
        "share": "disabled",
        "permission": "allow",
    }
    if context.mcp_url:
        config["mcp"] = {SERVER: {"type": "remote", "url": context.mcp_url, "oauth": False}}
    if not context.own_tools:
        config["permission"] = {"*": "deny", f"{SERVER}_*": "allow"}
    off = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "CLAUDE_CODE")
    env = {
        **{f"OPENCODE_DISABLE_{name}": "1" for name in off},
        "OPENCODE_CONFIG": f"{context.home}/opencode.json",
        "XDG_CONFIG_HOME": f"{context.home}/.config",
        "XDG_DATA_HOME": f"{context.home}/.local/share",
        "XDG_STATE_HOME": f"{context.home}/.local/state",
        "XDG_CACHE_HOME": f"{context.home}/.cache",
    }
    return Launch(
        arguments=("run", "--pure", "--title", "episode", "--format", "json"),
        env=env,
        files={"opencode.json": _json(config)},
        answer=_last_text,
    )


def _last_text(output: str) -> str:
    """Return the last text among the events that opencode prints, a line of JSON each."""
    texts = [""]
    for line in output.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            event = json.loads(line)
            if event["type"] == "text":
                texts.append(str(event["part"]["text"]))
    return texts[-1]


_QWEN_TOOLS = (
    *("agent", "enter_worktree", "exit_worktree", "get_goal", "list_agents", "record_artifact"),
    *("report_findings", "send_message", "skill", "task_stop", "update_goal"),
)
"""The tools of qwen-code that its allowlist does not rule."""


def _qwen_code(context: LaunchContext) -> Launch:
    """Return the launch of qwen-code."""
    settings: dict[str, Any] = {
        "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "model": {"skipNextSpeakerCheck": True, "skipLoopDetection": True},
        "security": {"auth": {"selectedType": "openai"}},
        "tools": {"toolSearch": {"enabled": False}},
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
    }
    if context.mcp_url:
        settings["mcpServers"] = {SERVER: {"httpUrl": context.mcp_url, "trust": True}}
    if not context.own_tools:
        settings["tools"]["core"] = ["none"]
        settings["permissions"] = {"deny": _QWEN_TOOLS}
    arguments = (
        *("--auth-type", "openai", "--model", context.model, "--output-format", "text"),
        *("--approval-mode", "yolo", "--chat-recording=false"),
    )
    files = {".qwen/settings.json": _json(settings)}
    return Launch(arguments=arguments, env={"QWEN_SANDBOX": "false"}, files=files)


def _mini_swe_agent(context: LaunchContext) -> Launch:
    """Return the launch of mini-swe-agent, which runs commands in the working folder."""
    env = {
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_GLOBAL_CONFIG_DIR": f"{context.home}/.config/mini-swe-agent",
        "MSWEA_SILENT_STARTUP": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    trajectory = f"{context.home}/trajectory.json"
    arguments = (
        *("--yolo", "--exit-immediately", "--cost-limit", "0", "--output", trajectory),
        *("--model", f"openai/{context.model}"),
    )
    return Launch(
        arguments=arguments,
        env=env,
        prompt_option="--task",
        answer=_submission,
        answer_file=trajectory,
    )


def _submission(trajectory: str) -> str:
    """Return the submission in a trajectory of mini-swe-agent; empty if there is none."""
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        return str(json.loads(trajectory)["info"]["submission"])
    return ""


def _pi(context: LaunchContext) -> Launch:
    """Return the launch of pi."""
    provider = {
        "baseUrl": context.base_url,
        "api": "openai-completions",
        "apiKey": "OPENAI_API_KEY",
        "models": [{"id": context.model}],
    }
    arguments = (
        *("--print", "--no-session", "--offline", "--provider", "arl", "--model", context.model),
        *("--no-extensions", "--no-skills", "--no-context-files"),
    )
    env = {
        "PI_OFFLINE": "1",
        "PI_TELEMETRY": "0",
        "PI_CODING_AGENT_DIR": f"{context.home}/.pi/agent",
    }
    files = {".pi/agent/models.json": _json({"providers": {"arl": provider}})}
    return Launch(arguments=arguments, env=env, files=files)


_CONTINUE_TOOLS = (
    *("AskQuestion", "Bash", "CheckBackgroundJob", "Checklist", "Edit", "Exit", "Fetch", "List"),
    *("MultiEdit", "Read", "Search", "Skills", "Write"),
)
"""The tools of Continue's command line, which has no switch for all of them."""


def _continue(context: LaunchContext) -> Launch:
    """Return the launch of Continue's command line. JSON is YAML."""
    model = {
        "name": context.model,
        "provider": "openai",
        "model": context.model,
        "apiBase": context.base_url,
        "apiKey": context.key,
        "roles": ["chat"],
        "capabilities": ["tool_use"],
    }
    config: dict[str, Any] = {"name": "arl", "version": "1.0.0", "schema": "v1", "models": [model]}
    if context.mcp_url:
        server = {"name": SERVER, "type": "streamable-http", "url": context.mcp_url}
        config["mcpServers"] = [server]
    excluded = () if context.own_tools else _CONTINUE_TOOLS
    arguments = (
        *("--print", "--silent", "--config", f"{context.home}/config.yaml", "--allow", "*"),
        *(word for name in excluded for word in ("--exclude", name)),
    )
    env = {"CONTINUE_GLOBAL_DIR": f"{context.home}/.continue", "CONTINUE_TELEMETRY_ENABLED": "0"}
    files = {"config.yaml": _json(config)}
    return Launch(arguments=arguments, env=env, files=files, prompt_option="--")


def _aider(context: LaunchContext) -> Launch:
    """Return the launch of aider, which has no tools: it edits files by the text of the replies."""
    arguments = (
        *("--model", f"openai/{context.model}", "--openai-api-base", context.base_url),
        *("--yes-always", "--no-git", "--no-pretty", "--no-check-update", "--analytics-disable"),
        *("--no-show-model-warnings", "--no-show-release-notes", "--no-detect-urls"),
        *("--no-gitignore", "--no-suggest-shell-commands", "--map-tokens", "0"),
    )
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return Launch(arguments=arguments, env=env, prompt_option="--message")


def launch_of(
    preset: Preset, env: Mapping[str, str], *, home: str, own_tools: bool, confined: bool = False
) -> Launch:
    """Return the launch of a preset's program for an episode, with its variables `env`."""
    return preset.launch(
        LaunchContext(
            base_url=env["OPENAI_BASE_URL"],
            key=env["OPENAI_API_KEY"],
            model=env["ARL_MODEL"],
            mcp_url=env.get("ARL_MCP_URL", ""),
            home=home,
            answer_file=env["ARL_ANSWER_FILE"],
            own_tools=own_tools,
            confined=confined,
        )
    )


def command_line(launch: Launch, argv: Sequence[str], prompt: str) -> tuple[list[str], bool]:
    """Return the words that start a program, and whether its standard input is the prompt.

    `argv`: the program, and further arguments.
    """
    option = launch.prompt_option
    given = ("--", prompt) if option == "--" else (f"{option}={prompt}",) if option else ()
    return [argv[0], *launch.arguments, *argv[1:], *given], not given


def preset_start(
    preset: Preset,
    argv: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    *,
    prompt: str,
    own_tools: bool,
) -> tuple[Start, Launch]:
    """Return the way to start a preset's program on this machine; write its files into `folder`.

    `argv` is the program, with further arguments; `env` has the environment variables of the
    episode.
    """
    home, work, prompt_file = folder / "home", folder / "work", folder / "prompt.txt"
    launch = launch_of(preset, env, home=str(home), own_tools=own_tools)
    home.mkdir()
    work.mkdir()
    for name, text in launch.files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text, encoding="utf-8")
    prompt_file.write_text(prompt, encoding="utf-8")
    words, reads_prompt = command_line(launch, argv, prompt)
    start = Start(
        argv=words,
        cwd=work,
        env={**env, "HOME": str(home), **launch.env},
        stdin=prompt_file if reads_prompt else None,
    )
    return start, launch


def _npm(package: str) -> str:
    return f"npm install --global {package}"


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "claude-code": Preset(
            program="claude", install=_npm("@anthropic-ai/claude-code"), launch=_claude_code
        ),
        "codex": Preset(program="codex", install=_npm("@openai/codex"), launch=_codex),
        "opencode": Preset(program="opencode", install=_npm("opencode-ai"), launch=_opencode),
        "qwen-code": Preset(
            program="qwen", install=_npm("@qwen-code/qwen-code"), launch=_qwen_code
        ),
        "mini-swe-agent": Preset(
            program="mini",
            install="pip install mini-swe-agent",
            launch=_mini_swe_agent,
            takes_mcp=False,
        ),
        "pi": Preset(
            program="pi",
            install=_npm("@mariozechner/pi-coding-agent"),
            launch=_pi,
            takes_mcp=False,
        ),
        "continue": Preset(program="cn", install=_npm("@continuedev/cli"), launch=_continue),
        "aider": Preset(
            program="aider", install="pip install aider-chat", launch=_aider, takes_mcp=False
        ),
    }
)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
