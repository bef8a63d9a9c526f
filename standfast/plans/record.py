"""What every record of this project is made of: a frozen model, its one JSON text, and its digest."""

import hashlib
import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


def require(holds: bool, otherwise: str) -> None:
    """Refuse a record that is inconsistent: ValueError with the reason."""
    if not holds:
        raise ValueError(otherwise)


class Record(BaseModel):
    """A frozen, strict record without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def canonical_json(value: Any) -> bytes:
    """The one JSON text of a value: sorted keys, no spaces, UTF-8. Digests are taken over it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_of(value: Any) -> str:
    """SHA-256 of `canonical_json`, in hexadecimal."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
