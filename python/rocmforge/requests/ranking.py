"""Prompts of ranking models: a query and a document, in the format that the model was trained on."""

import json
import os
import re
from collections.abc import Sequence

from rocmforge._rocmforge import Tokenizer, inspect_gguf
from rocmforge.errors import InvalidRequestError

KEY = "tokenizer.chat_template.rerank"


class RankPrompts:
    """Combines query and document into a prompt.

    Args:
        template: The file's template, with `{query}` and `{document}` in it. Without a template, the tokenizer encodes
            them as a pair.
        tokenizer: The file's tokenizer.
    """

    def __init__(self, template: str | None, tokenizer: Tokenizer) -> None:
        self._template = None if template is None else chat_template(template)
        self._tokenizer = tokenizer

    @classmethod
    def of_file(cls, model: str | os.PathLike[str], tokenizer: Tokenizer) -> "RankPrompts":
        """Reads the file's template. A model with bidirectional attention needs no template.

        Raises:
            InvalidRequestError: The file needs a template and has none.
        """
        report = inspect_gguf(model)
        template = report["metadata"].get(KEY)
        if isinstance(template, str):
            return cls(template, tokenizer)
        if "generate" in report["tasks"]:
            raise InvalidRequestError(
                f"model: got a file without {KEY}, the template for query and document. Convert the model again, "
                'or make the prompts yourself and pass them to embed with pooling="rank"'
            )
        return cls(None, tokenizer)

    def prompts(self, query: str, documents: Sequence[str]) -> list[list[int]]:
        """Returns the token ids of each document's prompt.

        Raises:
            InvalidRequestError: A text cannot be tokenized, or there are no documents.
            TypeError: The query or a document is not a text.
        """
        if isinstance(documents, str):
            raise TypeError("documents: got a text, expected a list of texts")
        for what, texts in (("query", [query]), ("documents", documents)):
            for text in texts:
                if not isinstance(text, str):
                    raise TypeError(f"{what}: got {type(text)}, expected text")
        if not documents:
            raise InvalidRequestError("documents: got an empty list, expected at least one")
        if self._template is None:
            return [self._tokenizer.encode_pair(query, document) for document in documents]
        pairs = ([{"role": "user", "content": text} for text in (query, document)] for document in documents)
        encode = self._tokenizer.encode_chat
        return [encode(pair, chat_template=self._template).token_ids for pair in pairs]


def chat_template(template: str) -> str:
    """Returns a chat template for two messages. Only the file's own text in it can become control tokens."""
    places = {"{query}": "{{ messages[0]['content'] }}", "{document}": "{{ messages[1]['content'] }}"}
    parts = re.split(r"(\{query\}|\{document\})", template)
    return "".join(places.get(part) or "{{ " + json.dumps(part, ensure_ascii=False) + " }}" for part in parts if part)
