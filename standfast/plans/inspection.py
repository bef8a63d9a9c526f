"""What is read inside an image: the engine, its version, and the options that its own parser declares."""

from typing import Literal, Self

from pydantic import model_validator

from standfast.plans.record import Digest, NonNegative, Record, digest_of, require


class OptionSpec(Record):
    """One option of the engine's command line, as its own parser declares it.

    ``minimum`` and ``maximum`` count values (``maximum`` None: any number); ``negations`` are the ``--no-...``
    spellings; ``flags`` is empty for a positional.
    """

    dest: str
    flags: tuple[str, ...]
    negations: tuple[str, ...] = ()
    minimum: NonNegative
    maximum: NonNegative | None
    choices: tuple[str, ...] | None = None
    type: str = "str"
    repeatable: bool = False

    @model_validator(mode="after")
    def _is_one_that_a_parser_can_declare(self) -> Self:
        require(self.maximum is None or self.maximum >= self.minimum, f"{self.dest}: maximum is below minimum")
        require(
            all(flag.startswith("-") for flag in (*self.flags, *self.negations)),
            f"{self.dest}: a flag starts with a dash",
        )
        require(bool(self.flags) or not self.negations, f"{self.dest}: a positional has no negation")
        return self


class Inspection(Record):
    """What was read inside an image; bound to the image by ``image_digest``."""

    schema_version: Literal[1] = 1
    image_digest: Digest
    engine: str
    version: str
    executable: tuple[str, ...]
    inspector: str
    options: tuple[OptionSpec, ...]

    @property
    def options_digest(self) -> str:
        """The identity of the option list."""
        return digest_of([option.model_dump(mode="json") for option in self.options])
