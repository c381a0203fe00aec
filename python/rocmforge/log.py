"""Messages of the engine go to `logging.getLogger("rocmforge")`, warnings and errors to stderr by default."""

import logging

from rocmforge.display.terminal import printable


class Formatter(logging.Formatter):
    """Writes a message in one line: names of files and texts of clients may hold anything."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging has it
        """Returns the line without control characters."""
        return printable(super().formatMessage(record))


def show(level: int) -> None:
    """Shows messages of at least this level, on stderr unless the program has its own handlers."""
    logger = logging.getLogger("rocmforge")
    logger.setLevel(level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
