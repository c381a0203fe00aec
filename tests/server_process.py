"""A real server in a separate process, for the tests of what clients see."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

# A test whose client has an environment of its own names the Python that has the server.
PYTHON = os.environ.get("ROCMFORGE_TEST_PYTHON", sys.executable)
START_SECONDS = 180.0
SETTLE_SECONDS = 20.0
# Variables that say where, and how, all tests run.
KEPT = {
    "ROCMFORGE_DEVICE",
    "ROCMFORGE_BATCH_INVARIANT",
    "ROCMFORGE_GPU_PLATFORM",
    "ROCMFORGE_CACHE_DIR",
    "ROCMFORGE_NUM_THREADS",
}
WAIT_SECONDS = 60.0
# For an answer: a machine that does other things may starve the server for long.
ANSWER_SECONDS = 240.0
OPERATOR = "the-operators-key"


@dataclass
class ServerProcess:
    """A server, its address and a client of it."""

    process: subprocess.Popen[bytes]
    url: str
    client: httpx.Client
    log_file: Path
    operator: dict[str, str]
    """Headers with the operator's key, where there are keys."""

    def log(self) -> str:
        """Returns its log so far."""
        return self.log_file.read_text()

    def stats(self, model: str | None = None) -> dict:
        """The gauges and counters of an engine; the only model needs no name."""
        params = {} if model is None else {"model": model}
        return self.client.get("/v1/engine/stats", params=params, headers=self.operator).json()

    def states(self) -> dict[str, str]:
        """The state of each model, by each of its names."""
        models = self.client.get("/v1/models", headers=self.operator).json()["data"]
        return {model["id"]: model["status"]["value"] for model in models}

    def settled(self, model: str | None = None) -> dict:
        """The gauges and counters of an engine, once nothing runs and no block is owned."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (stats := self.stats(model))["num_running"] or stats["num_waiting"] or stats["blocks_owned"]:
            assert time.monotonic() < deadline, stats
            time.sleep(0.002)
        assert stats["blocks_free"] + stats["blocks_cached"] == stats["blocks_total"]
        assert stats["state_slots_free"] + stats["state_slots_cached"] == stats["state_slots_total"]
        return stats


def wait_until(holds: Callable[[], bool]) -> None:
    """Waits for a condition."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def serving(
    folder: Path, *arguments: object, headers: dict | None = None, **environment: str
) -> Iterator[ServerProcess]:
    """Runs `rocmforge serve` with arguments and variables; at the end it must leave nothing and end by SIGTERM."""
    log_file = folder / f"server-{time.monotonic_ns()}.log"
    command = [PYTHON, "-m", "rocmforge", "serve", "--port", "0", *map(str, arguments)]
    operator = {}
    if headers is not None and "--admin-key" not in arguments:
        # A client's key reads no statistics, which every test ends with.
        command += ["--admin-key", OPERATOR]
        # A bearer goes before the other header, by which the client may send its own key.
        operator = {"Authorization": f"Bearer {OPERATOR}"}
    variables = {name: value for name, value in os.environ.items() if name in KEPT or not name.startswith("ROCMFORGE_")}
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env=variables | environment)
    try:
        url = _address(process, log_file)
        with httpx.Client(base_url=url, timeout=ANSWER_SECONDS, headers=headers, verify=False) as client:
            server = ServerProcess(process, url, client, log_file, operator)
            yield server
            if process.poll() is None:
                for name in [name for name, state in server.states().items() if state == "loaded"]:
                    server.settled(name)
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0, server.log()
    finally:
        process.kill()
        process.wait()


def serving_demo(
    folder: Path, template: str, key: str, *arguments: object
) -> contextlib.AbstractContextManager[ServerProcess]:
    """Runs a server with the demo model as `small`, for clients whose own Python may lack the package."""
    find = "from rocmforge.hub import demo; print(demo.path())"
    model = subprocess.run([PYTHON, "-c", find], check=True, capture_output=True, text=True).stdout.strip()
    file = folder / "template.jinja"
    file.write_text(template)
    served = ("--served-model-name", "small", "--chat-template", file, "--api-key", key, *arguments)
    return serving(folder, model, *served, headers={"x-api-key": key})


def _address(process: subprocess.Popen[bytes], log_file: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while True:
        if found := re.search(r"listening on (\S+)", log_file.read_text()):
            return found[1]
        assert process.poll() is None, log_file.read_text()
        assert time.monotonic() < deadline, log_file.read_text()
        time.sleep(0.02)
