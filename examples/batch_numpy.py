"""Generates from a matrix of token ids and collects the results in numpy arrays.

python examples/batch_numpy.py model.gguf
"""

import sys

import numpy as np
from rocmforge import LLM, SamplingParams


def main(model: str) -> None:
    with LLM(model, seed=0) as llm:
        # Eight prompts of 16 tokens that share their first half: it is computed once.
        rng = np.random.default_rng(0)
        prompts = rng.integers(0, llm.tokenizer.vocab_size, size=(8, 16), dtype=np.int32)
        prompts[:, :8] = prompts[0, :8]

        params = [SamplingParams(max_tokens=24, seed=i, ignore_eos=True, logprobs=0) for i in range(len(prompts))]
        outputs = llm.generate(prompts, params)

        ids = np.array([output.outputs[0].token_ids for output in outputs])
        mean_logprob = np.array([output.outputs[0].cumulative_logprob for output in outputs]) / ids.shape[1]
        for prompt, row, logprob in zip(prompts, ids, mean_logprob, strict=True):
            print(f"{logprob:7.3f}  {llm.detokenize(np.concatenate([prompt, row]))!r}")

        # Of a whole prompt, every position's logits at once: the model's own ranking of each next token.
        logits = llm.prompt_logits(prompts[0])
        ranks = (logits[:-1] > np.take_along_axis(logits[:-1], prompts[0, 1:, None], axis=1)).sum(axis=1)
        print(f"logits {logits.shape} {logits.dtype}; median rank of the random tokens: {np.median(ranks):.0f}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} MODEL.gguf")
    main(sys.argv[1])
