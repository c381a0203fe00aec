"""What the engine has to say goes to `logging.getLogger("rocmforge")`, warnings and errors to stderr by default."""

import logging

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}


def show(level: str) -> None:
    """Shows what is at least of this level; on stderr, unless the program has handlers of its own."""
    logger = logging.getLogger("rocmforge")
    logger.setLevel(LEVELS[level])
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
