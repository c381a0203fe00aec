"""Maps Claude model names to served models."""

import re

from rocmforge.server.models.registry import Models

# Full names (`claude-haiku-4-5-20251001`), and Claude Code's own short names.
_CLAUDE = re.compile(r"claude-.+|(default|fable|haiku|sonnet|opus|opusplan)(\[1m\])?")


def served_name(models: Models, name: str) -> str:
    """Returns the served name for a client's name; an unknown name stays unchanged.

    Agents ask for Claude's models by name, in their sub-agents for instance. A served name or alias that such a name
    begins with answers for it, the longest first: `claude-haiku` for `claude-haiku-4-5`, `claude` for all. Else a
    server's only model does.
    """
    if name in models.names or not _CLAUDE.fullmatch(name):
        return name
    beginnings = [known for known in models.names if name.startswith(f"{known}-")]
    if beginnings:
        return max(beginnings, key=len)
    return models.all[0].name if len(models.all) == 1 else name
