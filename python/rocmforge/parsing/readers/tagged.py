"""Reads text in which markers enclose reasoning and tool calls."""

from rocmforge.parsing.formats import CallFormat, ChatFormat, Thinking
from rocmforge.parsing.output import Output
from rocmforge.parsing.readers.calls import CallReader, HermesReader, LlamaReader, MistralReader
from rocmforge.parsing.readers.gemma import GemmaReader
from rocmforge.parsing.readers.shaped_calls import ShapedReader
from rocmforge.parsing.readers.xml_calls import GlmReader, QwenReader
from rocmforge.parsing.schema import Tools
from rocmforge.parsing.source import Source, Steps, expect, markers, skip_space, text_until

# For each call format: its reader, the marker of a call, and texts that begin a call if the model omits the marker.
_READERS: dict[CallFormat, tuple[type[CallReader], str, tuple[str, ...]]] = {
    "hermes": (HermesReader, "<tool_call>", ()),
    "qwen-xml": (QwenReader, "<tool_call>", ("<function=",)),
    "glm": (GlmReader, "<tool_call>", ()),
    "llama": (LlamaReader, "<|python_tag|>", ("{", "[")),
    "mistral": (MistralReader, "[TOOL_CALLS]", ()),
    "gemma4": (GemmaReader, "<|tool_call>", ("call:",)),
}
# Gemma's control token between a call and its result. Models continue with it unless something stops them.
_AFTER_CALLS: dict[CallFormat, tuple[str, ...]] = {"gemma4": ("<|tool_response>",)}


class TaggedReader:
    """Reads one sequence."""

    __slots__ = (
        "_answer",
        "_calls",
        "_dropped",
        "_inner",
        "_marker",
        "_outer",
        "_output",
        "_source",
        "_thinking",
        "_thinks",
        "_unmarked",
    )

    def __init__(self, chat_format: ChatFormat, source: Source, output: Output, tools: Tools, prompt_text: str) -> None:
        self._source = source
        self._output = output
        self._thinking = chat_format.thinking
        self._calls: CallReader | None = None
        self._marker = ""
        self._unmarked: tuple[str, ...] = ()
        self._dropped: tuple[str, ...] = ()
        if chat_format.shape is not None and tools:
            if chat_format.shape.bare:
                self._unmarked = (chat_format.shape.marker,)
            else:
                self._marker = chat_format.shape.marker
            self._calls = ShapedReader(source, output, tools, chat_format.shape)
        elif chat_format.calls in _READERS and tools:
            reader, self._marker, self._unmarked = _READERS[chat_format.calls]
            self._calls = reader(source, output, tools)
            self._dropped = _AFTER_CALLS.get(chat_format.calls, ())
        inner = [*([self._marker] if self._marker else []), *self._dropped]
        outer = [*inner, *self._unmarked]
        self._answer = chat_format.answer
        outer += chat_format.answer
        self._thinks = False
        if (thinking := chat_format.thinking) is not None:
            if thinking.anywhere:
                self._dropped += (thinking.close,)
                outer.append(thinking.close)
            outer.append(thinking.open)
            inner.append(thinking.close)
            prompt = prompt_text.rstrip()
            self._thinks = prompt.endswith((thinking.open, thinking.open + thinking.label.rstrip()))
            if prompt.endswith(thinking.close):
                # The white space after the block is part of the format, as it is where the model closes the block.
                output.border()
        self._outer = markers(*outer) if outer else None
        self._inner = markers(*inner) if inner else None

    @property
    def plain(self) -> bool:
        """True if the format has no markers, so all text is the answer."""
        return self._outer is None

    def run(self) -> Steps[None]:
        """Reads until the text has ended."""
        if self._outer is None:
            return
        source, output = self._source, self._output
        if self._thinks and self._thinking is not None:
            # Some models repeat the opening marker, although the prompt ends with it.
            yield from skip_space(source)
            yield from self._skip(self._thinking.open)
            yield from self._think(self._thinking)
        while (marker := (yield from text_until(source, self._outer, output.content))) is not None:
            thinking = self._thinking
            if thinking is not None and marker == thinking.open and (thinking.anywhere or output.between):
                source.at += len(marker)
                yield from self._think(thinking)
            elif marker in self._answer and (marker == self._answer[-1] or not output.said):
                source.at += len(marker)
                output.border()
            elif not (yield from self._call(marker, known_only=marker in self._unmarked)):
                source.at += len(marker)
                if marker not in self._dropped:
                    output.content(marker)

    def _think(self, thinking: Thinking) -> Steps[None]:
        """Reads a reasoning block, with the calls within it."""
        source, output = self._source, self._output
        output.begin_reasoning()
        if thinking.label:
            yield from skip_space(source)
            yield from self._skip(thinking.label)
        if self._inner is None:
            return
        while (marker := (yield from text_until(source, self._inner, output.reasoning))) is not None:
            if marker == thinking.close:
                source.at += len(marker)
                return
            # Some models call a tool before they close the block. Others only mention a call in their reasoning; that
            # is rarely a complete call of a known tool.
            if (yield from self._call(marker, known_only=True)):
                output.begin_reasoning()
                continue
            source.at += len(marker)
            if marker not in self._dropped:
                output.reasoning(marker)

    def _skip(self, text: str) -> Steps[None]:
        """Reads a text if it comes next."""
        self._source.mark()
        if (yield from expect(self._source, (text,))) is None:
            self._source.rewind()
        else:
            self._source.release()

    def _call(self, marker: str, known_only: bool) -> Steps[bool]:
        if self._calls is None or marker not in (self._marker, *self._unmarked):
            return False
        return (yield from self._calls.attempt(marker, known_only))
