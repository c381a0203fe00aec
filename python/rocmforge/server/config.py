"""The settings of a server, each once: its name, type, default and meaning.

The command line makes a flag of each field, the environment a variable, and a file of settings (TOML) a key.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_type_hints

from rocmforge.errors import InvalidRequestError

# Settings with bounds: their names, a check of a value, and the bounds in words.
_LIMITS: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
    (
        (
            "max_body_bytes",
            "max_header_bytes",
            "max_connections",
            "max_prompts",
            "max_images",
            "max_image_bytes",
            "max_image_pixels",
            "max_n",
            "max_logprobs",
            "max_stop",
            "max_responses",
            "max_response_bytes",
            "max_models",
            "max_model_memory",
            "max_load_queue",
            "kv_events_buffer_steps",
        ),
        lambda value: value >= 1,
        "at least 1",
    ),
    (("max_turn_bytes", "max_all_turn_bytes", "max_kept_image_bytes"), lambda value: value >= 0, "at least 0"),
    (("port",), lambda value: 0 <= value < 65536, "0 to 65535"),
    (("shutdown_timeout", "load_timeout", "sleep_idle_seconds"), lambda value: value >= 0, "0 or more seconds"),
    (("header_timeout", "body_timeout"), lambda value: value > 0, "more than 0 seconds"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of `create_app` and of `rocmforge serve`; docs/server.md lists them."""

    host: Annotated[str, "Address to listen on; 0.0.0.0 listens on all networks."] = "127.0.0.1"
    port: Annotated[int, "Port to listen on; 0 chooses a free one, shown in the log."] = 8000
    served_model_name: Annotated[tuple[str, ...], "Names of the model; by default the file's name without .gguf."] = ()
    chat_template: Annotated[Path | None, "A file with a chat template that replaces the model's."] = None
    api_key: Annotated[tuple[str, ...], "API keys; a client must send one of them. None by default."] = ()
    api_key_file: Annotated[Path | None, "A file with further API keys, one per line."] = None
    admin_key: Annotated[
        tuple[str, ...], "Admin keys, which may also unload models and read statistics of all clients."
    ] = ()
    admin_key_file: Annotated[Path | None, "A file with further admin keys, one per line."] = None
    allowed_host: Annotated[
        tuple[str, ...],
        "Further host names that a server without API keys accepts, besides its address and localhost; * accepts all.",
    ] = ()
    ssl_certfile: Annotated[Path | None, "Certificate chain (PEM), to serve HTTPS."] = None
    ssl_keyfile: Annotated[Path | None, "Private key of the certificate (PEM)."] = None
    cors_origin: Annotated[tuple[str, ...], "Web origins whose pages may use the server; none by default."] = ()
    max_body_bytes: Annotated[int, "Maximum size of a request body, in bytes."] = 32 << 20
    max_header_bytes: Annotated[int, "Maximum size of the request line and headers, in bytes."] = 32 << 10
    max_connections: Annotated[
        int | None, "Maximum connections. The default depends on the open-file limit, at most 4096."
    ] = None
    header_timeout: Annotated[float, "Seconds within which a client must send all request headers."] = 30.0
    body_timeout: Annotated[float, "Seconds to send a body, plus one second for each 16 KiB received."] = 60.0
    min_priority: Annotated[
        int | None, "Lowest (most urgent) `priority` that a client may set. Default: 0 with API keys, any without."
    ] = None
    max_prompts: Annotated[int, "Maximum prompts in one request."] = 256
    max_images: Annotated[int, "Maximum images in one request."] = 16
    max_image_bytes: Annotated[int, "Maximum bytes of an image file."] = 20 << 20
    max_image_pixels: Annotated[int, "Maximum pixels of all images in one request."] = 80_000_000
    max_kept_image_bytes: Annotated[
        int, "Maximum bytes of decoded images kept for later turns, per model; 0 keeps none."
    ] = 128 << 20
    allowed_image_host: Annotated[
        tuple[str, ...],
        "Hosts from which images are fetched by https or http URL; none by default; * is every public host.",
    ] = ()
    max_n: Annotated[int, "Maximum sequences for each prompt."] = 64
    max_logprobs: Annotated[int, "Maximum log-probabilities for each token."] = 20
    max_stop: Annotated[int, "Maximum stop strings in one request."] = 16
    max_responses: Annotated[int, "Maximum stored objects of the Responses API per API key."] = 1000
    max_response_bytes: Annotated[int, "Maximum bytes of stored objects of the Responses API per API key."] = 64 << 20
    max_turn_bytes: Annotated[
        int,
        "Maximum bytes per API key for token ids of earlier answers. They are reused when a client sends an answer "
        "back, so the prefix cache hits; 0 stores none.",
    ] = 16 << 20
    max_all_turn_bytes: Annotated[
        int, "Maximum bytes per model for token ids of earlier answers, of all API keys together."
    ] = 128 << 20
    max_models: Annotated[int | None, "Maximum models loaded at once; by default as many as fit."] = None
    max_model_memory: Annotated[int | None, "Maximum bytes of models on one device; by default all of its memory."] = (
        None
    )
    max_load_queue: Annotated[int, "Maximum requests that wait for models to load."] = 512
    load_timeout: Annotated[
        float, "Maximum seconds that a model load waits for running requests of models to be unloaded."
    ] = 300.0
    sleep_idle_seconds: Annotated[
        float | None, "Unload a model after this many seconds without a request; by default never."
    ] = None
    kv_events_endpoint: Annotated[str | None, "ZeroMQ address for publishing KV events, such as tcp://*:5557."] = None
    kv_events_replay_endpoint: Annotated[str | None, "ZeroMQ address for replays of missed KV events."] = None
    kv_events_topic: Annotated[str, "Topic of KV events; {model} stands for the model's name."] = ""
    kv_events_buffer_steps: Annotated[int, "Number of KV event batches kept for replay."] = 10_000
    otlp_traces_endpoint: Annotated[
        str | None, "URL for OpenTelemetry traces, such as http://localhost:4318/v1/traces."
    ] = None
    shutdown_timeout: Annotated[float, "Seconds for running requests to finish when the server shuts down."] = 30.0
    log_prompts: Annotated[bool, "Write the prompts of requests into the log."] = False

    def __post_init__(self) -> None:
        for names, fits, expected in _LIMITS:
            for name in names:
                value = getattr(self, name)
                if value is not None and not fits(value):
                    raise InvalidRequestError(f"{name}: got {value}, expected {expected}")
        if self.kv_events_endpoint is None and (self.kv_events_replay_endpoint is not None or self.kv_events_topic):
            raise InvalidRequestError(
                "kv_events_replay_endpoint, kv_events_topic: got one of them, expected kv_events_endpoint with it"
            )
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise InvalidRequestError("ssl_certfile, ssl_keyfile: got one of them, expected both or none")
        for name, keys in (("api_key", self.keys()), ("admin_key", self.admin_keys())):
            if any(not key or not key.isascii() or not key.isprintable() for key in keys):
                raise InvalidRequestError(
                    f"{name}: got one that is empty or not printable ASCII, expected a text of it"
                )

    def keys(self) -> tuple[str, ...]:
        """Returns all keys of clients.

        Raises:
            OSError: The file of keys cannot be read.
        """
        return self.api_key + _keys_of("api_key_file", self.api_key_file)

    def admin_keys(self) -> tuple[str, ...]:
        """Returns all admin keys.

        Raises:
            OSError: The file of keys cannot be read.
        """
        return self.admin_key + _keys_of("admin_key_file", self.admin_key_file)


def _keys_of(setting: str, file: Path | None) -> tuple[str, ...]:
    if file is None:
        return ()
    lines = file.read_text(encoding="utf-8").splitlines()
    keys = tuple(line.strip() for line in lines if line.strip())
    if not keys:
        raise InvalidRequestError(f"{setting}: {file} has no key in it, expected one on each line")
    return keys


def meanings() -> dict[str, str]:
    """Returns the meaning of each setting, by name."""
    return {name: kind.__metadata__[0] for name, kind in get_type_hints(ServerConfig, include_extras=True).items()}
