"""Rules of a client for a reply: the reasoning budget, forced tool calls, and structured output."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from rocmforge._rocmforge import Image, SamplingParams, StructuredOutputsParams
from rocmforge.parsing import Markers, UnsupportedCallsError, call_grammar, harmony_answer
from rocmforge.parsing.grammars import fitting_inputs
from rocmforge.parsing.grammars.inputs import InputGrammar
from rocmforge.prompts import AnyPrompt, ChatOptions, Conversation, with_images
from rocmforge.server.answers.generation import Call, Generations
from rocmforge.server.answers.replay import Beginning, Replay
from rocmforge.server.answers.replies import FunctionTool, Reader, ServedFormat
from rocmforge.server.answers.stops import AnswerStops
from rocmforge.server.chat.chats import template_prompt
from rocmforge.server.chat.structured import constraint_fields, lark_rule, made
from rocmforge.server.errors import ApiError
from rocmforge.server.service import Service


@dataclass(frozen=True, slots=True)
class ReplyRules:
    """The rules of one reply. A field that ends in `param` is the API's name of the rule before it, for errors."""

    tools: Sequence[FunctionTool] = ()
    """The functions in its prompt."""
    forced: str | bool = False
    """True if the model must call a tool, or the name of the tool that it must call."""
    allowed: frozenset[str] | None = None
    """Names of the functions that it may call; `None` for all of them."""
    strict: frozenset[str] = frozenset()
    """Names of tools whose arguments must match their schemas."""
    parallel: bool = True
    """If true, allows more than one call."""
    inputs: Mapping[str, InputGrammar] = field(default_factory=dict)
    """The formats of custom tools' inputs, enforced if the model's tool call format allows it."""
    constraint: StructuredOutputsParams | None = None
    """The structured output that the client asks for."""
    constraint_param: str = ""
    thinking: bool | None = None
    """True if reasoning is on; `None` if the client does not say."""
    thinking_param: str = "thinking"
    may_think: bool = False
    """True if the model may decide to reason, even if its template turns reasoning off by default."""
    effort: str | None = None
    effort_param: str = ""
    budget: int | None = None
    """The maximum number of reasoning tokens."""
    budget_param: str = ""

    @property
    def ruled(self) -> bool:
        """True if a grammar may apply to the reply."""
        return self.demanded or bool(self.inputs)

    @property
    def demanded(self) -> bool:
        """True if a grammar must apply to the reply."""
        return self.constraint is not None or bool(self.forced) or bool(self.strict) or self.allowed is not None

    @property
    def several_calls(self) -> bool:
        """True if there may be more than one call. A named tool choice is one call."""
        return self.parallel and not isinstance(self.forced, str)

    @property
    def param(self) -> str:
        """The name of the parameter that requires the grammar."""
        if self.constraint is not None:
            return self.constraint_param
        return "tool_choice" if self.forced or self.allowed is not None else "tools"

    @property
    def asks_for_reasoning(self) -> bool:
        """True if the client requested reasoning."""
        return bool(self.thinking) or self.effort not in (None, "none") or self.budget is not None

    def variables(self, replies: ServedFormat) -> dict[str, Any]:
        """Returns the chat template's variables for the rules. Structured output turns reasoning off by default.

        Raises:
            ApiError: The template has no variable for a rule.
        """
        if self.effort is not None or self.thinking is not None:
            given = {} if self.effort is None else replies.effort(self.effort, self.effort_param)
            if self.thinking is not None:
                given |= replies.thinking(on=self.thinking, param=self.thinking_param)
            return given
        if self.budget is not None:
            return replies.thinking(on=True, param=self.budget_param)
        if not replies.switches_reasoning:
            return {}
        if self.constraint is not None or self.forced:
            return {"enable_thinking": False}
        return {"enable_thinking": True} if self.may_think else {}

    def structured_outputs(
        self, replies: ServedFormat, marks: Markers, *, thinks: bool
    ) -> StructuredOutputsParams | None:
        """Returns the structured output of the reply, after its reasoning; `None` if it may be any text.

        Raises:
            ApiError: The model cannot follow the rules.
        """
        param, inputs = self.param, fitting_inputs(replies.chat, self.inputs)
        if not self.demanded and not (inputs and (not thinks or marks.token(replies.closing) is not None)):
            return None
        begin = _token(marks, replies.closing, param) if thinks else None
        if self.constraint is not None and not self.tools:
            return self._answer(self.constraint, replies, marks, begin)
        names = [self.forced] if isinstance(self.forced, str) else self.allowed
        tools = [tool for tool in self.tools if names is None or tool["function"]["name"] in names]
        if not self.demanded:
            # The grammar exists only for these inputs.
            tools = [tool if tool["function"]["name"] in inputs else _free(tool) for tool in tools]
        try:
            calls = call_grammar(
                replies.chat,
                replies.template,
                tools,
                marks.grammar,
                strict=self.strict,
                parallel=self.several_calls,
                forced=bool(self.forced),
                answer=None if self.constraint is None else lark_rule(self.constraint),
                inputs=inputs,
            )
        except UnsupportedCallsError as error:
            if not self.demanded:
                return None
            raise ApiError(400, f"{param}: {error}", param=param) from error
        if calls.begin and not self.demanded and marks.token(calls.begin) is None:
            return None
        if calls.begin:
            chosen = "choose the mode `required`, or leave the other tools out of `tools`"
            begin = _token(marks, calls.begin, param, remedy="leave out `strict`" if self.allowed is None else chosen)
            return made(param, grammar=calls.grammar, begin_token_id=begin, optional=True)
        return made(param, grammar=calls.grammar, begin_token_id=begin)

    def _answer(
        self, constraint: StructuredOutputsParams, replies: ServedFormat, marks: Markers, begin: int | None
    ) -> StructuredOutputsParams:
        """Returns the structured output of an answer without calls, after reasoning that a token ends."""
        if begin is None:
            return constraint
        if replies.chat.calls == "harmony":
            grammar = harmony_answer(lark_rule(constraint), marks.grammar)
            return made(self.param, grammar=grammar, begin_token_id=begin)
        return made(self.param, **constraint_fields(constraint), begin_token_id=begin)


def _free(tool: FunctionTool) -> FunctionTool:
    """Returns a tool that may be called with any object."""
    return {**tool, "function": {"name": tool["function"]["name"], "parameters": {"type": "object"}}}


ToolMode = Literal["auto", "none", "required"]


def forced_call(choice: str, names: Sequence[str]) -> str | bool:
    """Returns the value of `ReplyRules.forced` for a choice: `auto`, `none`, `required`, or a tool's name.

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
    """A prompt, with the parameters for the engine."""

    token_ids: list[int]
    images: tuple[Image, ...]
    """The images for the placeholders among these."""
    image_tokens: int
    """The number of tokens that images take in addition to their placeholders."""
    text: str
    params: SamplingParams
    rules: ReplyRules
    stops: AnswerStops | None
    replay: Replay
    beginning: Beginning | None
    """The place of the reply, if its turn is kept."""
    num_turns: int
    """The number of replayed turns in the prompt."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens that the engine computes."""
        return len(self.token_ids) + self.image_tokens

    @property
    def plain(self) -> AnyPrompt:
        """The prompt as the engine takes it."""
        return with_images(self.token_ids, self.images)

    def reader(self, service: Service) -> Reader:
        """Makes a parser of one reply, which keeps the reply's tokens."""
        keep = None if self.beginning is None else self.replay.recorder(self.beginning, self.params).add
        several = self.rules.several_calls
        reader = Reader(service.replies, self.rules.tools, self.text, parallel=several, keep=keep, stops=self.stops)
        if self.stops is not None:
            self.stops.readers.append(reader)
        return reader

    async def submit(self, service: Service, call: Call) -> Generations:
        """Submits the prompt to the engine.

        Raises:
            ApiError: The engine refuses the prompt.
        """
        service.metrics.replayed_turns.inc(self.num_turns)
        call = replace(call, constraint_param=self.rules.param, stops=self.stops)
        return await service.submit([self.plain], self.params, call)


def ruled_prompt(
    service: Service,
    rules: ReplyRules,
    conversation: Conversation,
    options: ChatOptions,
    params: SamplingParams,
    call: Call,
) -> RuledPrompt:
    """Makes the prompt of a conversation, and turns the rules of its reply into engine parameters.

    Args:
        service: The model.
        rules: The rules.
        conversation: Messages as chat templates expect them.
        options: Options of the chat template, which the function changes.
        params: The parameters without the rules.
        call: The request; turns kept for its client are replayed as the model wrote them.

    Raises:
        ApiError: The model cannot follow the rules, or its template refuses the conversation.
    """
    replies, tokenizer = service.replies, service.engine.tokenizer
    if rules.tools:
        replies.check_tools()
        options["tools"] = list(rules.tools)
    given = options.get("chat_template_kwargs") or {}
    if variables := rules.variables(replies) | given:
        options["chat_template_kwargs"] = variables
    prompt = template_prompt(service, conversation, options, call.client)
    replay = Replay(service.turns, replies, tokenizer, rules.tools, call)
    token_ids, num_turns = replay.put(prompt.token_ids, conversation)
    if len(token_ids) + prompt.image_tokens > service.engine.max_model_len - 1:
        token_ids, num_turns = prompt.token_ids, 0
    text = prompt.text
    asked = rules.asks_for_reasoning or given.get("enable_thinking") is True
    thinks = replies.begins_reasoning(text)
    if not thinks and replies.may_begin_reasoning(text, asked=asked, ruled=rules.ruled):
        thinks = True
        token_ids = [*token_ids, *tokenizer.encode(replies.opening, add_special=False, parse_special=True)]
        text += replies.opening
    marks = Markers(tokenizer)
    changes: dict[str, Any] = {}
    if replies.control_tokens:
        changes["skip_special_tokens"] = False
    if thinks and rules.budget is not None:
        changes["thinking_end_token_id"] = _token(marks, replies.closing, rules.budget_param)
        changes["thinking_token_budget"] = rules.budget
    if rules.ruled:
        changes["structured_outputs"] = rules.structured_outputs(replies, marks, thinks=thinks)
    stops: AnswerStops | None = None
    if params.stop and replies.has_parts(rules.tools):
        # They match only in the answer, which the engine cannot tell from the rest.

        def reader() -> Reader:
            return Reader(replies, rules.tools, text, parallel=rules.several_calls, stops=stops)

        stops = AnswerStops(params.stop, params.include_stop_str_in_output, params.min_tokens, reader)
        changes["stop"] = None
        if params.output_kind == "final_only":
            changes["output_kind"] = "delta"
    params = params.replace(**changes) if changes else params
    beginning = replay.beginning(token_ids, conversation, options)
    return RuledPrompt(
        token_ids, prompt.images, prompt.image_tokens, text, params, rules, stops, replay, beginning, num_turns
    )


def _token(marks: Markers, marker: str, param: str, remedy: str = "leave it out") -> int:
    """Returns the token of a marker.

    Raises:
        ApiError: The marker is not a single token.
    """
    if (token := marks.token(marker)) is None:
        problem = f"the model's vocabulary has no single token for {marker}, which this parameter needs"
        raise ApiError(400, f"{param}: {problem}; {remedy}", param=param)
    return token
