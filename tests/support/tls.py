"""TLS in front of servers that may have been built without."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

POSTGRES = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")
"""What a client of PostgreSQL asks first: SSLRequest, of PostgreSQL's protocol."""


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for localhost, with its key in the same file."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    signed = made.add_extension(names, False).sign(key, hashes.SHA256())
    path = tmp_path / "tls.pem"
    form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pem = serialization.Encoding.PEM
    path.write_bytes(key.private_bytes(pem, *form) + signed.public_bytes(pem))
    return path


@asynccontextmanager
async def in_front_of(server: int, certificate: Path, *, asked: bytes = b"") -> AsyncIterator[int]:
    """Speak TLS in front of the server at a port of the loopback; yields the port of its own.

    Args:
        asked: What the client says first, in plain, to be answered with "S", as PostgreSQL has it.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            if asked:
                if await reader.read(len(asked)) != asked:
                    writer.close()
                    return
                writer.write(b"S")
                await writer.start_tls(context)
            theirs, ours = await asyncio.open_connection("127.0.0.1", server)
            await asyncio.gather(pass_on(reader, ours), pass_on(theirs, writer))

    async with await asyncio.start_server(serve, "localhost", 0, ssl=None if asked else context) as front:
        yield front.sockets[0].getsockname()[1]
