"""Records and steps as Redis keeps them: their JSON text, for the most part compressed.

The text of a record is mostly the same words again and again. Told those beforehand, deflate makes a third of it,
and an idle workflow costs some hundred bytes of the server's memory.
"""

import zlib

from .protocol import StoreError

_PLAIN, _PACKED = b"0", b"1"
_LEVEL, _WINDOW, _MEMORY = 3, -12, 5
_LONGEST = 64 * 1024 * 1024

# Never to be changed: what was packed with it is unpacked with it. Another one needs another first byte. What is
# most likely comes last.
_WORDS = (
    b'"in_doubt":true,"opens":true,"leads_to":{"value":"on_doubt":"retry","on_doubt":"hold","context":{"timers":[{'
    b'"id":"due":"event":{"type":"arguments":{"result":{"content":[{"type":"text","text":"isError":false,'
    b'"structuredContent":{"_meta":{"io.mcpfusion/workflow":{"handle":"state":"allowedActions":["final":false'
    b'"claim":{"call_id":"idempotency_key":"tool":"event":"principal":"digest":"claimed_at":"lease_until":'
    b',"in_doubt":false,"opens":false,"leads_to":null}'
    b'{"scope":"","handle":"wf_","from_state":"","to_state":"","event":"","tool":"","principal":null,"call_id":"'
    b'","at":17,"outcome":"elapsed""outcome":"committed","arguments":null,"result":null}'
    b'{"scope":"","handle":"wf_","id":"","version":3,"steps":1,"state":"","snapshot":{"value":"draft","context":{},'
    b'"history":{},"timers":[]},"updated_at":17,"claim":null,"last":{"call_id":"","tool":"","digest":"","principal":'
    b'null,"committed_at":17,"result":null,"keep_until":0.0},"last":null,"due":null,"expires_at":null}'
)
# What has looked at the words already; to look again for each text would take as long as all the rest.
_PACKER = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY, zlib.Z_DEFAULT_STRATEGY, _WORDS)


def pack(text: str) -> bytes:
    """Return a text as it is kept."""
    packer = _PACKER.copy()
    return _PACKED + packer.compress(text.encode()) + packer.flush()


def keep(text: str) -> bytes:
    """Return a text as it is kept when it is not worth packing."""
    return _PLAIN + text.encode()


def unpack(kept: bytes) -> str:
    """Return the text that `pack` or `keep` was given.

    Raises:
        StoreError: What is kept is nothing that they return.
    """
    if kept[:1] not in (_PLAIN, _PACKED):
        raise StoreError("Redis store: what is kept is of another version; upgrade mcpfusion")
    try:
        if kept[:1] == _PLAIN:
            return kept[1:].decode()
        unpacker = zlib.decompressobj(_WINDOW, _WORDS)
        text = unpacker.decompress(kept[1:], _LONGEST)
        if not unpacker.eof:
            raise zlib.error
        return text.decode()
    except (zlib.error, UnicodeDecodeError):
        raise StoreError("Redis store: what is kept is damaged; restore it from a backup") from None
