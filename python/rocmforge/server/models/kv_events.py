"""KV events of a server: one address for all its models, and a topic for each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rocmforge._rocmforge import default_settings
from rocmforge.async_llm import AsyncLLM
from rocmforge.errors import InvalidRequestError
from rocmforge.server.config import ServerConfig

if TYPE_CHECKING:
    from rocmforge.kv_events import KvEventPublisher
    from rocmforge.server.models.catalog import ModelSpec

# A placeholder for the model's name in the topic.
MODEL = "{model}"


class KvEvents:
    """Publishes the events of all models, if the settings say so.

    Args:
        specs: The models.
        config: The settings.

    Raises:
        InvalidRequestError: The events of two models could not be told apart, a model has none, the address cannot be
            used, or packages are missing.
    """

    def __init__(self, specs: Sequence["ModelSpec"], config: ServerConfig) -> None:
        self._topic = config.kv_events_topic
        self._publisher = _publisher(specs, config)

    def add(self, engine: AsyncLLM, name: str) -> None:
        """Publishes the events of a model until its engine is closed."""
        if self._publisher is not None:
            self._publisher.add(engine, self._topic.replace(MODEL, name))

    def close(self) -> None:
        """Ends threads and sockets."""
        if self._publisher is not None:
            self._publisher.close()


def _publisher(specs: Sequence["ModelSpec"], config: ServerConfig) -> "KvEventPublisher | None":
    if config.kv_events_endpoint is None:
        return None
    if len(specs) > 1 and MODEL not in config.kv_events_topic:
        raise InvalidRequestError(
            f"kv_events_topic: got {config.kv_events_topic!r} for {len(specs)} models, expected one with {MODEL} in "
            f"it, like kv@POD@{MODEL}"
        )
    is_cached = default_settings()["enable_prefix_caching"]
    for spec in specs:
        if spec.settings.get("enable_prefix_caching", is_cached) is False:
            raise InvalidRequestError(
                f"kv_events_endpoint, enable_prefix_caching: got an address for {spec.names[0]!r}, which has no prefix "
                "cache; expected only one of the two settings"
            )
    # Its packages are an extra of their own.
    from rocmforge.kv_events import KvEventPublisher  # noqa: PLC0415

    return KvEventPublisher(config.kv_events_endpoint, config.kv_events_replay_endpoint, config.kv_events_buffer_steps)
