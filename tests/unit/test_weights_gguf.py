"""What the conversion of a GGUF file writes, as far as it needs no package."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from standfast.weights.gguf_to_safetensors import (
    Refused,
    model_config,
    tensor_name,
    tokenizer,
    tokenizer_config,
    write_safetensors,
)
from tests.support.tiny_gguf import METADATA, TOKENS


def test_tensors_get_their_names_in_the_converted_model() -> None:
    assert tensor_name("token_embd.weight") == "model.embed_tokens.weight"
    assert tensor_name("blk.12.attn_q.weight") == "model.layers.12.self_attn.q_proj.weight"
    assert tensor_name("blk.0.ffn_down.weight") == "model.layers.0.mlp.down_proj.weight"


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.ffn_gate_inp.weight", "v.patch_embd.weight"])
def test_an_unknown_tensor_is_refused_by_name(name: str) -> None:
    with pytest.raises(Refused, match=name):
        tensor_name(name)


def test_the_shape_of_the_model_is_kept() -> None:
    config = model_config(METADATA, tied=True)
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]) == (8, 2, 1)
    assert (config["head_dim"], config["vocab_size"], config["tie_word_embeddings"]) == (4, len(TOKENS), True)


def test_a_small_number_loses_the_noise_of_its_32_bits() -> None:
    single = struct.unpack("<f", struct.pack("<f", 1e-5))[0]
    noisy = {**METADATA, "llama.attention.layer_norm_rms_epsilon": single}
    assert model_config(noisy, tied=True)["rms_norm_eps"] == 1e-5


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"general.architecture": "gemma3"}, "gemma3"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type"),
        ({"llama.expert_count": 8}, "llama.expert_count"),
    ],
)
def test_a_model_that_is_not_known_is_refused(change: dict[str, Any], word: str) -> None:
    with pytest.raises(Refused, match=word):
        model_config({**METADATA, **change}, tied=True)


@pytest.mark.parametrize("change", [{"tokenizer.ggml.model": "llama"}, {"tokenizer.ggml.pre": "tekken"}])
def test_a_tokenizer_that_is_not_known_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="tokenizer"):
        tokenizer({**METADATA, **change})


def test_the_token_that_ends_an_answer_is_the_one_that_the_file_declares() -> None:
    told = tokenizer_config(METADATA)
    assert (told["bos_token"], told["eos_token"], told["pad_token"]) == ("<|im_start|>", "<|im_end|>", "<|im_end|>")
    assert model_config(METADATA, tied=True)["eos_token_id"] == 2


def test_the_chat_template_is_kept() -> None:
    assert tokenizer_config(METADATA)["chat_template"] == "{{ messages }}"


def test_control_tokens_are_special_and_the_others_are_not() -> None:
    added = tokenizer(METADATA)["added_tokens"]
    assert [(token["id"], token["content"], token["special"]) for token in added] == [
        (number, TOKENS[number], True) for number in range(3)
    ]


def test_digits_stand_alone_where_the_file_says_so() -> None:
    told = tokenizer(METADATA)
    assert told["pre_tokenizer"]["pretokenizers"][0] == {"type": "Digits", "individual_digits": True}
    assert told["model"]["merges"] == [["a", "b"]]


def test_tensors_are_written_in_the_safetensors_format(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": [2, 2], "b": [1]}, iter([b"12345678", b"90"]))
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert (8 + length) % 8 == 0
    assert header["a"] == {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}
    assert content[8 + length :][slice(*header["b"]["data_offsets"])] == b"90"


def test_tensors_of_other_sizes_than_declared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused):
        write_safetensors(tmp_path / "model.safetensors", {"a": [2]}, iter([b"12"]))
