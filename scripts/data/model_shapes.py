"""Shapes of real models, for `make_model.py`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The dimensions of a decoder."""

    arch: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    rope_base: float
    context: int
    qkv_bias: bool = False
    qk_norm: bool = False
    experts: int = 0
    experts_used: int = 0
    expert_ffn: int = 0
    # Tokens that layers with a sliding window attend to.
    window: int = 0
    # Norms of what attention and feed-forward give, as in Gemma 3.
    post_norms: bool = False
    # Biases everywhere and sinks of attention, as in gpt-oss.
    biases: bool = False
    # Qwen 3.5: heads of keys and of values of the gated delta net, which every layer has but each fourth one.
    delta_heads: tuple[int, int] | None = None
    # A letter for each layer, where they are not alike: "M" for Mamba-2, "C" for a short convolution, "*" for
    # attention, "+" for attention beside Mamba-2, "-" for a feed-forward that is a layer of its own.
    layout: str = ""
    # Mamba-2: heads, the size of a head, groups of heads, and rows of a head's state.
    mamba: tuple[int, int, int, int] | None = None
    # Width of the expert that serves every token.
    shared_ffn: int = 0
    # Gemma 4: heads of keys, and the size of a head, in each sixth layer, which has no window and no v.
    global_heads: tuple[int, int] | None = None
    # Latent attention: elements of the latents of q (0: it has none) and of keys and values, and of a head's parts
    # without RoPE, with RoPE, and of its values.
    latent: tuple[int, int, int, int, int] | None = None
    # Layers at the start that have one feed-forward in place of experts.
    dense_layers: int = 0
    # Qwen 3-VL: RoPE pairs that rotate with time, row and column, and the layers of its image encoder whose rows are
    # added to the first layers of the text.
    sections: tuple[int, int, int] | None = None
    deepstack: tuple[int, ...] = ()
    # One tensor for q, k and v.
    fused_qkv: bool = False
    # Size of a head's values, if it is not that of its keys.
    value_dim: int = 0
    # MiMo V2: the layers whose number is a multiple of this have full attention. The others have windows, sinks, and
    # this many heads of keys.
    windows_between: tuple[int, int] | None = None
    # Experts get a bias of the choice alone.
    choice_bias: bool = False
    # The number of first dimensions of a head that are rotated; 0 for all.
    rotated: int = 0
    # Further keys, under the name of the architecture.
    keys: tuple[tuple[str, int | float | bool], ...] = ()

    def is_recurrent(self, layer: int) -> bool:
        """Whether the layer carries a state and not keys and values."""
        return self.delta_heads is not None and layer % INTERVAL != INTERVAL - 1

    def kv_of(self, layer: int) -> tuple[int, int]:
        """Heads of keys of an attention layer, and the size of a head."""
        if self.windows_between:
            interval, kv_heads = self.windows_between
            return (kv_heads if layer % interval else self.kv_heads), self.head_dim
        is_global = self.global_heads is not None and layer % GLOBAL_INTERVAL == GLOBAL_INTERVAL - 1
        return self.global_heads if self.global_heads and is_global else (self.kv_heads, self.head_dim)


# Taps of the convolutions of Mamba-2, and of the short convolutions of LFM2.
MAMBA_TAPS, SHORT_TAPS = 4, 3
# Granite 4.0 H: factors on embeddings, residuals and scores, and what logits are divided by.
GRANITE = {"embedding": 12.0, "residual": 0.22, "attention": 0.0078125, "logit": 6.0}
# Qwen 3.5: layers from one of full attention to the next, sizes of its delta nets' heads, taps of their convolutions,
# and the dimensions of an attention head that are rotated.
INTERVAL, STATE, TAPS, ROTATED = 4, 128, 4, 64
# Gemma 4: layers from one without a window to the next, and what logits are capped by. Of a global head's pairs a
# quarter is rotated, the others are divided by so much that they are not.
GLOBAL_INTERVAL, SOFTCAP, NOT_ROTATED = 6, 30.0, 1e30


SHAPES = {
    "smollm2-135m": Shape("llama", 30, 576, 1536, 9, 3, 64, 49152, True, 1e5, 8192),
    "qwen2.5-0.5b": Shape("qwen2", 24, 896, 4864, 14, 2, 64, 151936, True, 1e6, 32768, qkv_bias=True),
    "qwen3-4b": Shape("qwen3", 36, 2560, 9728, 32, 8, 128, 151936, True, 1e6, 40960, qk_norm=True),
    "qwen3-vl-8b": Shape(
        *("qwen3vl", 36, 4096, 12288, 32, 8, 128, 151936, False, 5e6, 262144),
        qk_norm=True,
        sections=(24, 20, 20),
        deepstack=(8, 16, 24),
    ),
    "qwen3-30b-a3b": Shape(
        *("qwen3moe", 48, 2048, 6144, 32, 4, 128, 151936, False, 1e6, 40960),
        qk_norm=True,
        experts=128,
        experts_used=8,
        expert_ffn=768,
    ),
    "mixtral-8x7b": Shape(
        *("llama", 32, 4096, 14336, 32, 8, 128, 32000, False, 1e6, 32768),
        experts=8,
        experts_used=2,
        expert_ffn=14336,
    ),
    "gemma3-1b": Shape(
        *("gemma3", 26, 1152, 6912, 4, 1, 256, 262144, True, 1e6, 32768), qk_norm=True, window=512, post_norms=True
    ),
    "gemma3-12b": Shape(
        *("gemma3", 48, 3840, 15360, 16, 8, 256, 262144, True, 1e6, 131072), qk_norm=True, window=1024, post_norms=True
    ),
    "gemma4-26b-a4b": Shape(
        *("gemma4", 30, 2816, 2112, 16, 8, 256, 262144, True, 1e6, 262144),
        qk_norm=True,
        experts=128,
        experts_used=8,
        expert_ffn=704,
        window=1024,
        post_norms=True,
        global_heads=(2, 512),
    ),
    "gpt-oss-20b": Shape(
        *("gpt-oss", 24, 2880, 2880, 64, 8, 64, 201088, False, 1.5e5, 131072),
        experts=32,
        experts_used=4,
        expert_ffn=2880,
        window=128,
        biases=True,
    ),
    "gpt-oss-tiny": Shape(
        *("gpt-oss", 12, 768, 768, 12, 2, 64, 49152, False, 1.5e5, 32768),
        experts=16,
        experts_used=4,
        expert_ffn=768,
        window=128,
        biases=True,
    ),
    "qwen3.5-0.8b": Shape(
        *("qwen35", 24, 1024, 3584, 8, 2, 256, 248320, True, 1e7, 262144), qk_norm=True, delta_heads=(16, 16)
    ),
    "qwen3.8-27b": Shape(
        *("qwen35", 64, 5120, 17408, 24, 4, 256, 248320, False, 1e7, 262144), qk_norm=True, delta_heads=(16, 48)
    ),
    "qwen3.6-35b-a3b": Shape(
        *("qwen35moe", 40, 2048, 0, 16, 2, 256, 248320, False, 1e7, 262144),
        qk_norm=True,
        experts=256,
        experts_used=8,
        expert_ffn=512,
        delta_heads=(16, 32),
    ),
    "granite-4.0-h-tiny": Shape(
        *("granitehybrid", 40, 1536, 512, 12, 4, 128, 100352, True, 1e4, 131072),
        experts=64,
        experts_used=6,
        expert_ffn=512,
        layout=("MMMMM*MMMM" * 4),
        mamba=(48, 64, 1, 128),
        shared_ffn=1024,
    ),
    "nemotron-nano-9b-v2": Shape(
        *("nemotron_h", 56, 4480, 15680, 40, 8, 128, 131072, False, 1e4, 131072),
        layout="M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        mamba=(128, 80, 8, 128),
    ),
    "lfm2-1.2b": Shape(
        *("lfm2", 16, 2048, 8192, 32, 8, 64, 65536, True, 1e6, 128000), qk_norm=True, layout="CC*CC*CC*C*C*C*C"
    ),
    "glm-4.7-flash": Shape(
        *("deepseek2", 47, 2048, 10240, 20, 1, 576, 154880, False, 1e6, 202752),
        experts=64,
        experts_used=4,
        expert_ffn=1536,
        shared_ffn=1536,
        latent=(768, 512, 192, 64, 256),
        dense_layers=1,
    ),
    "ling-mini-2.0": Shape(
        *("bailingmoe2", 20, 2048, 5120, 16, 4, 128, 157184, False, 6e5, 32768),
        qk_norm=True,
        fused_qkv=True,
        rotated=64,
        experts=256,
        experts_used=8,
        expert_ffn=512,
        shared_ffn=512,
        dense_layers=1,
        choice_bias=True,
        keys=(
            ("leading_dense_block_count", 1),
            ("expert_group_count", 8),
            ("expert_group_used_count", 4),
            ("expert_gating_func", 2),
            ("expert_shared_count", 1),
            ("expert_weights_scale", 2.5),
            ("expert_weights_norm", True),
        ),
    ),
    "falcon-h1-7b": Shape(
        *("falcon-h1", 44, 3072, 12288, 12, 2, 128, 130048, False, 1e11, 262144),
        layout="+" * 44,
        mamba=(24, 128, 1, 256),
    ),
    # A quarter of the layers of Scout, and an eighth of those of MiMo V2 Flash: both have over 100 billion weights.
    "llama-4-scout-quarter": Shape(
        *("llama4", 12, 5120, 16384, 40, 8, 128, 202048, False, 5e5, 1048576),
        experts=16,
        experts_used=1,
        expert_ffn=8192,
        shared_ffn=8192,
        keys=(("interleave_moe_layer_step", 1),),
    ),
    "mimo-v2-flash-eighth": Shape(
        *("mimo2", 6, 4096, 16384, 64, 4, 192, 151680, False, 5e6, 262144),
        value_dim=128,
        rotated=64,
        window=128,
        windows_between=(6, 8),
        experts=256,
        experts_used=8,
        expert_ffn=2048,
        dense_layers=1,
        choice_bias=True,
        keys=(
            ("rope.freq_base_swa", 1e4),
            ("expert_gating_func", 2),
            ("expert_group_count", 1),
            ("expert_group_used_count", 1),
            ("attention.value_scale", 0.707),
        ),
    ),
    "llama-3.2-1b": Shape("llama", 16, 2048, 8192, 32, 8, 64, 128256, True, 5e5, 131072),
    "llama-3-8b": Shape("llama", 32, 4096, 14336, 32, 8, 128, 128256, False, 5e5, 8192),
}


@dataclass(frozen=True)
class EncoderShape:
    """The dimensions of an image encoder of Qwen 3-VL."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    patch: int
    # Side of the table of positions, and of the squares of patches that become one row, in patches.
    table: int
    merge: int


ENCODERS = {"qwen3-vl-8b": EncoderShape(27, 1152, 4304, 16, 16, 48, 2)}
