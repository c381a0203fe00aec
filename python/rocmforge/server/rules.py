"""Rules that a client gives to a reply: how long it may think, what it has to call, and what form it has."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from rocmforge._rocmforge import SamplingParams, StructuredOutputsParams, Tokenizer
from rocmforge.parsing import UnsupportedCallsError, call_grammar, harmony_answer
from rocmforge.prompts import ChatOptions, Conversation
from rocmforge.server.chats import template_prompt
from rocmforge.server.errors import ApiError
from rocmforge.server.generation import Call, Generations
from rocmforge.server.replies import FunctionTool, Reader, ReplyFormat
from rocmforge.server.service import Service
from rocmforge.server.structured import form_fields, lark_rule, made


@dataclass(frozen=True, slots=True)
class ReplyRules:
    """The rules of one reply. Those that end in `param` say what the API calls the rule before, for errors."""

    tools: Sequence[FunctionTool] = ()
    """The functions in its prompt."""
    forced: str | bool = False
    """Whether it has to call one of them, or the name of the one."""
    allowed: frozenset[str] | None = None
    """Names of the functions that it may call; `None` for all of them."""
    strict: frozenset[str] = frozenset()
    """Names of tools whose arguments have to fit their schemas."""
    parallel: bool = True
    """Whether there may be more than one call."""
    form: StructuredOutputsParams | None = None
    form_param: str = ""
    thinking: bool | None = None
    """Whether it thinks; `None` where the client does not say."""
    thinking_param: str = "thinking"
    may_think: bool = False
    """Whether the client lets it think as it likes, also where the template does not by itself."""
    effort: str | None = None
    effort_param: str = ""
    budget: int | None = None
    """Tokens of thoughts at most."""
    budget_param: str = ""

    @property
    def ruled(self) -> bool:
        """Whether a grammar holds for the reply."""
        return self.form is not None or bool(self.forced) or bool(self.strict) or self.allowed is not None

    @property
    def param(self) -> str:
        """The parameter that the grammar is made of."""
        if self.form is not None:
            return self.form_param
        return "tool_choice" if self.forced or self.allowed is not None else "tools"

    @property
    def asks_for_thoughts(self) -> bool:
        """Whether the client has asked for thoughts."""
        return bool(self.thinking) or self.effort not in (None, "none") or self.budget is not None

    def variables(self, replies: ReplyFormat) -> dict[str, Any]:
        """Variables of the chat template that the rules need. A reply of a form has no thoughts, unless asked for.

        Raises:
            ApiError: The template has none for a rule.
        """
        if self.effort is not None or self.thinking is not None:
            given = {} if self.effort is None else replies.effort(self.effort, self.effort_param)
            if self.thinking is not None:
                given |= replies.thinking(on=self.thinking, param=self.thinking_param)
            return given
        if self.budget is not None:
            return replies.thinking(on=True, param=self.budget_param)
        if "enable_thinking" not in replies.template:
            return {}
        if self.form is not None or self.forced:
            return {"enable_thinking": False}
        return {"enable_thinking": True} if self.may_think else {}

    def structured_outputs(self, replies: ReplyFormat, marks: "_Marks", *, thinks: bool) -> StructuredOutputsParams:
        """The form of the reply; behind its thoughts, where it thinks.

        Raises:
            ApiError: The model has no way to do what is asked.
        """
        param = self.param
        begin = marks.token(replies.closing, param) if thinks else None
        if self.form is not None:
            if not thinks:
                return self.form
            if replies.chat.calls == "harmony":
                grammar = harmony_answer(lark_rule(self.form), marks.grammar)
                return made(param, grammar=grammar, begin_token_id=begin)
            return made(param, **form_fields(self.form), begin_token_id=begin)
        names = [self.forced] if isinstance(self.forced, str) else self.allowed
        tools = [tool for tool in self.tools if names is None or tool["function"]["name"] in names]
        try:
            calls = call_grammar(
                replies.chat,
                replies.template,
                tools,
                marks.grammar,
                strict=self.strict,
                parallel=self.parallel,
                forced=bool(self.forced),
            )
        except UnsupportedCallsError as error:
            raise ApiError(400, f"{param}: {error}", param=param) from error
        if calls.begin:
            chosen = "choose the mode `required`, or leave the other tools out of `tools`"
            begin = marks.token(calls.begin, param, remedy="leave out `strict`" if self.allowed is None else chosen)
            return made(param, grammar=calls.grammar, begin_token_id=begin, optional=True)
        return made(param, grammar=calls.grammar, begin_token_id=begin)


ToolMode = Literal["auto", "none", "required"]


def forced_call(choice: str, names: Sequence[str]) -> str | bool:
    """The value of `ReplyRules.forced` that a choice stands for: `auto`, `none`, `required`, or a tool's name.

    Raises:
        ApiError: There is no tool to call.
    """
    if choice in ("auto", "none"):
        return False
    if not names or choice not in ("required", *names):
        expected = f"one of {', '.join(names)}" if names else "tools beside it"
        raise ApiError(400, f"tool_choice: got {choice!r}, expected {expected}", param="tool_choice")
    return choice == "required" or choice


class RuledPrompt(NamedTuple):
    """A prompt, and what the engine is told beside it."""

    token_ids: list[int]
    text: str
    params: SamplingParams
    rules: ReplyRules

    def reader(self, service: Service) -> Reader:
        """Makes a reader of one reply."""
        return Reader(service.replies, self.rules.tools, self.text, parallel=self.rules.parallel)

    async def submit(self, service: Service, call: Call) -> Generations:
        """Hands it to the engine.

        Raises:
            ApiError: The engine refuses it.
        """
        return await service.submit([self.token_ids], self.params, replace(call, form_param=self.rules.param))


def ruled_prompt(
    service: Service, rules: ReplyRules, conversation: Conversation, options: ChatOptions, params: SamplingParams
) -> RuledPrompt:
    """Makes the prompt of a conversation, and makes rules of the engine of those of the reply.

    Args:
        service: The model.
        rules: The rules.
        conversation: Messages as chat templates expect them.
        options: Options of the chat template, which are changed.
        params: The parameters without the rules.

    Raises:
        ApiError: The model has no way to do what is asked, or its template refuses the conversation.
    """
    replies, tokenizer = service.replies, service.engine.tokenizer
    if rules.tools:
        replies.check_tools()
        options["tools"] = list(rules.tools)
    given = options.get("chat_template_kwargs") or {}
    if variables := rules.variables(replies) | given:
        options["chat_template_kwargs"] = variables
    prompt = template_prompt(service, conversation, options)
    token_ids, text = prompt.token_ids, prompt.text
    asked = rules.asks_for_thoughts or given.get("enable_thinking") is True
    thinks = replies.begins_thoughts(text)
    if not thinks and replies.may_begin_thoughts(text, asked=asked, ruled=rules.ruled):
        thinks = True
        token_ids = [*token_ids, *tokenizer.encode(replies.opening, add_special=False, parse_special=True)]
        text += replies.opening
    marks = _Marks(tokenizer)
    changes: dict[str, Any] = {}
    if replies.control_tokens:
        changes["skip_special_tokens"] = False
    if thinks and rules.budget is not None:
        changes["thinking_end_token_id"] = marks.token(replies.closing, rules.budget_param)
        changes["thinking_token_budget"] = rules.budget
    if rules.ruled:
        changes["structured_outputs"] = rules.structured_outputs(replies, marks, thinks=thinks)
    return RuledPrompt(token_ids, text, params.replace(**changes) if changes else params, rules)


class _Marks:
    """The markers of a format as the model's vocabulary has them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def token(self, marker: str, param: str, remedy: str = "leave it out") -> int:
        """The token that a marker is.

        Raises:
            ApiError: It is several tokens.
        """
        ids = self._encoded(marker)
        if len(ids) != 1:
            problem = f"the model's vocabulary has no token for {marker}, behind which a form could begin"
            raise ApiError(400, f"{param}: {problem}; {remedy}", param=param)
        return ids[0]

    def grammar(self, marker: str) -> str:
        """The grammar of a marker: control tokens are no text."""
        ids = self._encoded(marker)
        if len(ids) == 1 and self._tokenizer.is_special(ids[0]):
            return f"<[{ids[0]}]>"
        return json.dumps(marker, ensure_ascii=False)

    def _encoded(self, marker: str) -> list[int]:
        return self._tokenizer.encode(marker, add_special=False, parse_special=True)
