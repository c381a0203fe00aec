"""The clients of recorded sessions: what each sends, and how it keeps what it got.

The bodies have every field that the client sends, by its public sources; their texts are short ones of our own.
"""

import json
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import httpx
from session_model import BETWEEN


class Used(NamedTuple):
    """The tokens of a request."""

    prompt: int
    cached: int
    generated: int


def function(name: str, description: str, /, **properties: Any) -> dict[str, Any]:
    """The parts of a tool, which each API puts together in its own way."""
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"name": name, "description": description, "parameters": schema}


# Pieces of a long text.
LENGTH = 40
TEXT, PATH = {"type": "string"}, {"type": "string", "description": "A path from the root."}


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The events of a stream."""
    for line in response.text.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def pieces(number: int, text: str) -> list[str]:
    """An answer in pieces, with many in place of `…`; no other answer has one of them."""
    begin, end = text.split("…")
    return [begin, *(f" part {number}.{part}" for part in range(LENGTH)), f"{end}{' ' * number}"]


class SessionClient:
    """A client of `/v1/chat/completions`, in the middle of a session.

    Args:
        model: What the server calls the model.
        stream: Whether answers are streamed.
    """

    path = "/v1/chat/completions"
    headers: ClassVar[dict[str, str]] = {}
    system = "You are a coding agent. Use the tools to do what the user asks."
    tools = (function("read_file", "Reads a file.", path=PATH), function("run", "Runs a command.", command=TEXT))
    calls = (("read_file", '{"path" : "src/main.rs…"}'), ("run", '{"command":"cargo test…"}'))
    """Calls that the model may make, with arguments as it writes them; `…` stands for a long text."""
    aliases = ()
    """Other names of the model, with which those begin that the client asks for by itself."""
    many_answers = True
    """Whether the client leaves it to the model what it answers."""
    template = "Qwen-Qwen2.5-7B-Instruct"
    """The chat template of the model."""
    forgets = False
    """Whether the template drops the reasoning of earlier tasks."""

    def __init__(self, model: str, *, stream: bool) -> None:
        self.model = model
        self.stream = stream
        # No session has the other's blocks in the cache.
        self.system = f"{self.system} Answers are {'streamed' if stream else 'whole'}."
        self.turns: list[dict[str, Any]] = []
        self.waiting: list[tuple[str, str]] = []
        """The calls that have no result so far: their ids and names."""
        self.number = 0
        self.is_task = False
        """Whether the last turn has a text of the user, with which a task begins for chat templates."""

    @classmethod
    def answers(cls) -> list[list[str]]:
        """Returns the answers that the model may give, in pieces."""
        texts = [f"I have read the files of {cls.__name__}:… and see the fault.", "Done:… and all tests pass.\n\nNext?"]
        called = [f'\n{{"name": "{name}",  "arguments":{arguments}}}\n' for name, arguments in cls.calls]
        answers = [["<tool_call>", *pieces(number, text), "</tool_call>"] for number, text in enumerate(called)]
        return answers + [pieces(number, text) for number, text in enumerate(texts, len(called))]

    def beginning(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Requests before the first turn: paths and bodies."""
        yield from ()

    def behind(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Requests behind each turn."""
        yield from ()

    def say(self) -> None:
        """Adds what follows an answer: results of the tools, or what the user says."""
        self.number += 1
        self.is_task = not self.waiting
        if self.is_task:
            self.turns += self.user(f"Task {self.number}: mend the next fault, and say what it was.")
        for id_, name in self.waiting:
            self.turns += self.result(id_, name, f"line {self.number}: let x = {self.number};\nok")
        self.waiting = []

    def user(self, text: str) -> list[dict[str, Any]]:
        """The messages of a user's turn."""
        return [{"role": "user", "content": text}]

    def result(self, id_: str, name: str, text: str) -> list[dict[str, Any]]:
        """The messages of a tool's result."""
        del name
        return [{"role": "tool", "tool_call_id": id_, "content": text}]

    def body(self) -> dict[str, Any]:
        """The request for the next answer."""
        body = {"model": self.model, "messages": [{"role": "system", "content": self.system}, *self.turns]}
        body["tools"] = [{"type": "function", "function": tool} for tool in self.tools]
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body | self.fields()

    def fields(self) -> dict[str, Any]:
        """The client's own fields."""
        return {}

    def take(self, response: httpx.Response) -> Used:
        """Keeps an answer; tells what it cost."""
        message, usage = self._streamed(response) if self.stream else self._whole(response.json())
        self.waiting = [(call["id"], call["function"]["name"]) for call in message["tool_calls"]]
        self.turns.append(self.kept(message))
        return Used(usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"])

    def kept(self, message: dict[str, Any]) -> dict[str, Any]:
        """An answer as the client sends it back."""
        calls = {"tool_calls": message["tool_calls"]} if message["tool_calls"] else {}
        return {"role": "assistant", "content": message["content"]} | calls

    def _whole(self, answer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        message = answer["choices"][0]["message"]
        calls = [
            {"id": call["id"], "type": "function", "function": call["function"]}
            for call in message.get("tool_calls") or []
        ]
        return {"content": message["content"] or "", "tool_calls": calls}, answer["usage"]

    def _streamed(self, response: httpx.Response) -> tuple[dict[str, Any], dict[str, Any]]:
        content, calls, usage = "", {}, {}
        for event in events(response):
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                delta = choice["delta"]
                content += delta.get("content") or ""
                for piece in delta.get("tool_calls") or []:
                    if piece["index"] not in calls:
                        made = {"name": piece["function"]["name"], "arguments": ""}
                        calls[piece["index"]] = {"id": piece["id"], "type": "function", "function": made}
                    calls[piece["index"]]["function"]["arguments"] += piece["function"].get("arguments") or ""
        return {"content": content, "tool_calls": list(calls.values())}, usage


def parts(*texts: str) -> list[dict[str, Any]]:
    """Texts as parts of a message's content."""
    return [{"type": "text", "text": text} for text in texts]


class OpenCode(SessionClient):
    """OpenCode, which writes arguments anew, and asks for a title first."""

    headers: ClassVar = {"User-Agent": "opencode/1.2.0"}

    def beginning(self) -> Iterator[tuple[str, dict[str, Any]]]:
        messages = [
            {"role": "system", "content": "You are a title generator."},
            {"role": "user", "content": "Generate a title for this conversation:"},
            {"role": "user", "content": "Mend the next fault."},
        ]
        options = {"temperature": 0.5, "max_tokens": 100, "stream": True, "stream_options": {"include_usage": True}}
        yield self.path, {"model": self.model, "messages": messages} | options

    def fields(self) -> dict[str, Any]:
        return {"max_tokens": 8000, "temperature": 0.55, "top_p": 1, "tool_choice": "auto"}

    def kept(self, message: dict[str, Any]) -> dict[str, Any]:
        for call in message["tool_calls"]:
            call["function"]["arguments"] = compact(call["function"]["arguments"])
        return super().kept(message)


def compact(text: str) -> str:
    """JSON as JavaScript writes it."""
    return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)


class Cline(SessionClient):
    """Cline, with details of the editor in each of the user's turns, at temperature 0."""

    many_answers = False

    def user(self, text: str) -> list[dict[str, Any]]:
        details = f"<environment_details>\n# Current Time\n1:{self.number:02}\n</environment_details>"
        return [{"role": "user", "content": parts(f"<task>\n{text}\n</task>", details)}]

    def fields(self) -> dict[str, Any]:
        return {"temperature": 0, "max_tokens": 8192}

    def kept(self, message: dict[str, Any]) -> dict[str, Any]:
        made = super().kept(message)
        if not message["content"]:
            del made["content"]
        return made


class Continue(SessionClient):
    """Continue, which sends a space for no answer."""

    def fields(self) -> dict[str, Any]:
        return {"max_tokens": 4096, "temperature": 0.5, "parallel_tool_calls": False}

    def kept(self, message: dict[str, Any]) -> dict[str, Any]:
        return super().kept(message | {"content": message["content"] or " "})


class Zed(SessionClient):
    """Zed, which sends `null` for no answer, and a key for the cache."""

    def fields(self) -> dict[str, Any]:
        return {
            "max_completion_tokens": 8192,
            "temperature": 1.0,
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "prompt_cache_key": "5b1d2c1e-thread",
        }

    def kept(self, message: dict[str, Any]) -> dict[str, Any]:
        return super().kept(message | {"content": message["content"] or None})


class OpenWebUI(SessionClient):
    """Open WebUI with its own calling, and its tasks behind each turn."""

    def fields(self) -> dict[str, Any]:
        return {"temperature": 0.7, "stream": self.stream}

    def behind(self) -> Iterator[tuple[str, dict[str, Any]]]:
        if self.number in (1, 2):
            task = "### Task:\nGenerate a concise title.\n### Chat History:\n<chat_history>\nUSER: Hi\n</chat_history>"
            messages = [{"role": "user", "content": task}]
            yield self.path, {"model": self.model, "messages": messages, "stream": False, "max_completion_tokens": 1000}


class ClaudeCode(SessionClient):
    """Claude Code, whose first system block changes with each request."""

    aliases = ("claude",)
    path = "/v1/messages"
    headers: ClassVar = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,context-management-2025-06-27,effort-2025-11-24",
        "User-Agent": "claude-cli/2.1.120 (external, cli)",
    }
    tools = (
        function("Read", "Reads a file.", file_path=PATH, offset={"type": "integer"}),
        function("Bash", "Runs a command.", command=TEXT, description=TEXT),
    )
    calls = (
        ("Read", '{"offset":1.0,"file_path":"/src/main.rs…"}'),
        ("Bash", '{"command": "cargo test", "description":"Runs the tests \\u2014 all…"}'),
    )

    def beginning(self) -> Iterator[tuple[str, dict[str, Any]]]:
        quota = {"model": "claude-haiku-4-5-20251001", "max_tokens": 1, "metadata": {"user_id": "session_1"}}
        yield self.path, quota | {"messages": [{"role": "user", "content": "quota"}]}
        body = {"model": self.model, "messages": [{"role": "user", "content": "foo"}], "tools": self._tools()}
        yield "/v1/messages/count_tokens", body

    def user(self, text: str) -> list[dict[str, Any]]:
        reminder = "<system-reminder>\nAs you answer, you can use the following context.\n</system-reminder>\n"
        return [{"role": "user", "content": parts(reminder, text)}]

    def result(self, id_: str, name: str, text: str) -> list[dict[str, Any]]:
        del name
        block = {"type": "tool_result", "tool_use_id": id_, "content": text, "is_error": False}
        note = parts(f"<system-reminder>\nThe list of tasks is empty ({self.number}).\n</system-reminder>")
        self.is_task = self.number % 5 == 0
        return [{"role": "user", "content": [block, *(note if self.is_task else [])]}]

    def body(self) -> dict[str, Any]:
        mark = {"type": "ephemeral", "ttl": "1h"}
        # The client marks the last two turns, so the marks move on.
        turns = json.loads(json.dumps(self.turns))
        for turn in turns[-2:]:
            turn["content"][-1]["cache_control"] = mark
        version, check = f"2.1.120.{self.number:03x}", f"{self.number:05x}"
        billing = f"x-anthropic-billing-header: cc_version={version}; cc_entrypoint=cli; cch={check};"
        system = [
            *parts(billing),
            *({**part, "cache_control": mark} for part in parts("You are Claude Code.", self.system)),
        ]
        body = {
            "model": self.model,
            "messages": turns,
            "system": system,
            "tools": self._tools(),
            "metadata": {"user_id": '{"device_id":"0","session_id":"1"}'},
            "max_tokens": 32000,
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"},
        }
        if self.number > 1:
            body["diagnostics"] = {"previous_message_id": self.last_id}
        return body | ({"stream": True} if self.stream else {})

    def _tools(self) -> list[dict[str, Any]]:
        made = [
            {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
            for tool in self.tools
        ]
        made[0]["eager_input_streaming"] = True
        return made

    def take(self, response: httpx.Response) -> Used:
        message = self._blocks(response) if self.stream else response.json()
        self.last_id, usage = message["id"], message["usage"]
        self.waiting = [(block["id"], block["name"]) for block in message["content"] if block["type"] == "tool_use"]
        # JavaScript writes 1.0 as 1.
        content = json.loads(json.dumps(message["content"]), parse_float=lambda text: int(float(text)))
        self.turns.append({"role": "assistant", "content": content})
        cached = usage["cache_read_input_tokens"]
        return Used(usage["input_tokens"] + cached, cached, usage["output_tokens"])

    def _blocks(self, response: httpx.Response) -> dict[str, Any]:
        message: dict[str, Any] = {}
        texts: list[str] = []
        for event in events(response):
            match event["type"]:
                case "message_start":
                    message = event["message"]
                case "content_block_start":
                    message["content"].append(event["content_block"])
                    texts.append("")
                case "content_block_delta":
                    delta, block = event["delta"], message["content"][-1]
                    texts[-1] += delta.get("partial_json", "")
                    for name in ("text", "thinking", "signature"):
                        if name in delta:
                            block[name] += delta[name]
                case "message_delta":
                    message["usage"] |= event["usage"]
        for block, text in zip(message["content"], texts, strict=True):
            if block["type"] == "tool_use":
                block["input"] = json.loads(text or "{}")
        return message


class ThinkingClaudeCode(ClaudeCode):
    """Claude Code with a model that reasons. The template drops the thinking blocks of earlier tasks."""

    aliases = ()
    template = "Qwen-Qwen3-0.6B"
    forgets = True

    @classmethod
    def answers(cls) -> list[list[str]]:
        """Returns the answers with reasoning before each."""
        return [
            [
                "<think>",
                *pieces(number, f"\nThought {number}:… so I go on."),
                f" {number}.\n",
                "</think>",
                BETWEEN,
                *answer,
            ]
            for number, answer in enumerate(super().answers(), 10)
        ]

    def take(self, response: httpx.Response) -> Used:
        used = super().take(response)
        assert self.turns[-1]["content"][0]["type"] == "thinking"
        return used


class Codex(SessionClient):
    """Codex with a server of MCP, search on the web, and a tool that takes a patch."""

    path = "/v1/responses"
    headers: ClassVar = {"originator": "codex_cli_rs", "session_id": "0199", "User-Agent": "codex_cli_rs/0.163.0"}
    tools = (function("exec_command", "Runs a command.", cmd=TEXT),)
    searched = function("search", "Searches the documents.", query=TEXT)
    calls = (
        ("exec_command", '{"cmd" : "cargo test…"}'),
        ("mcp__docs__search", '{ "query":"faults…"}'),
        ("apply_patch", '{"input": "*** Begin Patch\\n*** Delete File: a.rs…\\n*** End Patch\\n"}'),
    )

    def user(self, text: str) -> list[dict[str, Any]]:
        said = [("user", text)]
        if self.number == 1:
            said = [("developer", "<permissions>All is allowed.</permissions>"), ("user", "<environment/>"), *said]
        return [
            {"type": "message", "role": role, "content": [{"type": "input_text", "text": each}]} for role, each in said
        ]

    def result(self, id_: str, name: str, text: str) -> list[dict[str, Any]]:
        kind = "custom_tool_call_output" if name == "apply_patch" else "function_call_output"
        return [{"type": kind, "call_id": id_, "output": text}]

    def body(self) -> dict[str, Any]:
        # Free text: under a grammar, the model of these tests, which has one course of tokens, would never end.
        custom = {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": {"type": "text"}}
        member = {"type": "function", **self.searched, "strict": False}
        return {
            "model": self.model,
            "instructions": self.system,
            "input": self.turns,
            "tools": [
                *({"type": "function", **tool, "strict": False} for tool in self.tools),
                custom,
                {"type": "web_search", "external_web_access": False},
                {"type": "namespace", "name": "mcp__docs__", "description": "Documents.", "tools": [member]},
            ],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"effort": "none", "summary": "auto"},
            "store": False,
            "stream": self.stream,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "0199",
            "text": {"verbosity": "low"},
            "client_metadata": {"x-codex-installation-id": "0"},
        }

    def take(self, response: httpx.Response) -> Used:
        if self.stream:
            *_, last = events(response)
            answer = last["response"]
            assert last["type"] == "response.completed", last
            items = [event["item"] for event in events(response) if event["type"] == "response.output_item.done"]
        else:
            answer = response.json()
            items = answer["output"]
        self.waiting = [(item["call_id"], item["name"]) for item in items if item["type"].endswith("_call")]
        # Ids and states stay with the client.
        self.turns += [{name: item[name] for name in item if name not in ("id", "status")} for item in items]
        usage = answer["usage"]
        return Used(usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"])


CLIENTS = (ClaudeCode, ThinkingClaudeCode, Codex, OpenCode, Cline, Continue, Zed, OpenWebUI)
