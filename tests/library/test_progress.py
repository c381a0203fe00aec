"""Bars: what is drawn, and that they leave the program's own bars alone."""

import io
import itertools
import sys
import threading
import time

from rocmforge.display import progress
from tqdm import std
from tqdm.auto import tqdm


class Terminal(io.StringIO):
    """The stderr of somebody who watches it."""

    def isatty(self):
        return True


def watched(monkeypatch):
    """A terminal in place of stderr, and a clock of the bars on which a second passes with every look."""
    clock = itertools.count(time.time())
    monkeypatch.setattr(std, "time", lambda: next(clock))
    monkeypatch.setattr(progress, "DELAY_SECONDS", 0.0)
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


def test_notes_change_while_the_count_stands(monkeypatch):
    """A request takes minutes: until the next one ends, the speed is what tells that something goes on."""
    terminal = watched(monkeypatch)
    with progress.bar("Generating", unit="requests") as draw:
        for done, note in ((0, "11 tok/s"), (4, "12 tok/s"), (4, "13 tok/s"), (4, "14 tok/s"), (5, "15 tok/s")):
            draw(done, 5, note)
            assert note in terminal.getvalue()


def test_bars_of_the_program_keep_their_monitor(monkeypatch):
    """Our own bars start no thread of it."""
    terminal = watched(monkeypatch)
    interval, threads = tqdm.monitor_interval, set(threading.enumerate())
    assert interval > 0
    with progress.bar("Generating", unit="requests") as draw:
        draw(1, 2, "")
        assert "Generating" in terminal.getvalue()
        assert set(threading.enumerate()) == threads
    assert tqdm.monitor_interval == interval
