#!/usr/bin/env python3
"""Writes the image encoder (mmproj) of a real model's shape with random weights, for a model of `make_model.py`.

make_model.py qwen3-vl-8b q4_k_m model.gguf --tokenizer QWEN.gguf
make_encoder.py qwen3-vl-8b mmproj-model.gguf
"""

import argparse

from make_model import Weights, save
from model_shapes import ENCODERS, SHAPES

import gguf
from gguf import GGMLQuantizationType as Type


def write(name: str, path: str) -> None:
    """Writes the file: matrices in F16, norms and biases in F32."""
    encoder, text = ENCODERS[name], SHAPES[name]
    weights = Weights()
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "qwen3vl_merger")
    writer.add_bool("clip.use_gelu", True)
    for key, value in (
        ("image_size", encoder.table * encoder.patch),
        ("patch_size", encoder.patch),
        ("embedding_length", encoder.hidden),
        ("feed_forward_length", encoder.ffn),
        ("projection_dim", text.hidden),
        ("block_count", encoder.layers),
        ("attention.head_count", encoder.heads),
        ("spatial_merge_size", encoder.merge),
    ):
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for key in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{key}", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.is_deepstack_layers", [layer in text.deepstack for layer in range(encoder.layers)])

    def norm(name: str, size: int) -> None:
        writer.add_tensor(f"{name}.weight", weights.vector(size, 1.0))
        writer.add_tensor(f"{name}.bias", weights.vector(size, 0.0))

    def linear(name: str, rows: int, cols: int) -> None:
        writer.add_tensor(f"{name}.weight", weights.matrix(rows, cols, Type.F16))
        writer.add_tensor(f"{name}.bias", weights.vector(rows, 0.0))

    hidden, joined = encoder.hidden, encoder.hidden * encoder.merge**2
    for frame in ("weight", "weight.1"):
        patch = weights.matrix(hidden, 3 * encoder.patch**2, Type.F16)
        writer.add_tensor(f"v.patch_embd.{frame}", patch.reshape(hidden, 3, encoder.patch, encoder.patch))
    writer.add_tensor("v.patch_embd.bias", weights.vector(hidden, 0.0))
    writer.add_tensor("v.position_embd.weight", weights.matrix(encoder.table**2, hidden, Type.F32))
    for layer in range(encoder.layers):
        name = f"v.blk.{layer}"
        norm(f"{name}.ln1", hidden)
        linear(f"{name}.attn_qkv", 3 * hidden, hidden)
        linear(f"{name}.attn_out", hidden, hidden)
        norm(f"{name}.ln2", hidden)
        linear(f"{name}.ffn_up", encoder.ffn, hidden)
        linear(f"{name}.ffn_down", hidden, encoder.ffn)
    norm("v.post_ln", hidden)
    linear("mm.0", joined, joined)
    linear("mm.2", text.hidden, joined)
    for layer in text.deepstack:
        norm(f"v.deepstack.{layer}.norm", joined)
        linear(f"v.deepstack.{layer}.fc1", joined, joined)
        linear(f"v.deepstack.{layer}.fc2", text.hidden, joined)
    save(writer)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=ENCODERS)
    parser.add_argument("out")
    args = parser.parse_args()
    write(args.shape, args.out)


if __name__ == "__main__":
    main()
