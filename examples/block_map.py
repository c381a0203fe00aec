"""Draws the KV cache over time while requests come and go: one column per look, one row per block.

python examples/block_map.py model.gguf block_map.png
"""

# %% Requests that arrive, run and are cancelled at random
import asyncio
import random
import sys
import time

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from rocmforge import AsyncLLM, SamplingParams

INTERVAL_SECONDS = 0.02
NUM_REQUESTS = 80


async def client(engine: AsyncLLM, rng: random.Random) -> None:
    await asyncio.sleep(rng.random())
    shared = [5] * 32  # half of the requests begin like each other
    prompt = (shared if rng.random() < 0.5 else []) + [rng.randrange(100, 400) for _ in range(rng.randrange(4, 64))]
    params = SamplingParams(max_tokens=rng.randrange(8, 64), ignore_eos=True)
    leave_after = rng.choice([10, 1000])
    async for output in engine.generate(prompt, params):
        if len(output.outputs[0].token_ids) >= leave_after:
            break


async def watch(model: str) -> tuple[np.ndarray, float]:
    """Owners per block and look (0 free, -1 cached, else the number of sequences that hold it), and the seconds."""
    rng = random.Random(1)
    columns = []
    async with AsyncLLM(model, max_num_seqs=8, max_model_len=192) as engine:
        started = time.monotonic()
        clients = asyncio.gather(*(client(engine, rng) for _ in range(NUM_REQUESTS)))
        while not clients.done():
            blocks = engine.block_map()
            columns.append(np.where(blocks["state"] == 1, -1, blocks["owners"].astype(int)))
            await asyncio.sleep(INTERVAL_SECONDS)
        await clients
        seconds = time.monotonic() - started
    history = np.array(columns).T
    return history[(history != 0).any(axis=1)], seconds  # blocks that were never used say nothing


# %% The picture
def draw(history: np.ndarray, seconds: float, path: str) -> None:
    figure, axes = plt.subplots(figsize=(12, 6), layout="constrained")
    top = max(2, int(history.max()))
    colours = ["#b0c4de", "#ffffff", *mpl.colormaps["plasma"](np.linspace(0.15, 0.85, top))]
    image = axes.imshow(
        history,
        aspect="auto",
        interpolation="nearest",
        cmap=mpl.colors.ListedColormap(colours),
        vmin=-1.5,
        vmax=top + 0.5,
        extent=(0, seconds, history.shape[0], 0),
    )
    axes.set(xlabel="seconds", ylabel="block", title="KV cache while requests come and go")
    bar = figure.colorbar(image, ticks=range(-1, top + 1))
    bar.set_ticklabels(["cached", "free", "1 owner", *(f"{owners} owners" for owners in range(2, top + 1))])
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} MODEL.gguf PICTURE.png")
    draw(*asyncio.run(watch(sys.argv[1])), sys.argv[2])
