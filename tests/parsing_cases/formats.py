"""Real chat templates by the form of their tool calls, and tools to call, for the tests of parsing."""

import lzma
from pathlib import Path

from rocmforge.parsing import ChatFormat, OutputParser, find_format, gather
from rocmforge.parsing.formats import MISTRAL_THINK

TEMPLATES = Path(__file__).parents[1] / "data" / "templates"


def template(name):
    """The text of `tests/data/templates/<name>.jinja.xz`, which comes from the model's repository."""
    return lzma.decompress((TEMPLATES / f"{name}.jinja.xz").read_bytes()).decode()


FORMATS: dict[str, ChatFormat] = {
    "hermes": find_format(template("Qwen-Qwen3-0.6B")),
    "qwen-xml": find_format(template("Qwen-Qwen3.5-4B")),
    "glm": find_format(template("zai-org-GLM-4.5")),
    "llama": find_format(template("meta-llama-Llama-3.1-8B-Instruct")),
    "mistral": ChatFormat(MISTRAL_THINK, "mistral"),
    "gemma4": find_format(template("google-gemma-4-E2B-it")),
    "harmony": find_format(template("openai-gpt-oss-20b")),
}


def read_in_pieces(form, output, size, tools, prompt="", **options):
    """The message that a parser gives for an output that comes in pieces of `size` characters."""
    reader = OutputParser(form, tools, prompt, **options)
    pieces = [output[start : start + size] for start in range(0, len(output), size)]
    return gather([event for piece in pieces for event in reader.feed(piece)] + reader.finish())


def tool(name, **properties):
    """A function in OpenAI's form; its parameters by their schemas."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": parameters}}


STRING = {"type": "string"}
TOOLS = [
    tool("get_current_weather", city=STRING, state=STRING, unit=STRING),
    tool("calculate_area", shape=STRING, dimensions={"type": "object"}, precision={"type": "integer"}),
    tool("searchTool", query=STRING),
    tool("getOpenIncidentsTool"),
]
