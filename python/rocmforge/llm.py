"""`LLM`: generation of one prompt or many for programs without an event loop, whole or as it comes."""

import time
from collections.abc import Generator, Sequence
from typing import Any

from rocmforge._rocmforge import Engine, Inbox, SamplingParams
from rocmforge.engine import LoadedModel
from rocmforge.errors import EngineDeadError, InvalidRequestError, QueueFullError
from rocmforge.outputs import CompletionOutput, Request, RequestMetrics, RequestOutput
from rocmforge.progress import bar
from rocmforge.prompts import (
    AnyPrompt,
    ContentFormat,
    Conversation,
    Prompt,
    conversation_list,
    params_list,
    plain_prompt,
    priority_list,
    prompt_list,
)

# Between two looks at the progress, and at whether a full queue has room again.
POLL_SECONDS = 0.1


class LLM(LoadedModel):  # noqa: D101 - below
    __doc__ = LoadedModel.__doc__

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached prefixes; `False`, and nothing done, while a request holds blocks."""
        return self._engine.reset_prefix_cache()

    def check_integrity(self) -> None:
        """Checks the invariants of KV cache and scheduler.

        Raises:
            RocmForgeError: One is broken, which is a bug in rocmforge.
        """
        self._engine.check_integrity()

    def generate(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
        use_tqdm: bool | None = None,
        priority: int | Sequence[int] = 0,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Completes prompts, all of them together, and returns their outputs in order.

        All prompts and parameters are checked before the first runs. A request that fails by itself later on (its step
        failed, or its logits were no numbers) ends with finish reason `error` and an `error` text; the others are not
        touched. If the engine is closed meanwhile, what has not finished ends with finish reason `abort`.

        Args:
            prompts: A text, token ids (a list or a numpy array), or a list of either. `{"prompt": text}` and
                `{"prompt_token_ids": ids}` are the same.
            sampling_params: One for all prompts, or one for each; by default `get_default_sampling_params()`.
            progress: Whether to show a bar when stderr is a terminal.
            use_tqdm: The same by vLLM's name.
            priority: Lower runs earlier; one for all prompts, or one for each.
            cache_salt: As for `AsyncLLM.generate`, for all of the prompts.

        Raises:
            InvalidRequestError: A prompt or its parameters cannot be served; the message names it by its index.
            EngineDeadError: The engine was closed before, or it lost its device.
            KeyboardInterrupt: Ctrl-C; nothing is left running.
        """
        items = prompt_list(prompts)
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        texts = [item if isinstance(item, str) else None for item in items]
        return _run(
            self._engine,
            items,
            texts,
            params_list(sampling_params, len(items)),
            cache_salt,
            progress=progress if use_tqdm is None else use_tqdm,
            priorities=priority_list(priority, len(items)),
        )

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
        use_tqdm: bool | None = None,
        cache_salt: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: ContentFormat = "auto",
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation, or a list of them, through the model's chat template.

        What clients write never becomes a control token, whatever it spells and wherever it stands: messages, tools and
        `chat_template_kwargs` with all of their keys. The one exception is a well-known role ("system", "user", ...)
        where a template makes a token of it.

        Args:
            messages: A list of `{"role": ..., "content": ...}`, or a list of such lists.
            sampling_params: One for all conversations, or one for each; by default `get_default_sampling_params()`.
            progress: Whether to show a bar when stderr is a terminal.
            use_tqdm: The same by vLLM's name.
            cache_salt: As for `AsyncLLM.generate`, for all of the conversations.
            add_generation_prompt: Whether the prompt begins the assistant's turn.
            continue_final_message: Whether the prompt ends with the text of the last message, for the model to go on
                with it; needs `add_generation_prompt=False`.
            tools: Functions that the model may call, as JSON schemas.
            chat_template: Replaces the file's template. It is code: take it from nobody that you do not trust.
            chat_template_content_format: `string` joins the text parts of a message's content by newlines, `openai`
                makes a part of content that is a string, `auto` joins parts where the template takes strings only.
            chat_template_kwargs: Further variables of the template, such as `{"enable_thinking": False}`.

        Raises:
            InvalidRequestError: The file has no template, the template refuses the conversation, or a prompt or its
                parameters cannot be served; nothing is left running.
            ModelFileError: The file's template is not understood; pass another as `chat_template`.
            KeyboardInterrupt: Ctrl-C; nothing is left running.
        """
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        encoded = [
            self.tokenizer.encode_chat(
                conversation,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                chat_template=chat_template,
                chat_template_content_format=chat_template_content_format,
                chat_template_kwargs=chat_template_kwargs,
            )
            for conversation in conversation_list(messages)
        ]
        texts = [text for text, _ in encoded]
        ids: list[Prompt] = [ids for _, ids in encoded]
        params = params_list(sampling_params, len(ids))
        return _run(self._engine, ids, texts, params, cache_salt, progress=progress if use_tqdm is None else use_tqdm)

    def stream(
        self, prompt: AnyPrompt, sampling_params: SamplingParams | None = None, *, cache_salt: str | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Yields the outputs of one request as they come; what has come since last time is merged.

        The request starts when the first output is asked for, and that is where a prompt or parameters that cannot be
        served raise. Leaving the loop, Ctrl-C and closing the generator abort it; its blocks are free within one step.

        Args:
            prompt: A text or token ids.
            sampling_params: Its `output_kind` says what each output holds: `delta` for what is new, `cumulative` (the
                default) for all so far. By default `get_default_sampling_params()`.
            cache_salt: As for `AsyncLLM.generate`.

        Raises:
            InvalidRequestError: The prompt or its parameters cannot be served.
        """
        plain = plain_prompt(prompt)
        text = plain if isinstance(plain, str) else None
        params = sampling_params or self.get_default_sampling_params()
        return _stream(self._engine, plain, text, params, cache_salt)

    def stream_chat(
        self,
        messages: Conversation,
        sampling_params: SamplingParams | None = None,
        *,
        cache_salt: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: ContentFormat = "auto",
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> Generator[RequestOutput, None, None]:
        """Answers one conversation as `chat` does, and yields the outputs as `stream` does."""
        text, ids = self.tokenizer.encode_chat(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template=chat_template,
            chat_template_content_format=chat_template_content_format,
            chat_template_kwargs=chat_template_kwargs,
        )
        params = sampling_params or self.get_default_sampling_params()
        return _stream(self._engine, ids, text, params, cache_salt)


def _run(
    engine: Engine,
    prompts: Sequence[Prompt],
    texts: Sequence[str | None],
    params: Sequence[SamplingParams],
    cache_salt: str | None,
    *,
    progress: bool,
    priorities: Sequence[int] | None = None,
) -> list[RequestOutput]:
    """Feeds the engine as its queue has room, and collects the finished requests."""
    prepared = [_prepare(engine, index, prompts, params) for index in range(len(prompts))]
    inbox = engine.inbox()
    running: dict[int, tuple[int, Request]] = {}
    results: dict[int, RequestOutput] = {}
    num_submitted = num_tokens = 0
    started = time.monotonic()
    try:
        with bar("Generating", unit="requests", enabled=progress) as draw:
            while len(results) < len(prompts):
                while num_submitted < len(prompts):
                    at = num_submitted
                    try:
                        request = _submit(
                            inbox, prepared[at], texts[at], params[at], priorities[at] if priorities else 0, cache_salt
                        )
                    except QueueFullError:
                        break
                    except EngineDeadError:
                        if not (running or results) or not engine.was_closed:
                            raise
                        # Closed in the middle: the rest ends as those do that run.
                        results[at] = _aborted(at, texts[at], prepared[at], params[at])
                    else:
                        running[request.id] = (at, request)
                    num_submitted += 1
                for id_ in inbox.wait(POLL_SECONDS):
                    update = inbox.take(id_, raise_errors=False)
                    if update is not None:
                        index, request = running.pop(id_)
                        results[index] = request.output(update)
                        num_tokens += sum(len(sequence.token_ids) for sequence in results[index].outputs)
                speed = (num_tokens + inbox.num_tokens) / (time.monotonic() - started)
                draw(len(results), len(prompts), f"{speed:.0f} tok/s")
    finally:
        inbox.close()
    return [results[index] for index in range(len(prompts))]


def _prepare(engine: Engine, index: int, prompts: Sequence[Prompt], params: Sequence[SamplingParams]) -> list[int]:
    """Token ids of a prompt; an error says which of several it is about."""
    try:
        return engine.prepare(prompts[index], params[index])
    except (InvalidRequestError, TypeError) as error:
        if len(prompts) == 1:
            raise
        raise type(error)(f"prompt {index}: {error}") from error


def _submit(
    inbox: Inbox, prompt: list[int], text: str | None, params: SamplingParams, priority: int, cache_salt: str | None
) -> Request:
    accepted = inbox.submit(prompt, params, priority=priority, cache_salt=cache_salt, final_only=True)
    return Request(accepted, text, params)


def _aborted(index: int, text: str | None, prompt_token_ids: list[int], params: SamplingParams) -> RequestOutput:
    """What a prompt gets that the engine was closed before."""
    logprobs: list[Any] | None = None if params.logprobs is None else []
    outputs = [CompletionOutput(i, "", [], "abort", None, logprobs, None) for i in range(params.n)]
    metrics = RequestMetrics(time.time(), None, None, None, 0, 0)
    return RequestOutput(f"prompt-{index}", text, prompt_token_ids, outputs, True, None, metrics)


def _stream(
    engine: Engine, prompt: Prompt, text: str | None, params: SamplingParams, cache_salt: str | None
) -> Generator[RequestOutput, None, None]:
    """The outputs of one request; `text` is its prompt, where that is known."""
    inbox = engine.inbox()
    try:
        request = Request(inbox.submit(prompt, params, cache_salt=cache_salt), text, params)
        finished = False
        while not finished:
            for ready in inbox.wait(POLL_SECONDS):
                update = inbox.take(ready)
                if update is not None:
                    output = request.output(update)
                    finished = output.finished
                    yield output
    finally:
        inbox.close()
