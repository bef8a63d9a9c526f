"""Deterministic answers: which text, cut into which tokens, and why it ended."""

from dataclasses import dataclass
from typing import Any

from vllm.scripted.script import Behaviour

#: Answers for prompts that contain a phrase.
KNOWN = {"France": ("The capital of France is Paris.", " Paris.")}


@dataclass(frozen=True)
class Answer:
    """A finished generation. ``tokens`` joined are the text; ``finish_reason`` is ``"stop"`` or ``"length"``."""

    tokens: tuple[str, ...]
    finish_reason: str
    stop_reason: str | None
    prompt_tokens: int

    @property
    def text(self) -> str:
        return "".join(self.tokens)


def answer(behaviour: Behaviour, prompt: str, request: dict[str, Any], *, chat: bool, limit: int) -> Answer:
    """What the engine answers: at most ``limit`` tokens, cut before the first stop string."""
    tokens = tokenize(_text(behaviour, prompt, chat=chat))
    if request.get("ignore_eos"):
        tokens += [f" more{number}" for number in range(len(tokens), limit)]
    finish, stopped_by = ("length" if len(tokens) > limit else "stop"), None
    tokens = tokens[:limit]
    stops = request.get("stop") or []
    if not behaviour.ignores_stop:
        text = "".join(tokens)
        found = [
            (text.find(stop), stop) for stop in ([stops] if isinstance(stops, str) else stops) if stop and stop in text
        ]
        if found:
            end, stopped_by = min(found)
            tokens, finish = tokenize(text[:end]), "stop"
    return Answer(tuple(tokens), finish, stopped_by, len(tokenize(prompt)))


def tokenize(text: str) -> list[str]:
    """Words with the space before them; joined, they are the text again."""
    tokens: list[str] = []
    for index, word in enumerate(text.split(" ")):
        token = word if index == 0 else f" {word}"
        if token:
            tokens.append(token)
    return tokens


def _text(behaviour: Behaviour, prompt: str, *, chat: bool) -> str:
    if behaviour.answer_tokens is not None:
        return " ".join(f"w{number}" for number in range(behaviour.answer_tokens))
    if behaviour.answer is not None:
        return behaviour.answer
    for phrase, (as_chat, as_completion) in KNOWN.items():
        if phrase in prompt:
            return as_chat if chat or prompt.rstrip().endswith("?") else as_completion
    return f"You said: {prompt.strip()}"
