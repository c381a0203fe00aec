"""`rocmforge launch`: a coding agent, set up for a server of ours by its own variables and options."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import typer

from rocmforge.cli.common import A_MODEL, fail, say, write

KEY = "ROCMFORGE_API_KEY"
# Agents want this for a key where the server wants none.
NO_KEY = "none"
LISTENING = "listening on "
POLL_SECONDS = 0.1
END_SECONDS = 40.0
ANSWER_SECONDS = 10.0


class Agent(StrEnum):
    """The coding agents that are known."""

    CLAUDE = "claude"
    CODEX = "codex"
    OPENCODE = "opencode"


INSTALL = {
    Agent.CLAUDE: "npm install -g @anthropic-ai/claude-code",
    Agent.CODEX: "npm install -g @openai/codex",
    Agent.OPENCODE: "npm install -g opencode-ai",
}


@dataclass(frozen=True, slots=True)
class Served:
    """A model that a server has loaded."""

    name: str
    length: int
    """Tokens of its context."""
    thinks: bool
    knows_efforts: bool
    """True if its chat template can be told how much to think."""
    sees: bool
    """True if it reads images."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Variables and options that make an agent use a server. Its files of settings stay as they are."""

    variables: dict[str, str]
    unset: tuple[str, ...]
    """Variables that would lead it to another server."""
    options: list[str]

    def shell(self, agent: Agent, arguments: Sequence[str], *, has_key: bool) -> str:
        """Returns it as a line for a shell; a key is named by its variable."""
        words = ["env", *(word for name in self.unset for word in ("-u", name))]
        words += [shlex.quote(f"{name}={value}") for name, value in self.variables.items() if name != KEY]
        line = " ".join([*words, shlex.join([agent.value, *self.options, *arguments])])
        if has_key:
            key = shlex.quote(f"ANTHROPIC_AUTH_TOKEN={self.variables[KEY]}")
            line = line.replace(key, f'ANTHROPIC_AUTH_TOKEN="${KEY}"')
        return line


def agent_setup(agent: Agent, url: str, model: Served, key: str | None) -> Setup:
    """Sets an agent up.

    Args:
        agent: Which one.
        url: The server's address.
        model: The model.
        key: The server's key, if it wants one.
    """
    variables = {KEY: key or NO_KEY}
    match agent:
        case Agent.CLAUDE:
            names = ("ANTHROPIC_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL")
            tiers = (f"ANTHROPIC_DEFAULT_{tier}_MODEL" for tier in ("OPUS", "SONNET", "HAIKU"))
            variables |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": key or NO_KEY}
            variables |= dict.fromkeys((*names, *tiers), model.name)
            # The line on billing is of no use here, and it would cost the prefix cache on other servers.
            variables |= {"CLAUDE_CODE_ATTRIBUTION_HEADER": "0", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
            variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(model.length)
            # It requests reasoning by default, which a model without reasoning refuses.
            if not model.thinks:
                variables["MAX_THINKING_TOKENS"] = "0"
            if not model.knows_efforts:
                variables["CLAUDE_CODE_EFFORT_LEVEL"] = "unset"
            unset = ("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX")
            return Setup(variables, unset, [])
        case Agent.CODEX:
            provider = "model_providers.rocmforge"
            settings: dict[str, Any] = {
                "model": model.name,
                "model_context_window": model.length,
                "model_provider": "rocmforge",
                f"{provider}.name": "rocmforge",
                f"{provider}.base_url": f"{url}/v1",
                f"{provider}.env_key": KEY,
                f"{provider}.wire_api": "responses",
                "web_search": "disabled",
            }
            # A text in JSON is one in TOML as well.
            options = [word for name, value in settings.items() for word in ("-c", f"{name}={json.dumps(value)}")]
            return Setup(variables, (), options)
        case Agent.OPENCODE:
            described: dict[str, Any] = {
                "name": model.name,
                "limit": {"context": model.length, "output": model.length},
            }
            if model.sees:
                # It sends images only to models of which it knows that they read them.
                described |= {"attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}
            provided = {
                "npm": "@ai-sdk/openai-compatible",
                "name": "rocmforge",
                "options": {"baseURL": f"{url}/v1", "apiKey": f"{{env:{KEY}}}"},
                "models": {model.name: described},
            }
            name = f"rocmforge/{model.name}"
            content = {"provider": {"rocmforge": provided}, "model": name, "small_model": name}
            return Setup(variables | {"OPENCODE_CONFIG_CONTENT": json.dumps(content)}, (), [])


def launch(
    agent: Annotated[
        Agent, typer.Argument(metavar="AGENT", help="The agent to run: claude, codex or opencode.", show_default=False)
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- ARGUMENTS", help="Arguments for the agent itself.", show_default=False),
    ] = None,
    *,
    url: Annotated[str, typer.Option(help="The URL of a running server.")] = "http://127.0.0.1:8000",
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", help=f"{A_MODEL}; starts a server with it, which stops when the agent exits."),
    ] = None,
    served_model: Annotated[
        str | None, typer.Option(help="The name of one of the server's models; needed if it has several.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar=KEY, show_envvar=True, help="An API key of the server.", show_default=False)
    ] = None,
    show: Annotated[bool, typer.Option("--print", help="Print the agent's command without running it.")] = False,
) -> None:
    """Run a coding agent (claude, codex, opencode) that uses a rocmforge server.

    Environment variables and options configure the agent. Its settings files are not changed.
    """
    program = shutil.which(agent.value)
    if program is None and not show:
        fail(f"{agent.value} is not installed: {INSTALL[agent]}")
    if model is not None and show:
        fail("--print shows the settings for a server that runs; leave --model out")
    # A server takes several keys by this variable, and any of them will do.
    key = api_key.split()[0] if api_key and api_key.split() else None
    with contextlib.nullcontext(url.rstrip("/")) if model is None else _server(model) as address:
        setup = agent_setup(agent, address, _model(address, served_model, key), key)
        if show or program is None:
            write(f"{setup.shell(agent, arguments or [], has_key=key is not None)}\n")
            return
        code = _run([program, *setup.options, *(arguments or [])], setup)
    raise typer.Exit(code)


def _model(url: str, wanted: str | None, key: str | None) -> Served:
    """Finds a model of a server, and loads it: only a loaded model reports its capabilities."""
    models = {each["id"]: each for each in _ask(url, "/v1/models", key)["data"]}
    if wanted is None and len(models) == 1:
        wanted = next(iter(models))
    if wanted is None or wanted not in models:
        got = "no --served-model" if wanted is None else f"--served-model {wanted}"
        fail(f"got {got}, expected one of those that are served: {', '.join(models)}")
    model = models[wanted]
    if model["capabilities"] is None:
        say(f"loading {wanted}")
        _ask(url, "/models/load", key, {"model": wanted})
        model = _ask(url, f"/v1/models/{urllib.parse.quote(wanted)}", key)
    can = model["capabilities"]
    thinks, knows_efforts, sees = (can[name]["supported"] for name in ("thinking", "effort", "image_input"))
    return Served(wanted, model["max_input_tokens"], thinks, knows_efforts, sees)


def _ask(url: str, path: str, key: str | None, body: dict[str, Any] | None = None) -> Any:
    """Returns the answer of the server at a path, in Anthropic's format if there are two."""
    headers = {"anthropic-version": "2023-06-01", "content-type": "application/json"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, headers)  # noqa: S310 - the address is the user's own
    try:
        # A load takes as long as it takes.
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS if body is None else None) as answer:  # noqa: S310
            return json.load(answer)
    except urllib.error.HTTPError as error:
        remedy = f"give its key by {KEY}" if error.code == HTTPStatus.UNAUTHORIZED else "see its log"
        fail(f"{url}{path}: the server answers with {error.code} {error.reason}; {remedy}")
    except (OSError, ValueError) as error:
        fail(f"{url}: no server answers there ({error}); start one by `rocmforge serve MODEL`, or give --model")


def _run(command: Sequence[str], setup: Setup) -> int:
    """Runs the agent until it ends; Ctrl-C is for the agent."""
    environment = {name: value for name, value in os.environ.items() if name not in setup.unset} | setup.variables
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - the user's program
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _server(model: Path) -> Iterator[str]:
    """Runs a server on a free port, and yields its address once it listens."""
    command = [sys.executable, "-m", "rocmforge", "serve", "--port", "0", str(model)]
    # The agent's server is its own business: no key of another one holds for it.
    environment = {name: value for name, value in os.environ.items() if name != KEY}
    with tempfile.NamedTemporaryFile(prefix="rocmforge-", suffix=".log") as log:
        say(f"starting a server of {model}")
        process = subprocess.Popen(  # noqa: S603 - our own command
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
        ended = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            yield _address(process, Path(log.name))
        finally:
            signal.signal(signal.SIGTERM, ended)
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    while True:
        # A server that has ended has written all that it will.
        has_ended = process.poll() is not None
        text = log.read_text(encoding="utf-8", errors="replace")
        _, found, rest = text.partition(LISTENING)
        if found and "\n" in rest:
            return rest.split()[0]
        if has_ended:
            fail(f"the server did not start:\n{text.rstrip()}")
        time.sleep(POLL_SECONDS)
