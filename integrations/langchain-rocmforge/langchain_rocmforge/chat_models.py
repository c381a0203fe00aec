"""`ChatRocmForge`: a chat model of LangChain on one engine of rocmforge."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Self, TypeVar

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.chat_models import (
    BaseChatModel,
    agenerate_from_stream,
    generate_from_stream,
)
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from pydantic import BaseModel, Field, PrivateAttr, model_validator
from rocmforge import AsyncLLM

from langchain_rocmforge.requests import Chat, Reader, messages_of

Result = TypeVar("Result")
SAMPLING = ("temperature", "max_tokens", "top_p", "top_k", "min_p", "repetition_penalty", "seed")


class ChatRocmForge(BaseChatModel):
    """A GGUF model in this process. The constructor loads it.

    All calls, from any thread and event loop, share the engine, which batches them.
    """

    model: str
    """The path of a GGUF file, `hf:OWNER/REPO[:QUANT]` or `ollama:NAME[:TAG]`."""
    engine_options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `rocmforge.AsyncLLM`, such as `max_model_len` and `device`."""
    chat_template: str | None = None
    """Replaces the chat template of the model file."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further variables of the chat template, such as `enable_thinking`."""
    max_tokens: int | None = 1024
    """Maximum generated tokens; `None` goes on until the context is full."""
    temperature: float | None = None
    """This and the next fields are those of `rocmforge.SamplingParams`; by default, the model file's recommendation."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    """Texts that end an answer."""
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further fields of `rocmforge.SamplingParams`."""

    _engine: AsyncLLM = PrivateAttr()
    _chat: Chat = PrivateAttr()
    _loop: "LoopThread" = PrivateAttr()

    @model_validator(mode="after")
    def _load(self) -> Self:
        self._engine = AsyncLLM(self.model, **self.engine_options)
        self._chat = Chat(self._engine, self.chat_template, self.chat_template_kwargs)
        self._loop = LoopThread()
        return self

    def close(self) -> None:
        """Frees the memory of the model; calls that run end early."""
        self._engine.close()
        self._loop.stop()

    @property
    def _llm_type(self) -> str:
        return "rocmforge"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        template = {"chat_template": self.chat_template, "chat_template_kwargs": self.chat_template_kwargs}
        return {"model": self.model, **template, **self._sampling(self.stop, {})}

    def get_token_ids(self, text: str) -> list[int]:
        """Returns the token ids of a text, without special tokens."""
        return self._engine.tokenize(text, add_special=False)

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        strict: bool = False,
        parallel_tool_calls: bool = True,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Offers tools to the model.

        Args:
            tools: Tools in any form that LangChain takes.
            tool_choice: `"auto"` (the default), `"none"`, `"any"` (also `"required"` and `True`), or one tool.
            strict: For forced calls, refuses schemas with keywords that a grammar cannot enforce.
            parallel_tool_calls: For forced calls, allows more than one.
            **kwargs: Further arguments of `invoke`.
        """
        made = [convert_to_openai_tool(tool) for tool in tools]
        named = tool_choice["function"]["name"] if isinstance(tool_choice, dict) else tool_choice
        names = [tool["function"]["name"] for tool in made]
        if isinstance(named, str) and named not in {"auto", "none", "any", "required", *names}:
            raise ValueError(f"tool_choice: got {named!r}, expected auto, none, any or one of {', '.join(names)}")
        options = {"tool_choice": named, "strict": strict, "parallel_tool_calls": parallel_tool_calls}
        return self.bind(tools=made, **options, **kwargs)

    def with_structured_output(
        self, schema: dict[str, Any] | type, *, include_raw: bool = False, method: str = "json_schema", **kwargs: Any
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """Restricts answers to a schema, and parses them.

        Args:
            schema: A Pydantic class, a `TypedDict`, or a JSON schema.
            include_raw: Returns a dictionary of `raw`, `parsed` and `parsing_error`.
            method: `json_schema` restricts the text itself; `function_calling` forces a tool call.
            **kwargs: Further arguments of the method.
        """
        if method == "function_calling":
            return super().with_structured_output(schema, include_raw=include_raw, **kwargs)
        if method != "json_schema" or kwargs:
            given = ", ".join([f"method={method!r}", *kwargs])
            raise ValueError(f"with_structured_output: got {given}, expected method json_schema or function_calling")
        parser: Runnable[Any, Any] = JsonOutputParser()
        if isinstance(schema, type) and issubclass(schema, BaseModel):
            parser = PydanticOutputParser[BaseModel](pydantic_object=schema)
        model = self.bind(json_schema=convert_to_json_schema(schema))
        if not include_raw:
            return model | parser
        parse = RunnableLambda[Any, Any](lambda given: given["raw"]) | parser
        parsed = RunnablePassthrough.assign(parsed=parse, parsing_error=lambda _: None)
        failed = RunnablePassthrough.assign(parsed=lambda _: None)
        return RunnableMap[Any](raw=model) | parsed.with_fallbacks([failed], exception_key="parsing_error")

    def batch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[AIMessage]:
        """Answers inputs together. Threads are not needed: the engine takes all of them at once."""
        return self._loop.run(self.abatch(inputs, config, return_exceptions=return_exceptions, **kwargs))

    def _sampling(self, stop: list[str] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        fields = {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}
        stops = {"stop": found} if (found := stop or self.stop) else {}
        return {"max_tokens": self.max_tokens, **fields, **self.model_kwargs, **stops, **kwargs}

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[ChatGenerationChunk, None]:
        reader = self._reader(stop, kwargs)
        outputs = self._engine.chat(messages_of(messages), reader.params, **reader.options)
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                for chunk in reader.read(output):
                    if run_manager is not None:
                        await run_manager.on_llm_new_token(str(chunk.message.content), chunk=chunk)
                    yield chunk

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        chunks = self._astream(messages, stop, **kwargs)
        try:
            while (chunk := self._loop.run(anext(chunks, None))) is not None:
                if run_manager is not None:
                    run_manager.on_llm_new_token(str(chunk.message.content), chunk=chunk)
                yield chunk
        finally:
            self._loop.run(chunks.aclose())

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages, stop, run_manager, **kwargs))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages, stop, run_manager, **kwargs))

    def _reader(self, stop: list[str] | None, kwargs: dict[str, Any]) -> Reader:
        kwargs = {**kwargs}
        for name in ("ls_structured_output_format", "stream"):
            kwargs.pop(name, None)
        rules = {name: kwargs.pop(name) for name in RULES if name in kwargs}
        return Reader(self._chat, self.model, self._sampling(stop, kwargs), **rules)


RULES = ("tools", "tool_choice", "strict", "parallel_tool_calls", "json_schema")


class LoopThread:
    """An event loop on a thread, for callers that have none."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="ChatRocmForge", daemon=True).start()

    def run(self, work: Awaitable[Result]) -> Result:
        """Waits for what is awaited on the loop; an interrupt, such as Ctrl-C, cancels it."""

        async def awaited() -> Result:
            return await work

        future = asyncio.run_coroutine_threadsafe(awaited(), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Ends the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
