"""The API key that the embedded stack makes for the tools of its own host."""

import hashlib
from typing import Protocol

from standfast.home import Home
from standfast.stack.record import api_key_path, read_api_key, write_private

KEY_LABEL = "embedded stack"


class KeyStore(Protocol):
    """What of the registry is used here."""

    async def active_key_hashes(self) -> set[str]: ...

    async def create_api_key(self, label: str) -> "tuple[object, str]": ...


async def ensure_api_key(home: Home, registry: KeyStore) -> tuple[str, bool]:
    """The key in ``<home>/run/api-key``, and whether it is new.

    A key that the registry does not know any more is replaced.
    """
    key = read_api_key(home)
    if key is not None and hashlib.sha256(key.encode()).hexdigest() in await registry.active_key_hashes():
        return key, False
    _, key = await registry.create_api_key(KEY_LABEL)
    write_private(api_key_path(home), key + "\n")
    return key, True
