"""The web application: its routes, its errors, its life."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from rocmforge import __version__
from rocmforge.async_llm import AsyncLLM
from rocmforge.errors import InvalidRequestError, RocmForgeError
from rocmforge.server import page
from rocmforge.server.anthropic import messages
from rocmforge.server.anthropic.diagnostics import Remembered
from rocmforge.server.config import ServerConfig
from rocmforge.server.endpoints import infill, loading, native, props, rerank, state, tokens
from rocmforge.server.errors import RETRY_AFTER, ApiError, body, from_engine, from_validation, route_path
from rocmforge.server.http.middleware import Gate
from rocmforge.server.http.streaming import ClientLeft
from rocmforge.server.models.catalog import ModelSpec
from rocmforge.server.models.registry import Models
from rocmforge.server.ollama import embedding as ollama_embedding
from rocmforge.server.ollama import generation as ollama_generation
from rocmforge.server.ollama import models as ollama_models
from rocmforge.server.ollama import pull as ollama_pull
from rocmforge.server.openai import chat, completions, embeddings
from rocmforge.server.openai import models as openai_models
from rocmforge.server.openai.responses import compaction, kept
from rocmforge.server.openai.responses import endpoint as responses
from rocmforge.server.openai.responses.stored import ResponseStore
from rocmforge.server.schema import describe

if TYPE_CHECKING:
    from rocmforge.settings import EngineSettings


def create_app(models: AsyncLLM | Sequence[ModelSpec], config: ServerConfig | None = None) -> FastAPI:
    """Returns the ASGI application that serves a model, or several.

    It can be run by any ASGI server, or mounted in another application, whose lifespan then has to contain this one's.
    Its end drains the engines and closes them.

    Args:
        models: A loaded model, which stays loaded; or models to load at their first request.
        config: The settings. Address and TLS are used only by `rocmforge serve`.

    Raises:
        InvalidRequestError: The models and the settings do not fit together.
    """
    config = config or ServerConfig()
    registry = Models(_specs(models, config), config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        async with registry.running():
            yield

    app = FastAPI(
        title="rocmforge",
        version=__version__,
        lifespan=lifespan,
        # Both pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    app.state.models = registry
    app.state.config = config
    app.state.results = native.Results(registry.retention)
    app.state.messages = Remembered()
    app.state.responses = ResponseStore(config.max_responses, config.max_response_bytes)
    app.exception_handler(HTTPException)(_http_error)
    app.exception_handler(RequestValidationError)(_validation_error)
    app.exception_handler(RocmForgeError)(_engine_error)
    app.exception_handler(ClientLeft)(_nobody)
    openai = (openai_models, completions, chat, responses, compaction, kept, embeddings)
    ollama = (ollama_models, ollama_pull, ollama_generation, ollama_embedding)
    rest = (rerank, loading, native, infill, tokens, state, props, page)
    for module in (*openai, messages, *ollama, *rest):
        app.include_router(module.router)
    has_keys = bool(config.keys() or config.admin_keys())
    app.openapi = partial(describe, app, has_keys=has_keys)  # type: ignore[method-assign]
    # CORS is added last, so it runs first: a browser's preflight has no key.
    app.add_middleware(Gate, config=config)
    if config.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.cors_origin),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Request-Id", "Retry-After"],
        )
    if registry.tracer is not None:
        from rocmforge.server.tracing import Traced  # noqa: PLC0415 - an extra

        app.add_middleware(Traced, tracer=registry.tracer)
    return app


def _specs(models: AsyncLLM | Sequence[ModelSpec], config: ServerConfig) -> Sequence[ModelSpec]:
    if not isinstance(models, AsyncLLM):
        return models
    if config.sleep_idle_seconds is not None:
        raise InvalidRequestError(
            "sleep_idle_seconds: a model that was loaded elsewhere stays loaded; give create_app a ModelSpec"
        )
    settings: EngineSettings = {"retention": models.config()["retention"]}
    return [ModelSpec.single(models.model, config, settings=settings, engine=models, stays_loaded=True)]


def _answer(path: str, error: ApiError) -> Response:
    return JSONResponse(body(path, error), error.status_code, error.headers)


async def _http_error(request: Request, error: HTTPException) -> Response:
    if not isinstance(error, ApiError):
        what = {
            404: f"{route_path(request.scope)}: there is no such path",
            405: f"{request.method}: the path has other methods",
        }
        error = ApiError(error.status_code, what.get(error.status_code, str(error.detail)), headers=error.headers)
    return _answer(route_path(request.scope), error)


async def _validation_error(request: Request, error: RequestValidationError) -> Response:
    return _answer(route_path(request.scope), from_validation(error.errors(), error.body))


async def _engine_error(request: Request, error: RocmForgeError) -> Response:
    return _answer(route_path(request.scope), from_engine(error, RETRY_AFTER))


async def _nobody(_request: Request, _error: ClientLeft) -> Response:
    # The usual status in logs; the client does not read the answer.
    return Response(status_code=499)
