"""`RocmForgeLM`: log-likelihoods and generation for lm-eval on one engine of rocmforge."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from lm_eval.api.instance import Instance  # type: ignore[import-untyped]
from lm_eval.api.model import TemplateLM  # type: ignore[import-untyped]
from lm_eval.api.registry import register_model  # type: ignore[import-untyped]
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs  # type: ignore[import-untyped]
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window  # type: ignore[import-untyped]
from rocmforge import LLM, InvalidRequestError, RequestOutput, RocmForgeError, SamplingParams
from tqdm import tqdm

log = logging.getLogger(__name__)
Pair = tuple[tuple[str, str] | None, list[int], list[int]]
"""Context and continuation: their texts, the key of lm-eval's cache, and their token ids."""


@register_model("rocmforge")  # type: ignore[untyped-decorator]
class RocmForgeLM(TemplateLM):  # type: ignore[misc]
    """A GGUF model that rocmforge runs in this process.

    Args:
        pretrained: The path of a GGUF file, or a name that rocmforge understands.
        max_gen_toks: Maximum generated tokens of a request that has no limit.
        prefix_token_id: The token before a text without context; by default BOS, else an end token.
        batch_size: Without effect: the engine batches all requests.
        max_batch_size: Without effect, as `batch_size`.
        **options: Arguments of `rocmforge.LLM`. Those that are `None` count as absent: lm-eval always gives a `device`.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        max_gen_toks: int = 256,
        prefix_token_id: int | None = None,
        batch_size: int | str | None = None,  # noqa: ARG002
        max_batch_size: int | None = None,  # noqa: ARG002
        **options: Any,
    ) -> None:
        super().__init__()
        self._llm = LLM(pretrained, **{name: value for name, value in options.items() if value is not None})
        self._max_gen_toks = max_gen_toks
        self._prefix_token_id = prefix_token_id

    @property
    def max_length(self) -> int:
        """The longest prompt, in tokens; a request has room for one more."""
        return self._llm.max_model_len - 1

    @property
    def eot_token_id(self) -> int:
        """The first end token."""
        return self._llm.tokenizer.eos_token_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without context."""
        tokenizer = self._llm.tokenizer
        choices = (self._prefix_token_id, tokenizer.bos_token_id, self.eot_token_id)
        return next(token for token in choices if token is not None)

    @property
    def tokenizer_name(self) -> str:
        """The name of the model file, for lm-eval's cache of requests."""
        return self._llm.model.name

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Returns the chat template of the file, if one is wanted."""
        return self._llm.tokenizer.chat_template if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Returns the text of a conversation; without a generation prompt it ends within the last message."""
        return self._llm.apply_chat_template(
            chat_history,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Returns the token ids of a text, with one BOS token if the file wants one."""
        ids = self._llm.tokenize(string, add_special=add_special_tokens is not False, parse_special=True)
        # Text of a chat template may begin with the token itself.
        bos = self._llm.tokenizer.bos_token_id
        return ids[1:] if add_special_tokens is None and ids[:2] == [bos, bos] else ids

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Returns the log-likelihood of whole texts, in windows of the longest prompt."""
        pairs: list[Pair] = []
        owners: list[int] = []
        for index, request in enumerate(requests):
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0], add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - 1,
                context_len=1,
            )
            for context, continuation in map(make_disjoint_window, windows):
                pairs.append((None, context, continuation))
                owners.append(index)
        totals = [0.0] * len(requests)
        for owner, (total, _) in zip(owners, self._loglikelihood_tokens(pairs, disable_tqdm), strict=True):
            totals[owner] += total
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Returns the text that the model generates after each context."""
        prompts, params = [], []
        for request in requests:
            context, given = request.args
            settings = dict(normalize_gen_kwargs(given, self._max_gen_toks))
            if not settings.pop("do_sample", False):
                # A task that says nothing of sampling wants the most likely tokens.
                settings["temperature"] = 0.0
            max_tokens = settings.pop("max_gen_toks")
            stop = [text for text in handle_stop_sequences(settings.pop("until", None), eos=None) if text]
            params.append(SamplingParams(max_tokens=max_tokens, stop=stop, output_kind="final_only", **settings))
            prompts.append(self._shortened(self.tok_encode(context), self.max_length + 1 - max_tokens))
        texts = [""] * len(requests)
        for output in self._outputs(prompts, params, "Generating", disable_tqdm=disable_tqdm):
            texts[output.index] = output.outputs[0].text
            self.cache_hook.add_partial("generate_until", requests[output.index].args, texts[output.index])
        return texts

    def _loglikelihood_tokens(
        self, requests: list[Pair], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        prompts = []
        for _texts, context, continuation in requests:
            if len(continuation) >= self.max_length:
                raise InvalidRequestError(
                    f"continuation: got {len(continuation)} tokens, expected fewer than {self.max_length}; "
                    "load with a larger max_model_len"
                )
            prompts.append(self._shortened(context + continuation, self.max_length))
        params = [SamplingParams(max_tokens=1, prompt_logprobs=0, output_kind="final_only")] * len(prompts)
        results = [(0.0, True)] * len(prompts)
        for output in self._outputs(prompts, params, "Log-likelihoods", disable_tqdm=disable_tqdm):
            texts, _context, continuation = requests[output.index]
            results[output.index] = score(output, len(continuation))
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, results[output.index])
        return results

    def _shortened(self, ids: list[int], length: int) -> list[int]:
        if len(ids) <= length:
            return ids
        if length < 1:
            raise InvalidRequestError(
                f"max_gen_toks: got a value that leaves no room for a prompt, expected less than {self.max_length + 1}"
            )
        log.warning("prompt: got %d tokens, expected at most %d; the beginning was cut off", len(ids), length)
        return ids[-length:]

    def _outputs(
        self, prompts: list[list[int]], params: Sequence[SamplingParams], title: str, *, disable_tqdm: bool
    ) -> Iterator[RequestOutput]:
        """Yields the outputs in the order in which they are done."""
        if not prompts:
            return
        outputs = self._llm.stream(prompts, params)
        for output in tqdm(outputs, total=len(prompts), desc=title, disable=disable_tqdm):
            if output.outputs[0].error is not None:
                raise RocmForgeError(output.outputs[0].error)
            yield output


def score(output: RequestOutput, length: int) -> tuple[float, bool]:
    """Returns the log-likelihood of the last tokens of a prompt, and whether each is the most likely one."""
    total, greedy = 0.0, True
    start = len(output.prompt_token_ids) - length
    logprobs = output.prompt_logprobs or []
    for token, entry in zip(output.prompt_token_ids[start:], logprobs[start:], strict=True):
        if entry is not None:
            total += entry[token].logprob
            greedy = greedy and entry[token].rank == 1
    return total, greedy
