#!/usr/bin/env python3
"""Writes a GGUF model of a real model's shape with random weights.

Shapes, tensor types and file layout are the real model's; the weights mean nothing. Good for measuring speed and
memory. Needs numpy and gguf.

    make_model.py llama-3-8b q4_k_m out.gguf
"""

import argparse

import numpy as np
from model_shapes import (
    GRANITE,
    INTERVAL,
    MAMBA_TAPS,
    NOT_ROTATED,
    ROTATED,
    SHAPES,
    SHORT_TAPS,
    SOFTCAP,
    STATE,
    TAPS,
    Shape,
)

import gguf
from gguf import GGMLQuantizationType as Type

# A block's parts, in order: a number of random bytes, the typical value of an f16 scale, or bytes. The scales give
# weights of about STD.
STD = 0.02
BLOCKS: dict[Type, tuple[int | float | bytes, ...]] = {
    Type.Q4_0: (STD / 4.6, 16),
    Type.Q4_1: (STD / 4.6, -STD / 4.6 * 7.5, 16),
    Type.Q5_0: (STD / 9.2, 20),
    Type.Q5_1: (STD / 9.2, -STD / 9.2 * 15.5, 20),
    Type.Q8_0: (STD / 74, 32),
    Type.Q2_K: (16, 64, STD / 9, STD / 6),
    Type.Q3_K: (32, 64, 12, STD / 42),
    Type.Q4_K: (STD / 150, STD / 20, 12, 128),
    Type.Q5_K: (STD / 300, STD / 20, 12, 32, 128),
    Type.Q6_K: (128, 64, 16, STD / (18 * 73)),
    Type.IQ1_S: (STD / 6, 48),
    # Four words whose upper nibbles are the scale's, 2^-9, and the rest scales of nine.
    Type.IQ1_M: (48, b"\x24\x09\x24\x09\x24\x89\x24\x19"),
    Type.IQ2_XXS: (STD / 42, 64),
    Type.IQ2_XS: (STD / 42, 72),
    Type.IQ2_S: (STD / 42, 80),
    Type.IQ3_XXS: (STD / 120, 96),
    Type.IQ3_S: (STD / 144, 108),
    Type.IQ4_NL: (STD / 65, 16),
    Type.IQ4_XS: (STD / 1100, 134),
    Type.TQ1_0: (52, STD / 0.8),
    Type.TQ2_0: (64, STD / 1.2),
    # An exponent of two, biased by 127: 2^-7, with elements of about 3.
    Type.MXFP4: (b"\x78", 16),
    # Scales of 2^-7 as E4M3, with elements of about 3.
    Type.NVFP4: (b"\x04\x04\x04\x04", 32),
    Type.Q1_0: (STD, 16),
}
# Types that llama.cpp falls back to for rows that do not divide into super-blocks.
FALLBACK = {
    Type.Q2_K: Type.Q4_0,
    Type.Q3_K: Type.Q4_0,
    Type.Q4_K: Type.Q5_0,
    Type.Q5_K: Type.Q5_1,
    Type.Q6_K: Type.Q8_0,
}
POOL = 1 << 16
# Tokens after which the texts of a model repeat whose output projection is made of its embeddings.
CIRCLE = 64
# Matrices by which a layer adds to what the layers before it have made.
OUTPUTS = ("attn_output", "ssm_out", "ffn_down")


class Weights:
    """Random tensors from one seed."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)

    def blocks(self, kind: Type, count: int) -> np.ndarray:
        """Quantised blocks, no two alike, `[count, bytes]`."""
        parts = []
        for part in BLOCKS[kind]:
            if isinstance(part, int):
                parts.append(self.random.integers(0, 256, (count, part), dtype=np.uint8))
            elif isinstance(part, bytes):
                parts.append(np.tile(np.frombuffer(part, np.uint8), (count, 1)))
            else:
                scale = (part * self.random.uniform(0.7, 1.3, count)).astype(np.float16)
                parts.append(scale.view(np.uint8).reshape(count, 2))
        return np.hstack(parts)

    def matrix(self, rows: int, cols: int, kind: Type) -> np.ndarray:
        """A matrix of a type, drawn from a pool of blocks: fast to make, as hard to cache as real data."""
        if kind in (Type.F16, Type.F32):
            values = self.random.standard_normal(min(rows * cols, 1 << 24), dtype=np.float32) * STD
            values = values.astype(np.float16 if kind == Type.F16 else np.float32)
            return np.resize(values, (rows, cols))
        if kind == Type.BF16:
            values = self.random.standard_normal(min(rows * cols, 1 << 24), dtype=np.float32) * STD
            return np.resize((values.view(np.uint32) >> 16).astype(np.uint16), (rows, cols)).view(np.uint8)
        per_block, size = gguf.GGML_QUANT_SIZES[kind]
        count = rows * cols // per_block
        pool = self.blocks(kind, min(count, POOL))
        if count > len(pool):
            pool = pool[self.random.integers(0, len(pool), count)]
        return pool.reshape(rows, cols // per_block * size)

    def vector(self, size: int, mean: float) -> np.ndarray:
        """A bias or a norm."""
        return (mean + STD * self.random.standard_normal(size)).astype(np.float32)


def tensor_type(recipe: str, name: str, layer: int, layers: int, cols: int) -> Type:
    """The type that llama.cpp's quantiser gives a tensor (its main rules)."""
    if recipe == "mxfp4":
        kind = Type.MXFP4 if name.startswith("ffn_") else Type.Q8_0
    elif recipe == "q4_k_m":
        edge = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
        better = name == "output" or (edge and name in ("attn_v", "ffn_down"))
        kind = Type.Q6_K if better else Type.Q5_K if name == "attn_qkv" else Type.Q4_K
    else:
        kind = Type[recipe.upper()]
        if name == "output" and kind not in (Type.F32, Type.F16, Type.BF16, Type.Q8_0):
            kind = Type.Q6_K
    return FALLBACK.get(kind, kind) if cols % gguf.GGML_QUANT_SIZES[kind][0] else kind


def add_tokenizer(writer: gguf.GGUFWriter, source: str, vocab: int) -> None:
    """Copies the tokenizer and the chat template of another file; what the vocabulary has beyond it is unused."""
    for name, field in gguf.GGUFReader(source).fields.items():
        kind, *elements = field.types
        value = field.contents()
        if name == "tokenizer.ggml.tokens":
            value += [f"<unused {i}>" for i in range(len(value), vocab)]
        elif name == "tokenizer.ggml.token_type":
            value += [gguf.TokenType.UNUSED] * (vocab - len(value))
        if name.startswith("tokenizer."):
            writer.add_key_value(name, value, kind, elements[-1] if elements else None)


def previous_tokens(vocab: int) -> np.ndarray:
    """The token before each, where tokens follow each other in circles of `CIRCLE`."""
    tokens = np.arange(vocab)
    start = tokens // CIRCLE * CIRCLE
    return start + (tokens - start - 1) % np.minimum(CIRCLE, vocab - start)


def write(shape: Shape, recipe: str, path: str, tokenizer: str | None, *, circles: bool, mtp: bool) -> None:
    """Writes the model; with `circles` of layers that add nothing, with `mtp` also with a block that drafts correctly.

    Texts then go in circles, and by far: the logit of the next token is that of an embedding by itself. They are the
    same circles in models of the same vocabulary.
    """
    weights = Weights()
    tied = shape.tied and not circles
    writer = gguf.GGUFWriter(path, shape.arch)
    if tokenizer is None:
        writer.add_tokenizer_model("none")
    else:
        add_tokenizer(writer, tokenizer, shape.vocab)
    writer.add_vocab_size(shape.vocab)
    writer.add_context_length(shape.context)
    writer.add_block_count(shape.layers + mtp)
    if mtp:
        writer.add_key_value(f"{shape.arch}.nextn_predict_layers", 1, gguf.GGUFValueType.UINT32)
    writer.add_embedding_length(shape.hidden)
    # Layers that are one operation: a feed-forward is a layer of its own.
    alone = "-" in shape.layout
    if alone:
        writer.add_feed_forward_length([shape.ffn if kind == "-" else 0 for kind in shape.layout])
    elif shape.ffn:
        writer.add_feed_forward_length(shape.ffn)
    for key, value in shape.keys:
        kind = {int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32, bool: gguf.GGUFValueType.BOOL}
        writer.add_key_value(f"{shape.arch}.{key}", value, kind[type(value)])
    writer.add_head_count(shape.heads)
    of_layers = [shape.kv_heads if kind in "*+" else 0 for kind in shape.layout]
    if shape.windows_between:
        of_layers = [shape.kv_of(layer)[0] for layer in range(shape.layers)]
        writer.add_sliding_window_pattern([int(layer % shape.windows_between[0] > 0) for layer in range(shape.layers)])
    if shape.global_heads:
        kv_of = [shape.kv_of(layer) for layer in range(shape.layers)]
        of_layers = [heads for heads, _ in kv_of]
        writer.add_sliding_window_pattern([size == shape.head_dim for _, size in kv_of])
        for key in ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"):
            writer.add_uint32(f"{shape.arch}.{key}", shape.head_dim)
        writer.add_float32(f"{shape.arch}.rope.freq_base_swa", 1e4)
        writer.add_final_logit_softcapping(SOFTCAP)
        # This one has neither, and says so: llama.cpp wants the first of the two.
        writer.add_embedding_length_per_layer_input(0)
        writer.add_shared_kv_layers(0)
        pairs = shape.global_heads[1] // 2
        factors = np.where(np.arange(pairs) < pairs // 4, 1.0, NOT_ROTATED)
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    head_dim = shape.global_heads[1] if shape.global_heads else shape.head_dim
    writer.add_head_count_kv(of_layers or shape.kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(shape.latent[1] if shape.latent else shape.value_dim or head_dim)
    if shape.latent:
        q_rank, rank, plain, rotated, value = shape.latent
        if q_rank:
            writer.add_q_lora_rank(q_rank)
        writer.add_kv_lora_rank(rank)
        writer.add_key_length_mla(plain + rotated)
        writer.add_value_length_mla(value)
        writer.add_rope_dimension_count(rotated)
        writer.add_leading_dense_block_count(shape.dense_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(True)
    else:
        writer.add_rope_dimension_count(ROTATED if shape.delta_heads else shape.rotated or head_dim)
    if shape.sections:
        writer.add_rope_dimension_sections([*shape.sections, 0])
        writer.add_uint32(f"{shape.arch}.n_deepstack_layers", len(shape.deepstack))
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-5)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.experts_used)
        writer.add_expert_feed_forward_length(shape.expert_ffn)
    if shape.window:
        writer.add_sliding_window(shape.window)
    if shape.shared_ffn and shape.arch != "llama4":
        writer.add_expert_shared_feed_forward_length(shape.shared_ffn)
    if shape.mamba:
        heads, size, groups, state = shape.mamba
        writer.add_ssm_conv_kernel(MAMBA_TAPS)
        writer.add_ssm_state_size(state)
        writer.add_ssm_group_count(groups)
        writer.add_ssm_time_step_rank(heads)
        writer.add_ssm_inner_size(heads * size)
        if shape.arch != "falcon-h1":
            writer.add_rope_scaling_finetuned(False)
    if shape.arch == "granitehybrid":
        writer.add_embedding_scale(GRANITE["embedding"])
        writer.add_residual_scale(GRANITE["residual"])
        writer.add_attention_scale(GRANITE["attention"])
        writer.add_logit_scale(GRANITE["logit"])
    if "C" in shape.layout:
        writer.add_shortconv_l_cache(SHORT_TAPS)
    if shape.delta_heads:
        writer.add_rope_dimension_sections([11, 11, 10, 0])
        writer.add_ssm_conv_kernel(TAPS)
        writer.add_ssm_state_size(STATE)
        writer.add_ssm_group_count(shape.delta_heads[0])
        writer.add_ssm_time_step_rank(shape.delta_heads[1])
        writer.add_ssm_inner_size(shape.delta_heads[1] * STATE)
        writer.add_full_attention_interval(INTERVAL)
        if shape.experts:
            writer.add_expert_shared_feed_forward_length(shape.expert_ffn)

    def matrix(tensor: str, name: str, layer: int, rows: int, cols: int, experts: int = 0) -> np.ndarray:
        kind = tensor_type(recipe, name, layer, shape.layers, cols)
        data = weights.matrix(max(experts, 1) * rows, cols, kind)
        data = data.reshape(experts, rows, -1) if experts else data
        if circles and name in OUTPUTS:
            # Zero bytes are zeros in every type. What follows a token then depends on that token alone.
            data = np.zeros_like(data)
        writer.add_tensor(f"{tensor}.weight", data, raw_dtype=kind)
        if shape.biases and name not in ("token_embd", "output"):
            bias = weights.vector(max(experts, 1) * rows, 0.0)
            writer.add_tensor(f"{tensor}.bias", bias.reshape(experts, rows) if experts else bias)
        return data

    def attention(layer: str, i: int) -> None:
        kv_heads, size = shape.kv_of(i)
        q, k, v = shape.heads * size, kv_heads * size, kv_heads * (shape.value_dim or size)
        # Qwen 3.5 has a gate behind each head of the queries.
        q_rows = 2 * q if shape.delta_heads else q
        apart = (("attn_q", q_rows), ("attn_k", k), ("attn_v", v))
        for name, rows in (("attn_qkv", q_rows + k + v),) if shape.fused_qkv else apart:
            if name == "attn_v" and (kv_heads, size) == shape.global_heads:
                continue
            matrix(f"{layer}.{name}", name, i, rows, shape.hidden)
            if shape.qkv_bias:
                writer.add_tensor(f"{layer}.{name}.bias", weights.vector(rows, 0.0))
        if shape.qk_norm:
            for name in ("attn_q_norm", "attn_k_norm"):
                writer.add_tensor(f"{layer}.{name}.weight", weights.vector(size, 1.0))
        matrix(f"{layer}.attn_output", "attn_output", i, shape.hidden, shape.heads * (shape.value_dim or size))

    def latent_attention(layer: str, i: int, q_rank: int, rank: int, plain: int, rotated: int, value: int) -> None:
        q_rows = shape.heads * (plain + rotated)
        if q_rank:
            matrix(f"{layer}.attn_q_a", "attn_q_a", i, q_rank, shape.hidden)
            writer.add_tensor(f"{layer}.attn_q_a_norm.weight", weights.vector(q_rank, 1.0))
            matrix(f"{layer}.attn_q_b", "attn_q_b", i, q_rows, q_rank)
        else:
            matrix(f"{layer}.attn_q", "attn_q", i, q_rows, shape.hidden)
        matrix(f"{layer}.attn_kv_a_mqa", "attn_kv_a_mqa", i, rank + rotated, shape.hidden)
        writer.add_tensor(f"{layer}.attn_kv_a_norm.weight", weights.vector(rank, 1.0))
        matrix(f"{layer}.attn_k_b", "attn_k_b", i, rank, plain, shape.heads)
        matrix(f"{layer}.attn_v_b", "attn_v_b", i, value, rank, shape.heads)
        matrix(f"{layer}.attn_output", "attn_output", i, shape.hidden, shape.heads * value)

    def delta_net(layer: str, i: int, key_heads: int, value_heads: int) -> None:
        inner = value_heads * STATE
        channels = 2 * key_heads * STATE + inner
        matrix(f"{layer}.attn_qkv", "attn_qkv", i, channels, shape.hidden)
        matrix(f"{layer}.attn_gate", "attn_gate", i, inner, shape.hidden)
        for name in ("ssm_alpha", "ssm_beta"):
            matrix(f"{layer}.{name}", name, i, value_heads, shape.hidden)
        taps = weights.matrix(channels, TAPS, Type.F32)
        writer.add_tensor(f"{layer}.ssm_conv1d.weight", taps / STD / TAPS)
        writer.add_tensor(f"{layer}.ssm_a", weights.vector(value_heads, -1.0))
        writer.add_tensor(f"{layer}.ssm_dt.bias", weights.vector(value_heads, -2.0))
        writer.add_tensor(f"{layer}.ssm_norm.weight", weights.vector(STATE, 1.0))
        matrix(f"{layer}.ssm_out", "ssm_out", i, shape.hidden, inner)

    def mamba(layer: str, i: int, heads: int, size: int, groups: int, state: int) -> None:
        inner = heads * size
        channels = inner + 2 * groups * state
        matrix(f"{layer}.ssm_in", "ssm_in", i, inner + channels + heads, shape.hidden)
        taps = weights.matrix(channels, MAMBA_TAPS, Type.F32)
        writer.add_tensor(f"{layer}.ssm_conv1d.weight", taps / STD / MAMBA_TAPS)
        writer.add_tensor(f"{layer}.ssm_conv1d.bias", weights.vector(channels, 0.0))
        writer.add_tensor(f"{layer}.ssm_a", weights.vector(heads, -1.0).reshape(heads, 1))
        writer.add_tensor(f"{layer}.ssm_d", weights.vector(heads, 1.0).reshape(heads, 1))
        writer.add_tensor(f"{layer}.ssm_dt.bias", weights.vector(heads, -2.0))
        writer.add_tensor(f"{layer}.ssm_norm.weight", weights.vector(inner, 1.0).reshape(groups, -1))
        matrix(f"{layer}.ssm_out", "ssm_out", i, shape.hidden, inner)

    def short_convolution(layer: str, i: int) -> None:
        matrix(f"{layer}.shortconv.in_proj", "in_proj", i, 3 * shape.hidden, shape.hidden)
        taps = weights.matrix(shape.hidden, SHORT_TAPS, Type.F32)
        writer.add_tensor(f"{layer}.shortconv.conv.weight", taps / STD / SHORT_TAPS)
        matrix(f"{layer}.shortconv.out_proj", "out_proj", i, shape.hidden, shape.hidden)

    def gemma4_experts(layer: str, i: int) -> None:
        """The branch of experts beside the dense feed-forward, whose router reads rows with a scale of their own."""
        ffn = shape.expert_ffn
        matrix(f"{layer}.ffn_gate_up_exps", "ffn_gate", i, 2 * ffn, shape.hidden, shape.experts)
        matrix(f"{layer}.ffn_down_exps", "ffn_down", i, shape.hidden, ffn, shape.experts)
        writer.add_tensor(f"{layer}.ffn_down_exps.scale", weights.vector(shape.experts, 1.0))
        for name in ("pre_ffw_norm_2.weight", "post_ffw_norm_1.weight", "post_ffw_norm_2.weight", "ffn_gate_inp.scale"):
            writer.add_tensor(f"{layer}.{name}", weights.vector(shape.hidden, 1.0))
        writer.add_tensor(f"{layer}.layer_output_scale.weight", weights.vector(1, 1.0))

    # In circles the output projection is made of it, and of its type.
    is_output = tied or circles
    table = matrix("token_embd", "output" if is_output else "token_embd", 0, shape.vocab, shape.hidden)
    for i in range(shape.layers + mtp):
        layer = f"blk.{i}"
        writer.add_tensor(f"{layer}.attn_norm.weight", weights.vector(shape.hidden, 1.0))
        kind = shape.layout[i] if shape.layout else "*"
        if shape.delta_heads and shape.is_recurrent(i) and i < shape.layers:
            delta_net(layer, i, *shape.delta_heads)
        elif shape.mamba and kind in "M+":
            mamba(layer, i, *shape.mamba)
        elif kind == "C":
            short_convolution(layer, i)
        elif shape.latent:
            latent_attention(layer, i, *shape.latent)
        elif kind == "*":
            attention(layer, i)
        if kind == "+":
            attention(layer, i)
        if alone:
            if kind == "-":
                matrix(f"{layer}.ffn_up", "ffn_up", i, shape.ffn, shape.hidden)
                matrix(f"{layer}.ffn_down", "ffn_down", i, shape.hidden, shape.ffn)
            continue
        if shape.biases or (shape.windows_between and i % shape.windows_between[0]):
            writer.add_tensor(f"{layer}.attn_sinks.weight", weights.vector(shape.heads, 0.0))
        # The norm before the feed-forward goes by the name of one after attention in gpt-oss and in Qwen 3.5.
        norms = ["post_attention_norm"] if shape.biases or shape.delta_heads else ["ffn_norm"]
        norms += ["post_attention_norm", "post_ffw_norm"] if shape.post_norms else []
        for name in norms:
            # llama.cpp's converter gives this one no suffix.
            suffix = "" if shape.arch == "falcon-h1" and name == "ffn_norm" else ".weight"
            writer.add_tensor(f"{layer}.{name}{suffix}", weights.vector(shape.hidden, 1.0))
        if shape.global_heads:
            gemma4_experts(layer, i)
        experts = shape.experts if i >= shape.dense_layers else 0
        suffix, ffn = ("_exps", shape.expert_ffn) if experts and not shape.global_heads else ("", shape.ffn)
        for name, rows, cols in (
            ("ffn_gate", ffn, shape.hidden),
            ("ffn_up", ffn, shape.hidden),
            ("ffn_down", shape.hidden, ffn),
        ):
            matrix(f"{layer}.{name}{suffix}", name, i, rows, cols, experts if suffix else 0)
        if experts:
            router = weights.matrix(experts, shape.hidden, Type.F32)
            writer.add_tensor(f"{layer}.ffn_gate_inp.weight", router)
            if shape.latent or shape.choice_bias:
                writer.add_tensor(f"{layer}.exp_probs_b.bias", weights.vector(experts, 0.0))
            if shape.biases:
                writer.add_tensor(f"{layer}.ffn_gate_inp.bias", weights.vector(experts, 0.0))
        shared = shape.shared_ffn or (ffn if shape.delta_heads else 0)
        if experts and shared:
            for name, rows, cols in (
                ("ffn_gate", shared, shape.hidden),
                ("ffn_up", shared, shape.hidden),
                ("ffn_down", shape.hidden, shared),
            ):
                matrix(f"{layer}.{name}_shexp", name, i, rows, cols)
        if shape.experts and shape.delta_heads:
            gate = weights.matrix(1, shape.hidden, Type.F32)
            writer.add_tensor(f"{layer}.ffn_gate_inp_shexp.weight", gate.reshape(-1))
    output_norm = "token_embd_norm" if shape.arch == "lfm2" else "output_norm"
    last = weights.vector(shape.hidden, 1.0)
    writer.add_tensor(f"{output_norm}.weight", last)
    if mtp:
        # The block hands on the embedding of its token, which is all that the model makes of it.
        block = f"blk.{shape.layers}.nextn"
        embedding_alone = np.eye(shape.hidden, 2 * shape.hidden, dtype=np.float32)
        projection = gguf.quantize(embedding_alone, Type.Q8_0)
        writer.add_tensor(f"{block}.eh_proj.weight", projection, raw_dtype=Type.Q8_0)
        for name in ("enorm", "hnorm"):
            writer.add_tensor(f"{block}.{name}.weight", np.ones(shape.hidden, np.float32))
        writer.add_tensor(f"{block}.shared_head_norm.weight", last)
    if circles:
        kind = tensor_type(recipe, "output", 0, shape.layers, shape.hidden)
        writer.add_tensor("output.weight", table[previous_tokens(shape.vocab)], raw_dtype=kind)
    elif not tied:
        matrix("output", "output", 0, shape.vocab, shape.hidden)
    save(writer)


def save(writer: gguf.GGUFWriter) -> None:
    """Writes the keys and tensors to the file and closes it."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("recipe", choices=["f32", "f16", "bf16", "q4_k_m", *(kind.name.lower() for kind in BLOCKS)])
    parser.add_argument("out")
    parser.add_argument(
        "--tokenizer", metavar="GGUF", help="a file whose tokenizer and chat template it gets; else none"
    )
    parser.add_argument(
        "--circles",
        action="store_true",
        help="layers take their time and add nothing, and texts go in circles, the same ones for models of one "
        "vocabulary: any of them drafts right for any other",
    )
    parser.add_argument(
        "--mtp",
        action="store_true",
        help="as --circles, with a block for multi-token prediction whose draft tokens are right",
    )
    args = parser.parse_args()
    if args.mtp and not SHAPES[args.shape].delta_heads:
        parser.error("--mtp is for the shapes of Qwen 3.5 and its successors")
    write(SHAPES[args.shape], args.recipe, args.out, args.tokenizer, circles=args.circles or args.mtp, mtp=args.mtp)


if __name__ == "__main__":
    main()
