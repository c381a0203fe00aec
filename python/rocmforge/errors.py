"""Exceptions of the engine. Each class is also the built-in exception that fits it best.

A missing file raises `FileNotFoundError`, a value of a wrong type `TypeError`.
"""


class RocmForgeError(Exception):
    """Base of all errors of the engine; itself raised when a step failed or an invariant of ours broke."""


class InvalidRequestError(RocmForgeError, ValueError):
    """An argument, a request or a conversation that cannot be served; the engine goes on."""


class ModelFileError(RocmForgeError, ValueError):
    """A model file that is malformed, contradicts itself, or is of a kind that is not supported."""


class OutOfMemoryError(RocmForgeError, MemoryError):
    """The weights, the KV cache or a request do not fit; the message says how much is missing."""


class DeviceError(RocmForgeError, RuntimeError):
    """A device is absent or failed."""


class EngineDeadError(RocmForgeError, RuntimeError):
    """The engine was closed, lost its device or its process, or belongs to the parent of a forked process.

    Not every lost device can be told: AMD's runtime aborts the whole process when a kernel accesses memory that is not
    there. With `isolate=True` that is a process of the engine's own, and another one takes its place.
    """


class QueueFullError(RocmForgeError, RuntimeError):
    """The queue is full: `max_queue_size` requests wait; try again later."""
