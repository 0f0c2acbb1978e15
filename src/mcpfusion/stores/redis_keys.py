"""Where in Redis a workflow is: its bucket, its keys, and its name in an index."""

from binascii import crc_hqx
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from zlib import crc32

INDEXES = ("names", "found_by", "due", "claimed", "expires")
"""The indexes over a bucket's workflows: by (scope, handle), by (handle, scope), and those of the marks."""

_SLOTS = 16384


def name_of(first: str, second: str) -> bytes:
    """Return two texts as one name; names are in the order of (first, second), byte by byte.

    The end of the first is a NUL, and a NUL within it is followed by a byte that no UTF-8 has.
    """
    return first.encode().replace(b"\0", b"\0\xff") + b"\0" + second.encode()


def texts_of(name: bytes) -> tuple[str, str]:
    """Return the two texts of a name."""
    end = name.index(b"\0")
    while name[end + 1 : end + 2] == b"\xff":
        end = name.index(b"\0", end + 2)
    return name[:end].replace(b"\0\xff", b"\0").decode(), name[end + 1 :].decode()


@dataclass(frozen=True, slots=True)
class Bucket:
    """The keys that a script may use together: those of some of the workflows and of the indexes over them.

    Attributes:
        prefix: Of all its keys, with the hash tag that puts them into one slot.
        indexes: Those of all `INDEXES`.
    """

    prefix: bytes
    indexes: tuple[bytes, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "indexes", tuple(self.index(each) for each in INDEXES))

    def workflow(self, name: bytes) -> bytes:
        """The workflow of (scope, handle)."""
        return self.prefix + b"w" + name

    def states(self, scope: str) -> bytes:
        """How many of the scope's workflows are in each of the states in use."""
        return self.prefix + b"s" + scope.encode()

    def index(self, what: str) -> bytes:
        """One of the `INDEXES`."""
        return self.prefix + what.encode()


def buckets(prefix: bytes, number: int) -> Sequence[Bucket]:
    """Return so many buckets, spread evenly over the slots of a Cluster."""
    width = _SLOTS // number
    tags: dict[int, bytes] = {}
    for candidate in count():
        if len(tags) == number:
            break
        tag = str(candidate).encode()
        tags.setdefault(crc_hqx(tag, 0) % _SLOTS // width, tag)
    return [Bucket(prefix + b"{" + tags[stripe] + b"}") for stripe in sorted(tags)]


def bucket_of(name: bytes, among: Sequence[Bucket]) -> Bucket:
    """Return the bucket of the workflow of this name."""
    return among[crc32(name) % len(among)]
