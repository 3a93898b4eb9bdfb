"""How keys become LMDB keys: the children of a directory lie side by side, and no key is too long.

An LMDB key has at most 511 bytes, an object key up to 1,024, a POSIX path 4,096. A short name is stored as
``origin + parent + NUL + name``. A long one goes to a table of its own under
``origin + digest(parent) + digest(name)``, where the value starts with the whole key. NUL never occurs in a key.
"""

from __future__ import annotations

import xxhash

from tiercache.errors import InvalidName, NameTooLong
from tiercache.model import Key, OriginId, join

KEY_LIMIT_BYTES = 511
LONGEST_KEY_BYTES = 0xFFFF
_digest = xxhash.xxh3_128_digest


def split(key: Key) -> tuple[Key, bytes]:
    """Parent and name such that ``join(parent, name) == key``.

    ``/x`` is the odd one: its parent would be the root, where ``x`` lives already, so its name keeps the slash.
    """
    parent, slash, name = key.rpartition(b"/")
    if slash and not parent:
        return b"", key
    return parent, name


def short_name(origin: OriginId, key: Key) -> bytes:
    """Where ``key`` is stored among the short names; empty if it is a long one. InvalidName for a NUL."""
    if b"\0" in key:
        raise InvalidName(f"{key!r}: a key holds no NUL byte")
    parent, slash, name = key.rpartition(b"/")
    if slash and not parent:
        name = key
    stored = origin + parent + b"\0" + name
    return stored if len(stored) <= KEY_LIMIT_BYTES else b""


def long_name(origin: OriginId, key: Key) -> bytes:
    """Where ``key`` is stored in the table of long names. NameTooLong over 65,535 bytes."""
    if len(key) > LONGEST_KEY_BYTES:
        raise NameTooLong(f"a key of {len(key)} bytes is over the limit of {LONGEST_KEY_BYTES}")
    parent, name = split(key)
    return origin + _digest(parent) + _digest(name)


def short_children(origin: OriginId, directory: Key) -> bytes:
    """Common prefix of the short names of ``directory``'s children."""
    if b"\0" in directory:
        raise InvalidName(f"{directory!r}: a key holds no NUL byte")
    return origin + directory + b"\0"


def long_children(origin: OriginId, directory: Key) -> bytes:
    """Common prefix of the long names of ``directory``'s children."""
    return origin + _digest(directory)


def key_of_short(stored: bytes) -> Key:
    """The key that a short stored name stands for."""
    parent, _, name = stored[8:].partition(b"\0")
    return join(parent, name)


def listing_key(origin: OriginId, directory: Key) -> bytes:
    """Where the listing mark of ``directory`` is stored; a long one after a NUL, as a digest."""
    stored = origin + directory
    return stored if len(stored) <= KEY_LIMIT_BYTES else origin + b"\0" + _digest(directory)


def inode_prefix(inode: int) -> bytes:
    """Common prefix of all names of ``inode``."""
    return inode.to_bytes(8, "big")


def inode_key(inode: int, origin: OriginId, key: Key) -> bytes:
    """Where one name of ``inode`` is stored: hard links give an inode several."""
    return inode.to_bytes(8, "big") + xxhash.xxh3_64_digest(origin + key)
