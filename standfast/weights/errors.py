"""Why weights could not be pinned or fetched."""

from typing import Literal

Kind = Literal["permanent", "transient"]


class WeightsError(Exception):
    """``permanent``: the source, a right or this machine must change first; ``transient``: trying again may help."""

    def __init__(self, message: str, kind: Kind, help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.kind: Kind = kind
        self.help = help
