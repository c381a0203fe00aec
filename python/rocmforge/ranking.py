"""The prompts of models that rank: a query and a document, as the model's file puts them together."""

import json
import os
import re
from collections.abc import Sequence

from rocmforge._rocmforge import Tokenizer, inspect_gguf
from rocmforge.errors import InvalidRequestError

KEY = "tokenizer.chat_template.rerank"


class RankTemplate:
    """The text around query and document that a model was trained with.

    Args:
        template: The file's, with `{query}` and `{document}` in it.
        tokenizer: The file's.
    """

    def __init__(self, template: str, tokenizer: Tokenizer) -> None:
        places = {"{query}": "{{ messages[0]['content'] }}", "{document}": "{{ messages[1]['content'] }}"}
        parts = re.split(r"(\{query\}|\{document\})", template)
        # A chat template makes control tokens of what the file spells, and of nothing else.
        self._template = "".join(
            places.get(part) or "{{ " + json.dumps(part, ensure_ascii=False) + " }}" for part in parts if part
        )
        self._tokenizer = tokenizer

    @classmethod
    def of_file(cls, model: str | os.PathLike[str], tokenizer: Tokenizer) -> "RankTemplate":
        """Reads the file's template.

        Raises:
            InvalidRequestError: It has none.
        """
        template = inspect_gguf(model)["metadata"].get(KEY)
        if not isinstance(template, str):
            raise InvalidRequestError(
                f"model: got a file without {KEY}, which says how query and document become a prompt; convert it anew, "
                'or make the prompts and pass them to embed with pooling="rank"'
            )
        return cls(template, tokenizer)

    def prompts(self, query: str, documents: Sequence[str]) -> list[list[int]]:
        """Token ids of each document's prompt.

        Raises:
            InvalidRequestError: A text cannot be tokenised, or there are no documents.
            TypeError: A text is none.
        """
        if isinstance(documents, str):
            raise TypeError("documents: got a text, expected a list of texts")
        for what, texts in (("query", [query]), ("documents", documents)):
            for text in texts:
                if not isinstance(text, str):
                    raise TypeError(f"{what}: got {type(text)}, expected text")
        if not documents:
            raise InvalidRequestError("documents: got an empty list, expected at least one")
        pairs = ([{"role": "user", "content": text} for text in (query, document)] for document in documents)
        encode = self._tokenizer.encode_chat
        return [encode(pair, chat_template=self._template).token_ids for pair in pairs]
