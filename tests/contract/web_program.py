"""Stands in for `autotune` in tests of the queue: does what the description in its study file says, then ends."""

import signal
import sys
import time
from pathlib import Path


def main(words: list[str]) -> int:
    text = Path(words[words.index("--file") + 1]).read_text(encoding="utf-8") if "--file" in words else ""
    sys.stdout.write(f"words {' '.join(words)}\n")
    if "description: fail" in text:
        sys.stderr.write("autotune: --model: 'x' is not accepted; allowed: a model\n")
        return 24
    if "description: long" in text:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        time.sleep(600)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
