"""A child with relatives on demand, for the keeper's tests. Standard library only; run with `python -I -S`.

    child_family.py [ignore-term] [worker=KIND]... [exit=STATUS] [sleep=SECONDS] [say=FILE]

Workers ignore TERM. KIND: `same` stays in the process group, `new` opens its own session, `orphan` is the child of a
process that has already ended, in its own session, `bare` and `bare-new` have lost their environment as a re-titled
process has. `say` names a file that receives the pid once everybody is up.
"""

import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    words = dict(word.partition("=")[::2] for word in sys.argv[1:] if not word.startswith("worker="))
    workers = [word.partition("=")[2] for word in sys.argv[1:] if word.startswith("worker=")]
    ready_in, ready_out = os.pipe()
    if "ignore-term" in words:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for kind in workers:
        if os.fork() == 0:
            work(kind, ready_out)
    for _ in workers:
        os.read(ready_in, 1)
    if "say" in words:
        unfinished = Path(words["say"] + ".tmp")
        unfinished.write_text(str(os.getpid()))
        unfinished.rename(words["say"])
    time.sleep(float(words.get("sleep") or 600))
    sys.exit(int(words.get("exit") or 0))


def work(kind: str, ready_out: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if kind in ("new", "orphan", "bare-new"):
        os.setsid()
    if kind == "orphan" and os.fork() != 0:
        os._exit(0)
    if kind.startswith("bare"):
        os.set_inheritable(ready_out, True)
        code = f"import os, time; os.write({ready_out}, b'x'); time.sleep(600)"
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code], {})
    os.write(ready_out, b"x")
    time.sleep(600)
    os._exit(0)


main()
