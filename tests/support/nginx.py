"""nginx as a load balancer that knows nothing of sessions: the one of docs/deploying.md, in a folder of its own."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.serving import free_port, stop, wait_until_it_answers

ROOT = Path(__file__).resolve().parents[2]

_WHERE = "/usr/sbin:/usr/local/sbin:/usr/local/bin:/usr/bin"
needs_nginx = pytest.mark.skipif(shutil.which("nginx", path=_WHERE) is None, reason="there is no nginx")

_AROUND = """
daemon off;
worker_processes 1;
pid nginx.pid;
error_log error.log;
events { worker_connections 512; }
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
%s
}
"""


def documented() -> str:
    """Return the settings that the documentation tells operators to use."""
    page = (ROOT / "docs" / "deploying.md").read_text()
    found = re.search(r"^```nginx\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def _settings(port: int, replicas: Sequence[int]) -> str:
    """Return the documented settings with our addresses in place of the documented ones."""
    servers = iter(replicas)
    text, count = re.subn(r"server 10\.0\.0\.\d+:8000", lambda _: f"server 127.0.0.1:{next(servers)}", documented())
    assert count == len(replicas)
    text, count = re.subn(r"listen 443 ssl;\n(\s*ssl_\w+ .*;\n)*", f"listen 127.0.0.1:{port};\n", text)
    assert count == 1
    return text


@contextmanager
def balancer(replicas: Sequence[int]) -> Iterator[str]:
    """Run nginx in front of three replicas on these ports; yields its origin. It is ended by its process id."""
    port = free_port()
    binary = shutil.which("nginx", path=_WHERE)
    with tempfile.TemporaryDirectory(prefix="mcpfusion-nginx-") as folder:
        Path(folder).chmod(0o755)
        config = Path(folder, "nginx.conf")
        config.write_text(_AROUND % _settings(port, replicas))
        command = [str(binary), "-p", folder, "-c", str(config), "-e", "error.log"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        try:
            wait_until_it_answers(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            stop(process)
