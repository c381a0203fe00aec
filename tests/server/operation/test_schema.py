"""`/openapi.json` tells what there is, and nothing that never comes."""

import httpx
import pytest
from rocmforge.server import ServerConfig, create_app

ERRORS = {"OpenAIError", "AnthropicError", "OllamaError", "NativeError"}


def described(engine, **settings):
    return create_app(engine, ServerConfig(**settings)).openapi()


def operations(description):
    return {
        (method, path): operation
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    }


def test_errors_and_streams_are_those_that_come(engine):
    """C14: no 422, which never comes; a 400 in the form of each API; streams where `stream` is a parameter."""
    description = described(engine)
    schemas = description["components"]["schemas"]
    assert not {"HTTPValidationError", "ValidationError"} & set(schemas)
    assert set(schemas) >= ERRORS
    for (method, path), operation in operations(description).items():
        assert "422" not in operation["responses"]
        if path == "/live":
            continue
        refused = operation["responses"]["400"]["content"]["application/json"]["schema"]["$ref"]
        api = "Anthropic" if path.startswith("/v1/messages") else "Ollama" if path.startswith("/api/") else "OpenAI"
        if path.startswith(("/generate", "/status/", "/cancel/")):
            api = "Native"
        assert refused == f"#/components/schemas/{api}Error", (method, path)
    kinds = {
        path: set(operation["responses"]["200"]["content"]) for (_, path), operation in operations(description).items()
    }
    assert kinds["/v1/chat/completions"] == {"application/json", "text/event-stream"}
    assert kinds["/api/chat"] == {"application/json", "application/x-ndjson"}
    assert kinds["/generate/stream"] == {"text/event-stream"}
    assert kinds["/v1/embeddings"] == {"application/json"}
    assert kinds["/metrics"] == {"text/plain"}


def test_keys_are_told_of_where_there_are_some(engine):
    """C14: the security scheme is there with keys, and `/live` needs none."""
    assert "security" not in described(engine)
    description = described(engine, api_key=("a",))
    assert set(description["components"]["securitySchemes"]) == {"bearer", "x-api-key"}
    assert description["security"] == [{"bearer": []}, {"x-api-key": []}]
    assert [path for (_, path), each in operations(description).items() if each.get("security") == []] == ["/live"]
    assert "401" in description["paths"]["/v1/models"]["get"]["responses"]


async def test_it_is_the_same_each_time(engine):
    """C14: asking again gives the same."""
    app = create_app(engine, ServerConfig())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:
        first, second = [(await client.get("/openapi.json")).json() for _ in range(2)]
    assert first == second


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", {}), ("/v1/messages", {}), ("/api/chat", {}), ("/generate", {})],
)
async def test_errors_are_as_described(engine, path, body):
    """C14: an error has exactly the fields that its form tells of."""
    app = create_app(engine, ServerConfig())
    description = app.openapi()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 400
    name = description["paths"][path]["post"]["responses"]["400"]["content"]["application/json"]["schema"]["$ref"]

    def check(value, schema):
        if schema.get("type") == "object":
            assert set(value) == set(schema["required"])
            for field, item in value.items():
                check(item, schema["properties"][field])
        else:
            kinds = {"string": str, "boolean": bool, "null": type(None)}
            allowed = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
            assert isinstance(value, tuple(kinds[kind] for kind in allowed))

    check(answer.json(), description["components"]["schemas"][name.rpartition("/")[2]])
