"""The settings of a server, each once: its name, type, default and meaning.

The command line makes a flag of each field, the environment a variable, and a file of settings (TOML) a key.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_type_hints

from rocmforge.errors import InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of `create_app` and of `rocmforge serve`; docs/server.md lists them."""

    host: Annotated[str, "Address to listen on; 0.0.0.0 is every network that the machine is in."] = "127.0.0.1"
    port: Annotated[int, "Port to listen on; 0 takes a free one, which the log names."] = 8000
    served_model_name: Annotated[tuple[str, ...], "Names of the model; by default that of its file."] = ()
    chat_template: Annotated[Path | None, "A file with a chat template, in place of the model's."] = None
    api_key: Annotated[tuple[str, ...], "Keys of which a client has to send one; none by default."] = ()
    api_key_file: Annotated[Path | None, "A file with a key on each line, in addition."] = None
    ssl_certfile: Annotated[Path | None, "Certificate chain (PEM), to serve HTTPS."] = None
    ssl_keyfile: Annotated[Path | None, "Private key of the certificate (PEM)."] = None
    cors_origin: Annotated[tuple[str, ...], "Web origins whose pages may use the server; none by default."] = ()
    max_body_bytes: Annotated[int, "Largest body of a request."] = 32 << 20
    max_header_bytes: Annotated[int, "Largest head of a request."] = 32 << 10
    max_prompts: Annotated[int, "Most prompts in one request."] = 256
    max_n: Annotated[int, "Most sequences for each prompt."] = 64
    max_logprobs: Annotated[int, "Most log-probabilities for each token."] = 20
    max_stop: Annotated[int, "Most stop strings in one request."] = 16
    max_responses: Annotated[int, "Most answers of /v1/responses that are kept for each API key."] = 1000
    max_response_bytes: Annotated[int, "Most bytes that they take, for each API key."] = 64 << 20
    max_models: Annotated[int | None, "Most models that are loaded at once; by default as many as fit."] = None
    max_model_memory: Annotated[
        int | None, "Most bytes that models take on one device; by default as many as it has."
    ] = None
    max_load_queue: Annotated[int, "Most requests that wait for models to be loaded."] = 512
    load_timeout: Annotated[float, "Seconds that a load waits for requests to models that have to make room."] = 300.0
    sleep_idle_seconds: Annotated[
        float | None, "Seconds without a request after which a model is unloaded; by default it stays loaded."
    ] = None
    kv_events_endpoint: Annotated[str | None, "Where KV events are published, as tcp://*:5557."] = None
    kv_events_replay_endpoint: Annotated[str | None, "Where routers ask for KV events that they missed."] = None
    kv_events_topic: Annotated[str, "The topic of KV events, in which {model} is the model's name."] = ""
    kv_events_buffer_steps: Annotated[int, "Batches of KV events that are kept for those who missed them."] = 10_000
    otlp_traces_endpoint: Annotated[
        str | None, "Where OpenTelemetry traces are sent, as http://localhost:4318/v1/traces."
    ] = None
    shutdown_timeout: Annotated[float, "Seconds that running requests have to finish in when the server ends."] = 30.0
    log_prompts: Annotated[bool, "Write the prompts of requests into the log."] = False

    def __post_init__(self) -> None:
        limits = (
            "max_body_bytes",
            "max_header_bytes",
            "max_prompts",
            "max_n",
            "max_logprobs",
            "max_stop",
            "max_responses",
            "max_response_bytes",
            "max_models",
            "max_model_memory",
            "max_load_queue",
            "kv_events_buffer_steps",
        )
        for name in limits:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequestError(f"{name}: got {value}, expected at least 1")
        if not 0 <= self.port < 65536:
            raise InvalidRequestError(f"port: got {self.port}, expected 0 to 65535")
        for name in ("shutdown_timeout", "load_timeout", "sleep_idle_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds >= 0:
                raise InvalidRequestError(f"{name}: got {seconds}, expected 0 or more seconds")
        if self.kv_events_endpoint is None and (self.kv_events_replay_endpoint is not None or self.kv_events_topic):
            raise InvalidRequestError(
                "kv_events_replay_endpoint, kv_events_topic: got one of them, expected kv_events_endpoint with it"
            )
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise InvalidRequestError("ssl_certfile, ssl_keyfile: got one of them, expected both or none")
        if any(not key or not key.isascii() or not key.isprintable() for key in self.keys()):
            raise InvalidRequestError("api_key: got one that is empty or not printable ASCII, expected a text of it")

    def keys(self) -> tuple[str, ...]:
        """Every key that is accepted.

        Raises:
            OSError: The file of keys cannot be read.
        """
        if self.api_key_file is None:
            return self.api_key
        lines = self.api_key_file.read_text(encoding="utf-8").splitlines()
        from_file = tuple(line.strip() for line in lines if line.strip())
        if not from_file:
            raise InvalidRequestError(f"api_key_file: {self.api_key_file} has no key in it, expected one on each line")
        return self.api_key + from_file


def meanings() -> dict[str, str]:
    """Says what each setting means, by its name."""
    return {name: kind.__metadata__[0] for name, kind in get_type_hints(ServerConfig, include_extras=True).items()}
