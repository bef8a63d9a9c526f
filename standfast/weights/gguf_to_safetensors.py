"""Converts a GGUF file to the directory that engines read. Runs as a script beside the packages that it needs.

``python -P gguf_to_safetensors.py PACKAGES GGUF OUTPUT`` puts the directory PACKAGES (with ``gguf`` and ``numpy``)
on the import path and writes ``model.safetensors`` (bfloat16), ``config.json``, ``generation_config.json``,
``tokenizer.json`` and ``tokenizer_config.json`` into OUTPUT.

It knows the ``llama`` architecture with byte-level BPE. The tensor layout is that of llama.cpp's converter read
backwards: rows of the query and key projections were interleaved for its rotary embedding and are put back here.
What it does not know it refuses (exit code 3, the reason on the last line), since a model that is nearly right is
worse than none.
"""

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

REFUSED = 3

_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
#: How llama.cpp's names for pre-tokenizers read in the ``tokenizers`` format.
_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt-2": _BYTE_LEVEL,
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL]},
}
_CONTROL, _USER_DEFINED = 3, 4


class Refused(Exception):
    """The file holds something that this converter does not know."""


def tensor_name(name: str) -> str:
    """The name that a tensor of the GGUF file has in the converted model."""
    if name in _OUTER:
        return _OUTER[name]
    block, _, rest = name.partition(".")
    layer, _, kind = rest.partition(".")
    if block != "blk" or kind not in _LAYER:
        raise Refused(f"the tensor {name!r} is not known")
    return f"model.layers.{layer}.{_LAYER[kind]}"


def model_config(fields: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    """``config.json`` from the metadata of the file."""
    architecture = fields["general.architecture"]
    if architecture != "llama":
        raise Refused(f"the architecture {architecture!r} is not known")
    heads = fields["llama.attention.head_count"]
    scaling = [name for name in fields if name.startswith("llama.rope.scaling.")]
    if scaling or "llama.expert_count" in fields:
        raise Refused(f"the setting {(scaling or ['llama.expert_count'])[0]!r} is not known")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get("llama.attention.head_count_kv", heads),
        "head_dim": fields.get("llama.rope.dimension_count", fields["llama.embedding_length"] // heads),
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": fields.get("llama.rope.freq_base", 10000.0),
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        **_special_ids(fields),
    }


def _special_ids(fields: Mapping[str, Any]) -> dict[str, int]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {ours: fields.get(f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in names.items()}
    return {name: token for name, token in found.items() if token is not None}


def tokenizer(fields: Mapping[str, Any]) -> dict[str, Any]:
    """``tokenizer.json`` from the metadata of the file."""
    kind, pre = fields["tokenizer.ggml.model"], fields.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise Refused(f"the tokenizer {kind!r} with pre-tokenizer {pre!r} is not known")
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    added = [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind_of == _CONTROL,
        }
        for number, (token, kind_of) in enumerate(zip(tokens, types, strict=True))
        if kind_of in (_CONTROL, _USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": {**_BYTE_LEVEL, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """``tokenizer_config.json``: the special tokens as the file declares them, and its chat template."""
    tokens = fields["tokenizer.ggml.tokens"]
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    special = {
        ours: tokens[fields[f"tokenizer.ggml.{theirs}_token_id"]]
        for ours, theirs in names.items()
        if f"tokenizer.ggml.{theirs}_token_id" in fields
    }
    template = {"chat_template": fields["tokenizer.chat_template"]} if "tokenizer.chat_template" in fields else {}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "add_bos_token": fields.get("tokenizer.ggml.add_bos_token", False),
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
        **special,
        **template,
    }


def convert(source: Path, output: Path, *, gguf: Any, numpy: Any, say: Callable[[str], None]) -> None:
    """Convert the GGUF file ``source`` into the directory ``output``. Raises `Refused`."""
    say("reading the GGUF file")
    reader = gguf.GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    names = {tensor.name: tensor_name(tensor.name) for tensor in reader.tensors}
    config = model_config(fields, tied="output.weight" not in names)
    texts = {
        "config.json": config,
        "generation_config.json": _special_ids(fields),
        "tokenizer.json": tokenizer(fields),
        "tokenizer_config.json": tokenizer_config(fields),
    }
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}

    def tensors() -> Iterator[bytes]:
        for number, tensor in enumerate(reader.tensors):
            if number % 20 == 0:
                say(f"converting tensor {number + 1} of {len(names)}")
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            kind = tensor.name.split(".")[-2]
            if kind in heads:
                rows, columns = values.shape
                split = values.reshape(heads[kind], rows // heads[kind] // 2, 2, columns)
                values = split.swapaxes(1, 2).reshape(rows, columns)
            yield _bfloat16(values, numpy)

    output.mkdir(parents=True)
    shapes = {names[tensor.name]: [int(size) for size in reversed(tensor.shape)] for tensor in reader.tensors}
    write_safetensors(output / "model.safetensors", shapes, tensors())
    for name, content in texts.items():
        (output / name).write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")


def _bfloat16(values: Any, numpy: Any) -> bytes:
    """The upper halves of 32-bit floats, rounded to the nearest even."""
    bits = numpy.ascontiguousarray(values, dtype=numpy.float32).view(numpy.uint32)
    rounded = (bits + (((bits >> 16) & 1) + numpy.uint32(0x7FFF))) >> 16
    content: bytes = rounded.astype("<u2").tobytes()
    return content


def write_safetensors(path: Path, shapes: Mapping[str, list[int]], tensors: Iterator[bytes]) -> None:
    """Write bfloat16 tensors, given in the order of ``shapes``, in the safetensors format."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for content in tensors:
            stream.write(content)
        if stream.tell() != 8 + len(text) + offset:
            raise Refused("the tensors do not have the sizes that the file declares")


def main(packages: str, source: str, output: str) -> int:
    """Run as a script; see the module's text."""
    sys.path.insert(0, packages)
    try:
        convert(
            Path(source),
            Path(output),
            gguf=importlib.import_module("gguf"),
            numpy=importlib.import_module("numpy"),
            say=lambda sentence: print(sentence, flush=True),
        )
    except Refused as error:
        print(error, flush=True)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
