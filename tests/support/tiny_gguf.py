"""A tiny GGUF file, written by hand: a llama with one layer and a byte-level tokenizer.

Source: the GGUF specification, version 3.
"""

import math
import struct
from collections.abc import Mapping
from typing import Any

_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_ALIGNMENT = 32

TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab", "Ġ"]
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 8,
    "llama.feed_forward_length": 4,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": 4,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 3, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.chat_template": "{{ messages }}",
}
#: Rows and columns; a vector has one number.
SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (len(TOKENS), 8),
    "output_norm.weight": (8,),
    "blk.0.attn_norm.weight": (8,),
    "blk.0.attn_q.weight": (8, 8),
    "blk.0.attn_k.weight": (4, 8),
    "blk.0.attn_v.weight": (4, 8),
    "blk.0.attn_output.weight": (8, 8),
    "blk.0.ffn_norm.weight": (8,),
    "blk.0.ffn_gate.weight": (4, 8),
    "blk.0.ffn_up.weight": (4, 8),
    "blk.0.ffn_down.weight": (8, 4),
}


def values_of(name: str) -> list[float]:
    """The numbers of one tensor, row by row: 0, 1, 2, ..., which bfloat16 holds exactly."""
    return [float(number) for number in range(math.prod(SHAPES[name]))]


def tiny_gguf(metadata: Mapping[str, Any] = METADATA) -> bytes:
    """The file, with 32-bit floats."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(SHAPES), len(metadata))
    head += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    data = b""
    for name, shape in SHAPES.items():
        head += _text(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", 0, len(data))
        values = values_of(name)
        data += _padded(struct.pack(f"<{len(values)}f", *values))
    return _padded(head) + data


def _value(value: Any) -> bytes:
    if isinstance(value, list):
        kind, encoded = (_STRING, [_text(one) for one in value]) if isinstance(value[0], str) else _integers(value)
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + b"".join(encoded)
    if isinstance(value, bool):
        return struct.pack("<IB", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    return struct.pack("<I", _STRING) + _text(value)


def _integers(values: list[int]) -> tuple[int, list[bytes]]:
    return _INT32, [struct.pack("<i", value) for value in values]


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _padded(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % _ALIGNMENT)
