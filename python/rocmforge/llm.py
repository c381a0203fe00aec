"""`LLM`: generation of one prompt or many for programs without an event loop, whole or as it comes."""

from collections.abc import Generator, Sequence
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from rocmforge._rocmforge import PoolingParams, SamplingParams
from rocmforge.batch import Wanted, generate, serve
from rocmforge.embedding import PoolingName, embed, embeddings_wanted
from rocmforge.engine import LoadedModel
from rocmforge.outputs import RequestOutput
from rocmforge.prompts import (
    AnyPrompt,
    ChatOptions,
    Conversation,
    conversation_list,
    params_list,
    priority_list,
    prompt_list,
)


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

    def waiting_reasons(self) -> dict[str, str]:
        """Says what each waiting request waits for, by the requests' names; answered between two steps.

        It is one of `sequence_slots` (`max_num_seqs` run), `kv_blocks` (too few are free), `step_tokens` (others took
        `max_num_batched_tokens`), `partial_prefills` (as many prompts as may be are half-way), `shared_prefix` (another
        request computes the beginning of its prompt), `client_share` (it is the turn of other clients) and `priority`.
        """
        return dict(self._engine.waiting())

    def generate(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
        use_tqdm: bool | None = None,
        priority: int | Sequence[int] = 0,
        cache_salt: str | None = None,
        client: str | None = None,
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
            client: As for `AsyncLLM.generate`, for all of the prompts.

        Raises:
            InvalidRequestError: A prompt or its parameters cannot be served; the message names it by its index.
            EngineDeadError: The engine was closed before, or it lost its device.
            KeyboardInterrupt: Ctrl-C; nothing is left running.
        """
        wanted = self._completions(prompts, sampling_params, priority=priority, cache_salt=cache_salt, client=client)
        return generate(self._engine, wanted, progress=progress if use_tqdm is None else use_tqdm)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
        use_tqdm: bool | None = None,
        cache_salt: str | None = None,
        client: str | None = None,
        **options: Unpack[ChatOptions],
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
            client: As for `AsyncLLM.generate`, for all of the conversations.
            **options: How a conversation becomes a prompt; see `rocmforge.prompts.ChatOptions`.

        Raises:
            InvalidRequestError: The file has no template, the template refuses the conversation, or a prompt or its
                parameters cannot be served; nothing is left running.
            ModelFileError: The file's template is not understood; pass another as `chat_template`.
            KeyboardInterrupt: Ctrl-C; nothing is left running.
        """
        wanted = self._answers(messages, sampling_params, options, cache_salt=cache_salt, client=client)
        return generate(self._engine, wanted, progress=progress if use_tqdm is None else use_tqdm)

    def stream(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        cache_salt: str | None = None,
        client: str | None = None,
    ) -> Generator[RequestOutput, None, None]:
        """Yields the outputs of prompts as they come; what has come for one of them since last time is merged.

        The requests start when the first output is asked for, all of them together, and that is where prompts or
        parameters that cannot be served raise. Leaving the loop, Ctrl-C and closing the generator abort what has not
        finished; its blocks are free within one step.

        Args:
            prompts: As for `generate`. With several of them an output says by its `index` which one it is of.
            sampling_params: One for all prompts, or one for each; their `output_kind` says what each output holds:
                `delta` for what is new, `cumulative` (the default) for all so far. By default
                `get_default_sampling_params()`.
            priority: As for `generate`.
            cache_salt: As for `AsyncLLM.generate`, for all of the prompts.
            client: As for `AsyncLLM.generate`, for all of the prompts.

        Raises:
            InvalidRequestError: A prompt or its parameters cannot be served.
            RocmForgeError: The request of a single prompt failed while it ran. One of several ends with finish reason
                `error`, as in `generate`, and the others go on.
            EngineDeadError: The engine was closed before, or it lost its device.
        """
        # Here and not in the generator: that a prompt is of a wrong type is said where the call stands.
        wanted = self._completions(prompts, sampling_params, priority=priority, cache_salt=cache_salt, client=client)
        return serve(self._engine, wanted)

    def stream_chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        cache_salt: str | None = None,
        client: str | None = None,
        **options: Unpack[ChatOptions],
    ) -> Generator[RequestOutput, None, None]:
        """Answers one conversation, or a list of them, as `chat` does, and yields the outputs as `stream` does."""
        return serve(
            self._engine, self._answers(messages, sampling_params, options, cache_salt=cache_salt, client=client)
        )

    def embed(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        *,
        pooling: PoolingName = "auto",
        normalize: bool = True,
        progress: bool = True,
        use_tqdm: bool | None = None,
        priority: int | Sequence[int] = 0,
        cache_salt: str | None = None,
        client: str | None = None,
    ) -> NDArray[np.float32]:
        """Makes a vector of each prompt, all of them together: `[len(prompts), embedding_size]`, in order.

        The vectors are made of the model's hidden states after its last norm. A model that attends in both directions
        (BERT and its relatives) does nothing else: it refuses to generate, and a prompt of it has to fit into a step
        (`max_num_batched_tokens`). An embedding model is trained for one
        pooling, and for instructions in the prompt: its makers say which.

        Args:
            prompts: As for `generate`. A text is given the special tokens that the file wants at its beginning and its
                end; token ids are taken as they are.
            pooling: `last` takes the last token's hidden state, `mean` the mean of all tokens', `cls` the first one's,
                and `auto` does what the file says (`<architecture>.pooling_type`), or, where it says nothing, `last`,
                in a model that attends in both directions `cls`.
                With `rank` a model that ranks gives one number, which is not normalised; see `score`.
            normalize: Whether each vector is divided by its length, so that a product of two is their cosine.
            progress: As for `generate`.
            use_tqdm: The same by vLLM's name.
            priority: As for `generate`.
            cache_salt: As for `AsyncLLM.generate`, for all of the prompts. The prefix cache serves `last` alone: it
                keeps no hidden states.
            client: As for `AsyncLLM.generate`, for all of the prompts.

        Raises:
            InvalidRequestError: A prompt cannot be served; the message names it by its index. Nothing has run.
            RocmForgeError: A request failed while it ran.
            EngineDeadError: The engine was closed, or it lost its device.
            KeyboardInterrupt: Ctrl-C; nothing is left running.
        """
        params = PoolingParams(pooling, normalize)
        wanted = embeddings_wanted(prompts, params, priority=priority, cache_salt=cache_salt, client=client)
        return embed(self._engine, wanted, progress=progress if use_tqdm is None else use_tqdm)

    def score(
        self,
        query: str,
        documents: Sequence[str],
        *,
        progress: bool = True,
        use_tqdm: bool | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        client: str | None = None,
    ) -> NDArray[np.float32]:
        """Says how relevant each document is to a query, from 0 to 1, by a model that ranks.

        Args:
            query: A question.
            documents: Texts that may answer it.
            progress: As for `generate`.
            use_tqdm: The same by vLLM's name.
            priority: As for `generate`.
            cache_salt: As for `AsyncLLM.generate`, for all of the documents. What comes before the document in the
                prompts is computed once.
            client: As for `AsyncLLM.generate`, for all of the documents.

        Raises:
            InvalidRequestError: The model does not rank, or a document is too long; the message names it by its index.
            RocmForgeError: A request failed while it ran.
            EngineDeadError: The engine was closed, or it lost its device.
            KeyboardInterrupt: Ctrl-C; nothing is left running.
        """
        prompts = self.rank_prompts(query, documents)
        params = PoolingParams("rank", False)
        wanted = embeddings_wanted(prompts, params, priority=priority, cache_salt=cache_salt, client=client)
        return embed(self._engine, wanted, progress=progress if use_tqdm is None else use_tqdm)[:, 0]

    def _params(
        self, given: SamplingParams | Sequence[SamplingParams] | None
    ) -> SamplingParams | Sequence[SamplingParams]:
        return self.get_default_sampling_params() if given is None else given

    def _completions(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        *,
        priority: int | Sequence[int],
        cache_salt: str | None,
        client: str | None,
    ) -> list[Wanted[SamplingParams]]:
        items = prompt_list(prompts)
        params = params_list(self._params(sampling_params), len(items))
        priorities = priority_list(priority, len(items))
        return [
            Wanted(
                index,
                item,
                item if isinstance(item, str) else None,
                params[index],
                priorities[index],
                cache_salt,
                client,
            )
            for index, item in enumerate(items)
        ]

    def _answers(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        options: ChatOptions,
        *,
        cache_salt: str | None,
        client: str | None,
    ) -> list[Wanted[SamplingParams]]:
        encoded = [self.tokenizer.encode_chat(one, **options) for one in conversation_list(messages)]
        params = params_list(self._params(sampling_params), len(encoded))
        return [
            Wanted(index, prompt.token_ids, prompt.text, params[index], 0, cache_salt, client)
            for index, prompt in enumerate(encoded)
        ]
