"""Messages of the engine go to `logging.getLogger("rocmforge")`, warnings and errors to stderr by default."""

import logging


def show(level: int) -> None:
    """Shows what is at least of this level; on stderr, unless the program has handlers of its own."""
    logger = logging.getLogger("rocmforge")
    logger.setLevel(level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
