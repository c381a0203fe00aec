"""A server for many clients: `create_app` for an application of one's own, `rocmforge serve` for the rest."""

from typing import TYPE_CHECKING, Any

from rocmforge.server.config import ServerConfig
from rocmforge.server.models.catalog import ModelSpec

if TYPE_CHECKING:
    from rocmforge.server.app import create_app

__all__ = ["ModelSpec", "ServerConfig", "create_app"]


def __getattr__(name: str) -> Any:
    # The settings are there without the packages of the extra `serve`, which the application needs.
    if name != "create_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rocmforge.server.app import create_app  # noqa: PLC0415

    return create_app
