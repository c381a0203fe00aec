"""Blocks of content in Anthropic's format, and the text that a model reads of each."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from rocmforge.server import ignored
from rocmforge.server.answers.sealed import opened
from rocmforge.server.bodies import Body, JsonObject
from rocmforge.server.chat.turns import CallArguments
from rocmforge.server.images.sent import SentImage

CACHED = {"cache_control": ignored.CACHED}
_CALLER = {
    "caller": "The caller does not change the call.",
    "toolset_name": "The tool's name identifies it.",
}
_DOCUMENT = "[document omitted: this model reads text only]"


class TextBlock(Body):
    """A text."""

    ignored: ClassVar[Mapping[str, str]] = CACHED | {"citations": "They point people to sources; models read the text."}
    type: Literal["text"]
    text: str

    def told(self) -> str:
        """The text that the model reads."""
        return self.text


def as_blocks(value: Any) -> Any:
    """Returns a text as a list with one text block, anything else unchanged."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


Texts = Annotated[list[TextBlock], BeforeValidator(as_blocks, json_schema_input_type=str | list[TextBlock])]
"""A text or text blocks."""


class ThinkingBlock(Body):
    """The reasoning of an assistant."""

    type: Literal["thinking"]
    thinking: str
    signature: str = Field("", description="Contains reasoning that was not shown; otherwise unused.")

    def text(self) -> str:
        """Returns the reasoning, shown or not."""
        return self.thinking or opened(self.signature)


class OpaqueBlock(Body):
    """A note of another server in an assistant's turn, with nothing for a model to read."""

    ignored: ClassVar[Mapping[str, str]] = CACHED | {
        "data": "Only the server that encrypted this reasoning can read it.",
        "from": "It says which model of another server did not answer.",
        "to": "It says which model of another server answered.",
        "trigger": "It says why another model answered.",
        "mcp_server_name": "The tools of another server cannot be called here.",
        "tools": "The tools of another server cannot be called here.",
        "file_id": "The file is on another server.",
    }
    type: Literal["redacted_thinking", "fallback", "mcp_tool_listing", "container_upload"]


class ToolUseBlock(Body):
    """A tool that an assistant has called."""

    ignored: ClassVar[Mapping[str, str]] = CACHED | _CALLER
    type: Literal["tool_use"]
    id: str
    name: str
    input: CallArguments


class ServerToolUseBlock(Body):
    """A tool that an assistant has called and another server ran."""

    ignored: ClassVar[Mapping[str, str]] = CACHED | _CALLER | {"server_name": "The call is the same on any server."}
    type: Literal["server_tool_use", "mcp_tool_use"]
    id: str
    name: str
    input: JsonObject


class ServerToolResultBlock(Body):
    """The result of a tool that another server ran."""

    ignored: ClassVar[Mapping[str, str]] = CACHED | _CALLER
    type: Literal[
        "web_search_tool_result",
        "web_fetch_tool_result",
        "advisor_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "mcp_tool_result",
    ]
    tool_use_id: str
    content: str | list[JsonObject] | JsonObject = ""
    is_error: bool = False

    def told(self) -> str:
        """Returns the texts of the result, and the rest as JSON without encrypted fields."""
        parts = self.content if isinstance(self.content, list) else [self.content]
        return "\n".join(_readable(part) for part in parts)


def _readable(part: str | dict[str, Any]) -> str:
    if isinstance(part, str):
        return part
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    return json.dumps(_without_encrypted(part), ensure_ascii=False)


def _without_encrypted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_encrypted(each) for name, each in value.items() if not name.startswith("encrypted_")}
    return [_without_encrypted(each) for each in value] if isinstance(value, list) else value


class Base64Image(Body):
    """The file of an image."""

    ignored: ClassVar[Mapping[str, str]] = {"media_type": "The file itself tells its format."}
    type: Literal["base64"]
    data: str


class UrlImage(Body):
    """The place of an image."""

    type: Literal["url"]
    url: str = Field(description="A `data:` URL, or a URL of a host that the operator allows.")


class FileImage(Body):
    """An image that was uploaded to Anthropic; this server has no files."""

    type: Literal["file"]
    file_id: str


class ImageBlock(Body):
    """An image."""

    ignored: ClassVar[Mapping[str, str]] = CACHED | {"transformations": ignored.RESOLUTION}
    type: Literal["image"]
    source: Annotated[Base64Image | UrlImage | FileImage, Field(discriminator="type")]

    def part(self, place: str) -> dict[str, Any]:
        """Returns the part of a message that holds the image.

        Args:
            place: The parameter that has the block, for errors.
        """
        match self.source:
            case Base64Image(data=data):
                return SentImage(f"{place}.source.data", content=data).part()
            case UrlImage(url=url):
                return SentImage(f"{place}.source.url", url=url).part()
            case FileImage(file_id=file_id):
                return SentImage(f"{place}.source.file_id", url=f"file:{file_id}").part()


class Citations(Body):
    """True if an answer cites its source."""

    enabled: Literal[False] = False


class _Sourced(Body):
    citations: Citations | None = None


class SearchResultBlock(_Sourced):
    """A search result."""

    ignored: ClassVar[Mapping[str, str]] = CACHED
    type: Literal["search_result"]
    title: str
    source: str
    content: list[TextBlock]

    def told(self) -> str:
        """Returns the title, the source and the text, each on its own line."""
        return "\n".join([self.title, self.source, *(part.text for part in self.content)])


class ToolReferenceBlock(Body):
    """A tool that a tool search found; all tools are in the prompt already."""

    ignored: ClassVar[Mapping[str, str]] = CACHED
    type: Literal["tool_reference"]
    tool_name: str

    def told(self) -> str:
        """The name of the tool."""
        return self.tool_name


class PlainText(Body):
    """The text of a document."""

    ignored: ClassVar[Mapping[str, str]] = {"media_type": "Only `text/plain` exists."}
    type: Literal["text"]
    data: str

    def told(self) -> str:
        """The text that the model reads."""
        return self.data


class DocumentContent(Body):
    """The text of a document, in blocks."""

    type: Literal["content"]
    content: Texts

    def told(self) -> str:
        """The text that the model reads."""
        return "\n".join(part.text for part in self.content)


class _Document(_Sourced):
    ignored: ClassVar[Mapping[str, str]] = CACHED
    type: Literal["document"]
    title: str | None = None
    context: str | None = None

    def _with_text(self, text: str) -> str:
        return "\n".join(part for part in (self.title, self.context, text) if part is not None)


class DocumentBlock(_Document):
    """A document that contains its text."""

    source: Annotated[PlainText | DocumentContent, Field(discriminator="type")]

    def told(self) -> str:
        """Returns the title, the client's context and the text."""
        return self._with_text(self.source.told())


class MixedContent(Body):
    """The content of a document, which may have images."""

    type: Literal["content"]
    content: Annotated[
        list[Annotated[TextBlock | ImageBlock, Field(discriminator="type")]],
        BeforeValidator(as_blocks, json_schema_input_type=str | list[TextBlock]),
    ]


class UnreadDocument(Body):
    """A document in another format or at another place."""

    ignored: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("data", "media_type", "url", "file_id"), "This model reads text only."
    )
    type: Literal["base64", "url", "file"]

    def told(self) -> str:
        """Returns a note in place of the document."""
        return _DOCUMENT


class ResultDocumentBlock(_Document):
    """A document from a tool, of any kind."""

    source: Annotated[PlainText | MixedContent | UnreadDocument, Field(discriminator="type")]

    def pieces(self, place: str) -> "Iterator[Piece]":
        """Yields the title, the tool's context, and the content or a note that it was left out."""
        yield from (part for part in (self.title, self.context) if part is not None)
        if not isinstance(self.source, MixedContent):
            yield self.source.told()
            return
        for at, block in enumerate(self.source.content):
            yield from pieces(block, f"{place}.source.content.{at}")


ResultPart = Annotated[
    TextBlock | ImageBlock | SearchResultBlock | ResultDocumentBlock | ToolReferenceBlock, Field(discriminator="type")
]


class ToolResultBlock(Body):
    """The answer of a tool."""

    ignored: ClassVar[Mapping[str, str]] = CACHED | _CALLER
    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[list[ResultPart], BeforeValidator(as_blocks, json_schema_input_type=str | list[ResultPart])] = (
        Field(default_factory=list)
    )
    is_error: bool = Field(default=False, description="True if the tool failed; the model then reads `Error: ` first.")

    def told(self, place: str) -> str | list[dict[str, Any]]:
        """Returns what the model reads: a text, or parts if there is an image.

        Args:
            place: The parameter that has the block, for errors.
        """
        found = [piece for at, part in enumerate(self.content) for piece in pieces(part, f"{place}.content.{at}")]
        if self.is_error:
            found = [f"Error: {found[0]}", *found[1:]] if found and isinstance(found[0], str) else ["Error:", *found]
        if all(isinstance(piece, str) for piece in found):
            return "\n".join(map(str, found))
        return [as_part(piece) for piece in found]


Piece = str | dict[str, Any]
"""A text that the model reads, or the part of a message with an image."""


def pieces(block: "ResultPart | READ", place: str) -> "Iterator[Piece]":
    """Yields what the model reads of a block.

    Args:
        block: The block.
        place: The parameter that has it, for errors.
    """
    match block:
        case ImageBlock():
            yield block.part(place)
        case ResultDocumentBlock():
            yield from block.pieces(place)
        case _:
            yield block.told()


def as_part(piece: Piece) -> dict[str, Any]:
    """Returns the part of a message."""
    return {"type": "text", "text": piece} if isinstance(piece, str) else piece


Block = Annotated[
    TextBlock
    | ImageBlock
    | SearchResultBlock
    | DocumentBlock
    | ThinkingBlock
    | OpaqueBlock
    | ToolUseBlock
    | ToolResultBlock
    | ServerToolUseBlock
    | ServerToolResultBlock,
    Field(discriminator="type"),
]
READ = TextBlock | ImageBlock | SearchResultBlock | DocumentBlock
"""Blocks that the model reads as the user's."""
ALLOWED: Mapping[str, tuple[type[Body], ...]] = {
    "system": (TextBlock,),
    "user": (TextBlock, ImageBlock, SearchResultBlock, DocumentBlock, ToolResultBlock),
    "assistant": (
        TextBlock,
        ThinkingBlock,
        OpaqueBlock,
        ToolUseBlock,
        ServerToolUseBlock,
        ServerToolResultBlock,
    ),
}
"""The blocks that messages of each role may have."""
