"""Measures how fast this machine reads its memory: an upper bound for decoding one sequence."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

# More bytes than the caches of all but the largest servers hold.
BYTES = 512 << 20
REPETITIONS = 5


def read_bandwidth(num_threads: int) -> float:
    """Bytes per second that `num_threads` threads read together; the best of several passes over 512 MiB."""
    parts = np.array_split(np.ones(BYTES // 8, dtype=np.int64), num_threads)
    best = 0.0
    # numpy lets go of the interpreter while it adds up.
    with ThreadPoolExecutor(num_threads) as pool:
        for _ in range(REPETITIONS):
            started = time.perf_counter()
            list(pool.map(np.sum, parts))
            best = max(best, BYTES / (time.perf_counter() - started))
    return best
