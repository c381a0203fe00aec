"""Replicas of a model on Ray Serve. Prompts that begin alike go to the same one, and replicas come with the requests.

serve run --app-dir examples ray_serve:app model=/models/model.gguf
curl -N localhost:8000/generate -H 'content-type: application/json' -d '{"prompt": "The sky is"}'
"""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from rocmforge import AsyncLLM, InvalidRequestError, SamplingParams

# Ray shows this class as ray.serve.llm.request_router.PrefixCacheAffinityRouter, but only where vLLM is installed.
PREFIX_ROUTER = "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router:PrefixCacheAffinityRouter"
# Requests that a replica computes at once. Ray makes more replicas where more than that are under way.
REQUESTS_PER_REPLICA = 16


class Settings(BaseModel):
    model: str
    min_replicas: int = 1
    max_replicas: int = 4


class Completion(BaseModel):
    prompt: str
    max_tokens: int = 256
    temperature: float = 0.7
    seed: int | None = None
    ignore_eos: bool = False


@serve.deployment(
    max_ongoing_requests=4 * REQUESTS_PER_REPLICA,
    request_router_config=RequestRouterConfig(request_router_class=PREFIX_ROUTER),
)
class Replica:
    async def __init__(self, model: str) -> None:
        self._engine = await AsyncLLM.load(model, progress=False)
        self._name = serve.get_replica_context().replica_id.unique_id

    def check_health(self) -> None:
        if self._engine.is_closed:
            raise RuntimeError("the engine is dead")

    def __del__(self) -> None:
        self._engine.close()

    async def generate(self, completion: Completion) -> AsyncIterator[dict[str, object]]:
        params = SamplingParams(**completion.model_dump(exclude={"prompt"}), output_kind="delta")
        # Ray cancels this when the client leaves; then the request ends, too.
        async with aclosing(self._engine.generate(completion.prompt, params)) as outputs:
            async for output in outputs:
                (choice,) = output.outputs
                yield {"text": choice.text, "finish_reason": choice.finish_reason, "replica": self._name}

    def stats(self) -> dict[str, object]:
        return {"replica": self._name} | asdict(self._engine.stats())


api = FastAPI()


# Ray sends the classes below with all that they use, so it stands before them.
def event(output: dict[str, object]) -> str:
    return f"data: {json.dumps(output)}\n\n"


# It only hands on: what is too much waits at the replicas.
@serve.deployment(max_ongoing_requests=1000)
@serve.ingress(api)
class Api:
    def __init__(self, replicas: DeploymentHandle) -> None:
        self._replicas = replicas

    @api.post("/generate")
    async def generate(self, body: Completion) -> StreamingResponse:
        outputs = self._replicas.options(stream=True).generate.remote(body)
        try:
            # A refusal comes before the first output, while there is a status to give.
            first = await anext(outputs)
        except InvalidRequestError as error:
            # Ray raises an error of both kinds, with the engine's in it.
            raise HTTPException(400, str(error.cause)) from error

        async def events() -> AsyncIterator[str]:
            yield event(first)
            async for output in outputs:
                yield event(output)

        return StreamingResponse(events(), media_type="text/event-stream")

    @api.get("/stats")
    async def stats(self) -> dict[str, object]:
        return await self._replicas.stats.remote()


def app(settings: Settings) -> Application:
    scaling = AutoscalingConfig(
        min_replicas=settings.min_replicas,
        max_replicas=settings.max_replicas,
        target_ongoing_requests=REQUESTS_PER_REPLICA,
    )
    return Api.bind(Replica.options(autoscaling_config=scaling).bind(settings.model))
