"""Completes many prompts with Ray Data: each engine takes batches of them, on whatever machine of the cluster it is.

python examples/ray_data.py model.gguf prompts.jsonl completions --engines 2

Each line of the input is a JSON object with a "prompt"; the files in the folder `completions` have a "completion", too.
"""

import argparse

import numpy as np
import ray
from rocmforge import LLM, SamplingParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=32)
# An engine computes as many prompts at once as it can; more keep it busy until the next batch is there.
BATCH = 512


class Completer:
    """An engine, loaded once."""

    def __init__(self, model: str) -> None:
        self._llm = LLM(model, progress=False)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = self._llm.generate(batch["prompt"].tolist(), PARAMS, progress=False)
        return batch | {"completion": np.array([output.outputs[0].text for output in outputs])}


def main(model: str, prompts: str, completions: str, engines: int) -> None:
    data = ray.data.read_json(prompts, lines=True)
    data = data.map_batches(
        Completer,
        fn_constructor_args=(model,),
        batch_size=BATCH,
        compute=ray.data.ActorPoolStrategy(size=engines),
    )
    data.write_json(completions)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("prompts")
    parser.add_argument("completions")
    parser.add_argument("--engines", type=int, default=1)
    main(**vars(parser.parse_args()))
