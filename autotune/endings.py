"""How a running study is asked to end: by signals, once to end soon, twice to end now.

Asked once, what is being measured is measured to the end of its trial: its launch is paid for, and the figures count.
What only launches or warms up has nothing to lose and is stopped at once. Asked again, everything is stopped at once,
and a server that takes its time to stop is killed.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autotune.records import Phase

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

FINISHED_FIRST = frozenset({Phase.MEASURING, Phase.STOPPING})
"""Phases of an attempt that is let go on when the study is asked to end."""


def _silent(text: str) -> None:
    del text


class Endings:
    """The wish to end of one run of a study; asked from the event loop that the study runs on.

    Attributes:
        asked: how often. From the first time on no attempt is begun.
    """

    def __init__(self, tell: Callable[[str], None] = _silent) -> None:
        self.asked = 0
        self._tell = tell
        self._study: asyncio.Task[object] | None = None
        self._attempts: dict[int, tuple[asyncio.Task[object], Phase]] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While the current task runs the study, signals end it."""
        loop = asyncio.get_running_loop()
        self._study = asyncio.current_task()
        before = {number: signal.getsignal(number) for number in SIGNALS}
        # `nohup autotune study ...` is to survive the terminal.
        heard = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
        for number in heard:
            loop.add_signal_handler(number, self.ask)
        try:
            yield
        finally:
            for number in heard:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])

    def entered(self, trial: int, phase: Phase) -> None:
        """The current task's attempt of a trial entered a phase."""
        task = asyncio.current_task()
        if phase is Phase.ENDED or task is None:
            self._attempts.pop(trial, None)
        else:
            self._attempts[trial] = (task, phase)

    def ask(self) -> None:
        """End the study: soon, or when asked before, now."""
        self.asked += 1
        measuring = sorted(trial for trial, (_, phase) in self._attempts.items() if phase in FINISHED_FIRST)
        if self.asked == 1 and measuring:
            trials = ", ".join(map(str, measuring))
            self._tell(f"the study ends when trial {trials} has been measured; once more (Ctrl-C) ends it now")
            for task, phase in self._attempts.values():
                if phase not in FINISHED_FIRST and task is not self._study:
                    task.cancel()
            return
        if self._study is not None:
            self._study.cancel()
        if self.asked > 1:
            for task, phase in self._attempts.values():
                if phase is Phase.STOPPING:
                    task.cancel()  # a second time: what stops a server hurries
