"""Sorts reviews by how well a model thinks "positive" goes on from them, in one batch, with numpy.

python examples/batch_numpy.py model.gguf
"""

import sys

import numpy as np
from rocmforge import LLM, SamplingParams

REVIEWS = [
    "I loved every minute of it. What a wonderful film!",
    "A waste of two hours. The plot makes no sense at all.",
    "The acting is superb and the music is beautiful.",
    "Dull, slow and far too long. I fell asleep.",
    "My whole family laughed. We will watch it again.",
    "The worst film of the year. Do not go.",
    "A touching story, told with great warmth.",
    "I want my money back.",
]
LABELS = [" positive", " negative"]


def main(model: str) -> None:
    with LLM(model) as llm:
        labels = [llm.tokenize(label, add_special=False) for label in LABELS]
        questions = [llm.tokenize(f'Review: "{review}"\nThe review is') for review in REVIEWS]
        # Every review with every label; what the two prompts of a review share is computed once.
        prompts = [np.array(question + label) for question in questions for label in labels]
        outputs = llm.generate(prompts, SamplingParams(max_tokens=1, prompt_logprobs=0))

        # Log-probabilities of the labels' tokens, summed: a matrix of reviews by labels.
        scores = np.empty((len(REVIEWS), len(LABELS)))
        for index, output in enumerate(outputs):
            row, column = divmod(index, len(LABELS))
            positions = list(zip(output.prompt_token_ids, output.prompt_logprobs, strict=True))
            scores[row, column] = sum(entry[token].logprob for token, entry in positions[-len(labels[column]) :])
        # A small model prefers one label whatever it reads: what counts is the difference from its mean.
        margin = scores[:, 0] - scores[:, 1]
        margin -= margin.mean()
        for index in np.argsort(-margin):
            print(f"{margin[index]:+6.2f}  {REVIEWS[index]}")

        # The logits of every position of a prompt come at once: here they rank each token of a text as the model would.
        ids = np.array(questions[0])
        logits = llm.prompt_logits(ids)
        ranks = 1 + (logits[:-1] > np.take_along_axis(logits[:-1], ids[1:, None], axis=1)).sum(axis=1)
        print(f"logits {logits.shape} {logits.dtype}; median rank of the first review's tokens: {np.median(ranks):.0f}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} MODEL.gguf")
    main(sys.argv[1])
