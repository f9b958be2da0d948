"""Nothing of ours starts a shell, runs text, or reads objects that run: by what the sources call."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCES = sorted(Path(__file__).parents[2].joinpath("autotune").rglob("*.py"))
FORBIDDEN = {
    *("os.system", "os.popen", "os.execl", "os.execlp", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *("asyncio.create_subprocess_shell", "eval", "exec", "yaml.unsafe_load", "yaml.full_load", "marshal.loads"),
    *("shutil.unpack_archive", "tarfile.open"),
}
SAFE_LOADERS = {"_StrictLoader", "yaml.CSafeLoader", "yaml.SafeLoader", "loader"}
TRUSTED_PICKLES = {"load/workers_wire.py", "executor/node_process.py", "executor/errand.py"}
"""Between a process of ours and its own children, over a pipe; on Ray also between a tuner and its tasks, whose code
and arguments Ray pickles itself."""


def called(node: ast.Call) -> str:
    return ast.unparse(node.func)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(path.parents[2])))
def test_no_call_leads_to_a_shell(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = called(node)
        assert name not in FORBIDDEN, f"line {node.lineno}"
        assert not any(word.arg == "shell" for word in node.keywords), f"line {node.lineno}"
        if name in ("pickle.loads", "pickle.load"):
            assert any(str(path).endswith(trusted) for trusted in TRUSTED_PICKLES), f"line {node.lineno}"
        if name == "yaml.load":
            assert any(word.arg == "Loader" and ast.unparse(word.value) in SAFE_LOADERS for word in node.keywords)
