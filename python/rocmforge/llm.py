"""`LLM`: generation for programs without an event loop, for one prompt or many, complete or streamed."""

from collections.abc import Generator, Sequence
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from rocmforge._rocmforge import PoolingParams, SamplingParams
from rocmforge.engine import LoadedModel
from rocmforge.outputs import RequestOutput, RequestOutputs
from rocmforge.prompts import (
    AnyPrompt,
    ChatOptions,
    Conversation,
    conversation_list,
    params_list,
    prompt_list,
)
from rocmforge.requests.batch import Wanted, generate, serve
from rocmforge.requests.embedding import PoolingName, embed, embeddings_wanted
from rocmforge.requests.options import RequestOptions, options_list


class LLM(LoadedModel):  # noqa: D101 - below
    __doc__ = LoadedModel.__doc__

    def reset_prefix_cache(self) -> bool:
        """Drops all cached prefixes. While a request holds blocks, it does nothing and returns false."""
        return self._engine.reset_prefix_cache()

    def check_integrity(self) -> None:
        """Checks the invariants of KV cache and scheduler.

        Raises:
            RocmForgeError: An invariant is violated, which is a bug in rocmforge.
        """
        self._engine.check_integrity()

    def waiting_reasons(self) -> dict[str, str]:
        """Returns why each waiting request waits, by request id; see `AsyncLLM.waiting_reasons` for the reasons."""
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
    ) -> RequestOutputs:
        """Completes prompts as one batch, and returns their outputs in order.

        All prompts and parameters are checked before the first one runs. A request that fails later ends with finish
        reason `error` and an `error` text, for example after a failed step or NaN logits. Other requests are not
        affected. If the engine is closed meanwhile, unfinished requests end with finish reason `abort`.

        Args:
            prompts: A text, token ids (a list or a numpy array), or a list of either. Also `{"prompt": text}` or
                `{"prompt_token_ids": ids}`, as in vLLM. Such a dict may have `"images"`, one for each placeholder.
            sampling_params: One for all prompts, or one for each; by default `get_default_sampling_params()`.
            progress: True to show a bar when stderr is a terminal.
            use_tqdm: vLLM's name for `progress`.
            priority: Lower runs earlier; one for all prompts, or one for each.
            cache_salt: As for `AsyncLLM.generate`, for all of the prompts.
            client: As for `AsyncLLM.generate`, for all of the prompts.

        Raises:
            InvalidRequestError: A prompt or its parameters cannot be served; the message names it by its index.
            EngineDeadError: The engine was closed before, or it lost its device.
            KeyboardInterrupt: Ctrl-C was pressed; all requests were aborted.
        """
        wanted = self._completions(
            prompts, sampling_params, priority, RequestOptions(cache_salt=cache_salt, client=client)
        )
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
    ) -> RequestOutputs:
        """Answers one conversation, or a list of them, through the model's chat template.

        Text from clients never becomes a control token. This covers messages, tools and `chat_template_kwargs`,
        including their keys. The one exception is a well-known role ("system", "user", ...) from which a template
        makes a token.

        `output.outputs[0].message` is the answer as content, reasoning and tool calls.

        Args:
            messages: A list of `{"role": ..., "content": ...}`, or a list of such lists. The content is a text or a
                list of parts: `{"type": "text", "text": ...}`, `{"type": "image", "image": ...}` or OpenAI's
                `image_url` with a `data:` URL. `rocmforge.images.as_image` lists what an image may be.
            sampling_params: One for all conversations, or one for each; by default `get_default_sampling_params()`.
            progress: True to show a bar when stderr is a terminal.
            use_tqdm: vLLM's name for `progress`.
            cache_salt: As for `AsyncLLM.generate`, for all of the conversations.
            client: As for `AsyncLLM.generate`, for all of the conversations.
            **options: Options for the chat template; see `rocmforge.prompts.ChatOptions`.

        Raises:
            InvalidRequestError: The file has no chat template, or the template refuses the conversation. There are
                tools, and the template has no call format. Or a prompt or its parameters cannot be served. Nothing has
                run.
            ModelFileError: The file's chat template is not supported; pass another one as `chat_template`.
            KeyboardInterrupt: Ctrl-C was pressed; all requests were aborted.
        """
        wanted = self._answers(messages, sampling_params, options, RequestOptions(cache_salt=cache_salt, client=client))
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
        """Yields the outputs of prompts as they come. Outputs of a prompt that were not yet taken are merged.

        All requests start together when the first output is requested. Errors in prompts or parameters are raised
        there. Leaving the loop, Ctrl-C and closing the generator abort unfinished requests; their KV blocks are free
        within one step.

        Args:
            prompts: As for `generate`. With several prompts, the `index` of an output names its prompt.
            sampling_params: One for all prompts, or one for each; by default `get_default_sampling_params()`. With the
                `output_kind` `delta`, an output contains the new tokens; with `cumulative` (the default), all so far.
            priority: As for `generate`.
            cache_salt: As for `AsyncLLM.generate`, for all of the prompts.
            client: As for `AsyncLLM.generate`, for all of the prompts.

        Raises:
            InvalidRequestError: A prompt or its parameters cannot be served.
            RocmForgeError: The request of a single prompt failed while it ran. With several prompts, a failed request
                ends with finish reason `error`, as in `generate`, and the others continue.
            EngineDeadError: The engine was closed before, or it lost its device.
        """
        # Types are checked here, not in the generator, so that the error points at the call.
        wanted = self._completions(
            prompts, sampling_params, priority, RequestOptions(cache_salt=cache_salt, client=client)
        )
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
            self._engine,
            self._answers(messages, sampling_params, options, RequestOptions(cache_salt=cache_salt, client=client)),
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
        """Returns a vector for each prompt, in order: float32 of shape `[len(prompts), embedding_size]`.

        The vectors are computed from the model's hidden states after its last norm. A model with bidirectional
        attention, such as BERT, can only embed. Each of its prompts must fit into one step (`max_num_batched_tokens`).
        Embedding models are trained for one pooling, and often for instructions in the prompt: see the model's page.

        Args:
            prompts: As for `generate`. A text gets the special tokens that the file requires at its beginning and its
                end; token ids are used unchanged.
            pooling: Which hidden states become the vector. `last` is that of the last token, `cls` that of the first
                token, and `mean` the mean over all tokens. `rank` returns one number from a ranking model, never
                normalised; see `score`. `auto` is the file's pooling (`<architecture>.pooling_type`). If the file has
                none, it is `last`, or `cls` with bidirectional attention.
            normalize: True to divide each vector by its length, so that the dot product of two vectors is their cosine.
            progress: As for `generate`.
            use_tqdm: vLLM's name for `progress`.
            priority: As for `generate`.
            cache_salt: As for `AsyncLLM.generate`, for all of the prompts. Only the pooling `last` uses the prefix
                cache, which keeps no hidden states.
            client: As for `AsyncLLM.generate`, for all of the prompts.

        Raises:
            InvalidRequestError: A prompt cannot be served; the message names it by its index. Nothing has run.
            RocmForgeError: A request failed while it ran.
            EngineDeadError: The engine was closed, or it lost its device.
            KeyboardInterrupt: Ctrl-C was pressed; all requests were aborted.
        """
        params = PoolingParams(pooling, normalize)
        wanted = embeddings_wanted(prompts, params, priority, RequestOptions(cache_salt=cache_salt, client=client))
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
        """Returns the relevance of each document to a query, from 0 to 1: float32 of shape `[len(documents)]`.

        The model must be a ranking model (reranker).

        Args:
            query: A question.
            documents: Texts that may answer the question.
            progress: As for `generate`.
            use_tqdm: vLLM's name for `progress`.
            priority: As for `generate`.
            cache_salt: As for `AsyncLLM.generate`, for all of the documents. The part of the prompts before the
                document is computed once.
            client: As for `AsyncLLM.generate`, for all of the documents.

        Raises:
            InvalidRequestError: The model cannot rank, or a document is too long; the message names it by its index.
            RocmForgeError: A request failed while it ran.
            EngineDeadError: The engine was closed, or it lost its device.
            KeyboardInterrupt: Ctrl-C was pressed; all requests were aborted.
        """
        prompts = self.rank_prompts(query, documents)
        params = PoolingParams("rank", False)
        wanted = embeddings_wanted(prompts, params, priority, RequestOptions(cache_salt=cache_salt, client=client))
        return embed(self._engine, wanted, progress=progress if use_tqdm is None else use_tqdm)[:, 0]

    def _params(
        self, given: SamplingParams | Sequence[SamplingParams] | None
    ) -> SamplingParams | Sequence[SamplingParams]:
        return self.get_default_sampling_params() if given is None else given

    def _completions(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: int | Sequence[int],
        options: RequestOptions,
    ) -> list[Wanted[SamplingParams]]:
        items = prompt_list(prompts)
        params = params_list(self._params(sampling_params), len(items))
        of_each = options_list(options, priority, len(items))
        return [
            Wanted(index, item.content, item.text, params[index], of_each[index], images=item.images)
            for index, item in enumerate(items)
        ]

    def _answers(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        chat_options: ChatOptions,
        options: RequestOptions,
    ) -> list[Wanted[SamplingParams]]:
        self._reply_formats.check_tools(chat_options)
        encoded = [self._encode_chat(one, chat_options) for one in conversation_list(messages)]
        params = params_list(self._params(sampling_params), len(encoded))
        return [
            Wanted(
                index,
                prompt.token_ids,
                prompt.text,
                params[index],
                options,
                self._reply_formats.reader(chat_options, prompt.text),
                images,
            )
            for index, (prompt, images) in enumerate(encoded)
        ]
