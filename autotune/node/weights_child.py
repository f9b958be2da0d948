"""The process that downloads one checkpoint: `python -m autotune.node.weights_child`, started by weights_download.py.

It reads its order as one line of JSON, tells events as lines of JSON, and ends when its input ends: the tuner that
started it is gone then. Mirrors (HF_ENDPOINT), proxies and tokens are huggingface_hub's business; no token and no text
of that library, which might quote one, is told.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from autotune.node.machine import read_room
from autotune.node.weights_files import HubFile, loaded_files

WORKERS = 8
SPARE_BYTES = 256 << 20
"""Left on the disk: what else is written there during a download."""


def tell(**event: object) -> None:
    """One event to whoever started this process."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Download what one order names."""
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    from huggingface_hub import errors

    try:
        _download(order)
    except errors.GatedRepoError:
        return _failed("gated")
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError):
        return _failed("unknown")
    except errors.OfflineModeIsEnabled:
        return _failed("offline")
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        return _failed("gated" if status in (401, 403) else "network", f"the hub answered {status}")
    except OSError as error:
        full = error.errno in (28, 122)  # ENOSPC, EDQUOT
        return _failed("disk" if full else "network", f"{type(error).__name__}: {error.strerror or ''}".strip(": "))
    # Its HTTP library has changed twice (requests, httpx, httpx2), and each has errors of its own; this process does
    # nothing else, so whatever it meets is why nothing was downloaded.
    except Exception as error:  # noqa: BLE001 - see above
        return _failed("network", type(error).__name__)
    return 0


def _download(order: dict[str, Any]) -> None:
    from huggingface_hub import HfApi, hf_hub_download

    model, revision, cache = order["model"], order["revision"], Path(order["cache"])
    info = HfApi().model_info(model, revision=revision, files_metadata=True, timeout=order["timeout_s"])
    files = [HubFile(name=one.rfilename, size_bytes=one.size) for one in info.siblings or ()]
    version = None if order["version"] is None else tuple(order["version"])
    wanted = loaded_files(files, load_format=order["load_format"], version=version)
    snapshot = cache / f"models--{model.replace('/', '--')}" / "snapshots" / str(info.sha)
    missing = [file for file in wanted if not (snapshot / file.name).is_file()]
    needed = sum(file.size_bytes or 0 for file in missing)
    tell(event="found", files=len(wanted), missing=len(missing), missing_bytes=needed)
    room = read_room(cache)
    if missing and room is not None and room.free < needed + SPARE_BYTES:
        tell(event="failed", why="disk", text="", needed_bytes=needed + SPARE_BYTES, free_bytes=room.free)
        sys.exit(1)
    with ThreadPoolExecutor(WORKERS) as pool:
        # Small files first: a server that cannot be tuned (a config of another kind) is known early.
        tasks = [
            pool.submit(hf_hub_download, model, file.name, revision=revision, cache_dir=cache)
            for file in sorted(missing, key=lambda file: file.size_bytes or 0)
        ]
        try:
            for task in tasks:
                task.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    tell(event="done")


def _failed(why: str, text: str = "") -> int:
    tell(event="failed", why=why, text=text)
    sys.stdout.flush()
    os._exit(1)  # threads of the library may still wait for a dead connection


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
