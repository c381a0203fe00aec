"""Parts that measure: copies and reads, launches, and a made-up model against what the memory allows."""

import functools
import os
import shutil
import statistics
from typing import TYPE_CHECKING

from rocmforge import LLM, _rocmforge
from rocmforge.cli.bench.bandwidth import read_bandwidth
from rocmforge.cli.bench.command import decode_speed, prompt_speed
from rocmforge.cli.device_test import made_up
from rocmforge.cli.device_test.outcome import FAILED, KERNELS, LEFT_OUT, OK, Job, Outcome
from rocmforge.cli.summary import model_summary, short, size

if TYPE_CHECKING:
    from collections.abc import Callable

# More bytes than the caches of any GPU hold.
DEVICE_BYTES = 2 << 30
HOST_BYTES = 256 << 20
QUICK_BYTES = 1 << 20
LAUNCHES = 20_000
QUICK_LAUNCHES = 600

# Shapes of Llama 3.2 1B; for a CPU, of SmolLM2 135M; and one for a quick look.
GPU_MODEL = made_up.Shape(
    layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=8, head_dim=64, vocab=128_256, context=8192
)
CPU_MODEL = made_up.Shape(layers=30, hidden=768, ffn=1536, heads=12, kv_heads=4, head_dim=64, vocab=32_768)
QUICK_MODEL = made_up.Shape(layers=2, hidden=256, ffn=512, heads=4, kv_heads=2, head_dim=64, vocab=1024)
PROMPT = 512
QUICK_PROMPT = 64
STEPS = 64
QUICK_STEPS = 8
REPETITIONS = 3
TOGETHER = 8
# Bytes of disk that stay free next to the model.
SPARE_DISK = 1 << 30


def bandwidth(job: Job) -> Outcome:
    """Copies between host and device, and reads of the device's memory."""
    if not job.on_gpu:
        threads = os.cpu_count() or 1
        read = read_bandwidth(threads)
        summary = f"memory read {read / 1e9:.1f} GB/s (numpy.sum of 512 MiB on {threads} threads, best of 5)"
        return Outcome(OK, summary, figures={"read": read})
    num_bytes = QUICK_BYTES if job.quick else DEVICE_BYTES
    found = _rocmforge.device_bandwidth(job.device, num_bytes=num_bytes, host_bytes=min(num_bytes, HOST_BYTES))
    summary = (
        f"host to device {found['to_device'] / 1e9:.1f} GB/s, device to host {found['to_host'] / 1e9:.1f} GB/s, "
        f"device memory read {found['read'] / 1e9:,.0f} GB/s, copied {found['on_device'] / 1e9:,.0f} GB/s"
    )
    how = (
        f"page-locked copies of {size(found['host_bytes'])}; a kernel that only reads, over "
        f"{size(found['device_bytes'])}; a copy on the device, read and written bytes both counted; best of 5"
    )
    return Outcome(OK, summary, [how], {**found})


def launches(job: Job) -> Outcome:
    """Measures the time from one launch to the next, and of a graph's node."""
    found = _rocmforge.device_launches(job.device, count=QUICK_LAUNCHES if job.quick else LAUNCHES)
    summary = (
        f"{1e6 * found['eager']:.2f} us from launch to launch ({1e6 * found['call']:.2f} us in the call), "
        f"{1e6 * found['graph_node']:.2f} us for a node of a graph, {1e6 * found['graph']:.2f} us for a graph of one"
    )
    return Outcome(OK, summary, [f"empty kernels, {found['launches']:,} one by one; graphs of 1 and 300"], {**found})


def speed(job: Job) -> Outcome:
    """Measures the prompt and the decoding of a made-up model."""
    shape = QUICK_MODEL if job.quick else GPU_MODEL if job.on_gpu else CPU_MODEL
    needed = made_up.num_bytes(shape) + SPARE_DISK
    free = shutil.disk_usage(job.folder).free
    if free < needed:
        return Outcome(LEFT_OUT, f"the folder for temporary files (TMPDIR) has {size(free)} free, not {size(needed)}")
    job.watch("writing the model")
    model = made_up.write(shape, job.folder / "speed.gguf")
    summary = model_summary(model)
    length, steps = (QUICK_PROMPT, QUICK_STEPS) if job.quick else (PROMPT, STEPS)
    job.watch("loading the model")
    with LLM(model, device=job.device, max_model_len=1024, max_num_seqs=TOGETHER, enable_prefix_caching=False) as llm:
        runs: dict[str, Callable[[], float]] = {
            f"pp{length}": functools.partial(prompt_speed, llm, length),
            "tg": functools.partial(decode_speed, llm, 1, steps),
            f"tg{TOGETHER}": functools.partial(decode_speed, llm, TOGETHER, steps),
        }
        speeds = {}
        for name, run in runs.items():
            job.watch(f"measuring {name}")
            run()
            speeds[name] = statistics.median(run() for _ in range(REPETITIONS))
        kernels = [part for part in llm.describe().split("; ") if part.startswith(KERNELS)]
    per_token = summary.bytes_per_token or summary.tensor_bytes
    read = job.earlier.get("bandwidth", {}).get("read")
    # A small model is read from caches, whose bandwidth is not measured.
    share = speeds["tg"] * per_token / read if read and not job.quick else None
    figures = {
        "tokens_per_second": speeds,
        "bytes_per_token": per_token,
        "parameters": summary.parameters,
        "share_of_bandwidth": share,
    }
    floor = "" if share is None else f" ({100 * share:.0f} % of what the memory's bandwidth allows)"
    text = (
        f"decoding {speeds['tg']:,.1f} tok/s{floor}, {TOGETHER} together {speeds[f'tg{TOGETHER}']:,.1f} tok/s, "
        f"a prompt of {length} {speeds[f'pp{length}']:,.0f} tok/s"
    )
    detail = (
        f"made-up model: {short(summary.parameters)} parameters, Q4_K and Q6_K, {size(per_token)} of weights a token"
    )
    return Outcome(OK if all(speed > 0 for speed in speeds.values()) else FAILED, text, [detail, *kernels], figures)
