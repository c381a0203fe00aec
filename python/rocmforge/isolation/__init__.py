"""The engine in a child process: if the process dies, only its running requests fail.

`child` is what runs there. `process` starts it and talks to it: calls and their answers go through a socket, outputs
through a ring in shared memory. `supervisor` watches it and starts another one when it has died. `engine` is what
`LLM` and `AsyncLLM` see: `Engine` and `Inbox` again.
"""

import os
from typing import TYPE_CHECKING, TypeAlias, Union

from rocmforge._rocmforge import Engine, Inbox, chosen_device
from rocmforge.display.progress import Report
from rocmforge.settings import EngineSettings

if TYPE_CHECKING:
    from rocmforge.isolation.engine import IsolatedEngine, IsolatedInbox

AnyEngine: TypeAlias = Union[Engine, "IsolatedEngine"]
AnyInbox: TypeAlias = Union[Inbox, "IsolatedInbox"]


def load_engine(
    model: str | os.PathLike[str],
    settings: EngineSettings,
    *,
    isolate: bool | None,
    watchdog: float,
    progress: Report,
) -> AnyEngine:
    """Loads a model, in a child process if `isolate` is true; with `None`, if the device is a GPU."""
    if isolate or (isolate is None and chosen_device(settings.get("device", "auto")) != "cpu"):
        # The imports take long, and most programs do without.
        from rocmforge.isolation.engine import IsolatedEngine  # noqa: PLC0415
        from rocmforge.isolation.supervisor import Supervisor  # noqa: PLC0415

        supervisor = Supervisor.load(model, settings, watchdog=watchdog, only_on_gpu=isolate is None, progress=progress)
        if supervisor is not None:
            return IsolatedEngine(supervisor)
    return Engine(model, progress=progress, **settings)
