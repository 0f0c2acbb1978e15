"""A client of streamable HTTP that is nothing but bytes, so that clients leave the CPU to the servers under test."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

MODERN, LEGACY = "2026-07-28", "2025-11-25"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "fleet", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}

_HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


class Broken(Exception):
    """The connection broke, so that it is not known what became of the request."""


class Refused(Exception):
    """The request did not get as far as the protocol: the status says why."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status} {body[:300]!r}")
        self.status = status


class Connection:
    """One connection to a server, made when it is needed and kept open. One request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[dict[str, str], Any]:
        """Send a message; return the headers of the answer and the last message in it, None without one.

        Raises:
            ConnectionRefusedError: Nobody listens; nothing was sent.
            Broken: The connection broke.
            Refused: The status is none of success.
        """
        reader, writer = await self._open()
        content = json.dumps(body).encode()
        fixed = {"Host": f"127.0.0.1:{self._port}", "Content-Length": len(content), **_HEADERS}
        head = "".join(f"{name}: {value}\r\n" for name, value in {**fixed, **headers}.items())
        try:
            writer.write(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + content)
            status, got, answer = await _read(reader)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            self.close()
            raise Broken from error
        except BaseException:
            self.close()
            raise
        if got.get("connection") == "close":
            self.close()
        if status >= 300:
            raise Refused(status, answer)
        if got.get("content-type", "").startswith("text/event-stream"):
            lines = [line[5:] for line in answer.splitlines() if line.startswith(b"data:") and line[5:].strip()]
            answer = lines[-1] if lines else b""
        return got, json.loads(answer) if answer else None

    def close(self) -> None:
        """Break it off."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None and self._streams[0].at_eof():
            self.close()
        if self._streams is None:
            try:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=2**20)
            except ConnectionRefusedError:
                raise
            except OSError as error:
                raise ConnectionRefusedError from error
        return self._streams


async def _read(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(head[0].split()[1])
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
    if headers.get("transfer-encoding") == "chunked":
        parts: list[bytes] = []
        while size := int(await reader.readline(), 16):
            parts.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return status, headers, b"".join(parts)
    return status, headers, await reader.readexactly(int(headers.get("content-length", 0)))
