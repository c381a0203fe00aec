"""Structured output in requests: vLLM's `structured_outputs` and OpenAI's `response_format`."""

import json
from typing import Any, Literal

from pydantic import Field

from rocmforge._rocmforge import StructuredOutputsParams, grammar_in_lark
from rocmforge.errors import InvalidRequestError
from rocmforge.requests.arguments import meanings
from rocmforge.server.bodies import Body, JsonObject
from rocmforge.server.errors import ApiError

_MEANINGS = meanings(StructuredOutputsParams)


class StructuredOutputs(Body):
    """The fields of `StructuredOutputsParams`."""

    schema_: JsonObject | str | None = Field(None, alias="json", description=_MEANINGS["json"])
    regex: str | None = Field(None, description=_MEANINGS["regex"])
    choice: list[str] | None = Field(None, description=_MEANINGS["choice"])
    grammar: str | None = Field(None, description=_MEANINGS["grammar"])
    json_object: bool = Field(default=False, description=_MEANINGS["json_object"])
    disable_any_whitespace: bool = Field(default=False, description=_MEANINGS["disable_any_whitespace"])
    whitespace_pattern: str | None = Field(None, description=_MEANINGS["whitespace_pattern"])

    def params(self) -> StructuredOutputsParams:
        """Returns the engine's parameters.

        Raises:
            ApiError: None or several constraints are given, or one is wrong.
        """
        return made("structured_outputs", **self.model_dump(by_alias=True))


class JsonSchema(Body):
    """A schema in OpenAI's format."""

    name: str | None = None
    description: str | None = None
    schema_: JsonObject = Field(alias="schema", description="The JSON schema.")
    strict: bool = Field(default=True, description="Every answer fits the schema, strict or not.")


class ResponseFormat(Body):
    """Structured output in OpenAI's format."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def params(self) -> StructuredOutputsParams | None:
        """Returns the engine's parameters; `None` for any text.

        Raises:
            ApiError: The schema is missing, in the wrong place, or wrong.
        """
        if (self.type == "json_schema") != (self.json_schema is not None):
            name = "response_format.json_schema"
            raise ApiError(400, f"{name}: expected with the type json_schema, and with no other", param=name)
        if self.json_schema is not None:
            return made("response_format", json=self.json_schema.schema_)
        return made("response_format", json_object=True) if self.type == "json_object" else None


class TextFormat(Body):
    """Structured output in the format of OpenAI's Responses API."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: JsonObject | None = Field(None, alias="schema", description="The JSON schema.")
    strict: bool | None = Field(default=None, description="Every answer fits the schema, strict or not.")

    def params(self) -> StructuredOutputsParams | None:
        """Returns the engine's parameters; `None` for any text.

        Raises:
            ApiError: The schema is missing, in the wrong place, or wrong.
        """
        if (self.type == "json_schema") != (self.schema_ is not None):
            name = "text.format.schema"
            raise ApiError(400, f"{name}: expected with the type json_schema, and with no other", param=name)
        if self.schema_ is not None:
            return made("text.format", json=self.schema_)
        return made("text.format", json_object=True) if self.type == "json_object" else None


def constraint_fields(constraint: StructuredOutputsParams) -> dict[str, Any]:
    """Returns the fields of the constraint, without those that say where it begins."""
    names = ("json", "regex", "choice", "grammar", "json_object", "disable_any_whitespace", "whitespace_pattern")
    return {name: getattr(constraint, name) for name in names}


def lark_rule(constraint: StructuredOutputsParams) -> str:
    """Returns the body of a Lark rule that allows the same texts as the constraint.

    Raises:
        InvalidRequestError: A grammar in the syntax of GBNF is wrong.
    """
    if constraint.grammar is not None:
        return f"%lark {{\n{grammar_in_lark(constraint.grammar)}\n}}"
    if constraint.choice is not None:
        return " | ".join(json.dumps(choice, ensure_ascii=False) for choice in constraint.choice)
    if constraint.regex is not None:
        return f"%lark {{\nstart: /{constraint.regex.replace('/', chr(92) + '/')}/\n}}"
    schema = {"type": "object"} if constraint.json is None else json.loads(constraint.json)
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    spacing: dict[str, Any] = {"whitespace_flexible": not constraint.disable_any_whitespace}
    if constraint.whitespace_pattern is not None:
        spacing = {"whitespace_pattern": constraint.whitespace_pattern}
    return f"%json {json.dumps(schema | {'x-guidance': spacing})}"


def made(param: str, **fields: Any) -> StructuredOutputsParams:
    """Returns the engine's parameters for fields.

    Raises:
        ApiError: They are wrong. It names `param`.
    """
    try:
        return StructuredOutputsParams(**fields)
    except InvalidRequestError as error:
        raise ApiError(400, str(error).replace("structured_outputs", param, 1), param=param) from error
