"""`LLM`: generation of one prompt or many for programs without an event loop, whole or as it comes."""

import time
from collections.abc import Generator, Sequence
from typing import Any

from rocmforge._rocmforge import Engine, Inbox, SamplingParams
from rocmforge.engine import LoadedModel
from rocmforge.errors import QueueFullError
from rocmforge.outputs import Request, RequestOutput
from rocmforge.progress import bar
from rocmforge.prompts import Conversation, Prompt, conversation_list, params_list, prompt_list

# Between two looks at the progress, and at whether a full queue has room again.
POLL_SECONDS = 0.1


class LLM(LoadedModel):  # noqa: D101 - below
    __doc__ = LoadedModel.__doc__

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Completes prompts, all of them together, and returns their outputs in order.

        Args:
            prompts: A text, token ids (a list or a numpy array), or a list of either.
            sampling_params: One for all prompts, or one for each; by default `get_default_sampling_params()`.
            progress: Whether to show a bar when stderr is a terminal.
            cache_salt: As for `AsyncLLM.generate`, for all of the prompts.

        Raises:
            InvalidRequestError: A prompt or its parameters cannot be served; nothing is left running.
            KeyboardInterrupt: Ctrl-C; nothing is left running.
        """
        items = prompt_list(prompts)
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        texts = [item if isinstance(item, str) else None for item in items]
        params = params_list(sampling_params, len(items))
        return _run(self._engine, items, texts, params, cache_salt, progress=progress)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
        cache_salt: str | None = None,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        **template_vars: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation, or a list of them, through the model's chat template.

        What users write never becomes a control token, whatever it spells. `chat_template` replaces the file's
        template; `template_vars` are further variables for it. The rest is as for `generate`.
        """
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        encoded = [
            self.tokenizer.encode_chat(
                conversation,
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                chat_template=chat_template,
                **template_vars,
            )
            for conversation in conversation_list(messages)
        ]
        texts = [text for text, _ in encoded]
        ids: list[Prompt] = [ids for _, ids in encoded]
        params = params_list(sampling_params, len(ids))
        return _run(self._engine, ids, texts, params, cache_salt, progress=progress)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, cache_salt: str | None = None
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
        text = prompt if isinstance(prompt, str) else None
        params = sampling_params or self.get_default_sampling_params()
        return _stream(self._engine, prompt, text, params, cache_salt)

    def stream_chat(
        self,
        messages: Conversation,
        sampling_params: SamplingParams | None = None,
        *,
        cache_salt: str | None = None,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        **template_vars: Any,
    ) -> Generator[RequestOutput, None, None]:
        """Answers one conversation as `chat` does, and yields the outputs as `stream` does."""
        text, ids = self.tokenizer.encode_chat(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            chat_template=chat_template,
            **template_vars,
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
) -> list[RequestOutput]:
    """Feeds the engine as its queue has room, and collects the finished requests."""
    inbox = engine.inbox()
    running: dict[int, tuple[int, Request]] = {}
    results: dict[int, RequestOutput] = {}
    num_submitted = num_tokens = 0
    started = time.monotonic()
    try:
        with bar("Generating", unit="requests", enabled=progress) as draw:
            while len(results) < len(prompts):
                while num_submitted < len(prompts):
                    try:
                        request = _submit(
                            inbox, prompts[num_submitted], texts[num_submitted], params[num_submitted], cache_salt
                        )
                    except QueueFullError:
                        break
                    running[request.id] = (num_submitted, request)
                    num_submitted += 1
                for id_ in inbox.wait(POLL_SECONDS):
                    update = inbox.take(id_)
                    if update is not None:
                        index, request = running.pop(id_)
                        results[index] = request.output(update)
                        num_tokens += sum(len(sequence.token_ids) for sequence in results[index].outputs)
                speed = (num_tokens + inbox.num_tokens) / (time.monotonic() - started)
                draw(len(results), len(prompts), f"{speed:.0f} tok/s")
    finally:
        inbox.close()
    return [results[index] for index in range(len(prompts))]


def _submit(inbox: Inbox, prompt: Prompt, text: str | None, params: SamplingParams, cache_salt: str | None) -> Request:
    id_, request_id, prompt_token_ids = inbox.submit(prompt, params, cache_salt=cache_salt, final_only=True)
    return Request(id_, request_id, text, prompt_token_ids)


def _stream(
    engine: Engine, prompt: Prompt, text: str | None, params: SamplingParams, cache_salt: str | None
) -> Generator[RequestOutput, None, None]:
    """The outputs of one request; `text` is its prompt, where that is known."""
    inbox = engine.inbox()
    try:
        id_, request_id, prompt_token_ids = inbox.submit(prompt, params, cache_salt=cache_salt)
        request = Request(id_, request_id, text, prompt_token_ids)
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
