"""Exceptions of the engine. Each class is also a subclass of the built-in exception that fits it best.

A missing file raises `FileNotFoundError`, a value of a wrong type `TypeError`.
"""


class RocmForgeError(Exception):
    """Base class of all errors of the engine. Raised itself after a failed step or a violated invariant."""


class InvalidRequestError(RocmForgeError, ValueError):
    """An argument, a request or a conversation cannot be served. The engine continues."""


class GrammarError(InvalidRequestError):
    """A grammar exceeded its limits, or allows no further text. Only the request with the grammar ends."""


class ModelFileError(RocmForgeError, ValueError):
    """A model file is malformed, contradicts itself, or is of an unsupported kind."""


class OutOfMemoryError(RocmForgeError, MemoryError):
    """The weights, the KV cache or a request do not fit; the message says how much is missing."""


class DeviceError(RocmForgeError, RuntimeError):
    """A device is absent or failed."""


class EngineDeadError(RocmForgeError, RuntimeError):
    """The engine was closed, lost its device or its process, or belongs to the parent of a forked process.

    Some device failures cannot raise it: AMD's runtime aborts the whole process when a kernel accesses unmapped memory.
    With `isolate=True`, only the engine's child process aborts, and a new one replaces it.
    """


class QueueFullError(RocmForgeError, RuntimeError):
    """The queue is full: `max_queue_size` requests wait. Try again later."""
