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
    # attention, "-" for a feed-forward that is a layer of its own.
    layout: str = ""
    # Mamba-2: heads, the size of a head, and groups of heads.
    mamba: tuple[int, int, int] | None = None
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

    def is_recurrent(self, layer: int) -> bool:
        """Whether the layer carries a state and not keys and values."""
        return self.delta_heads is not None and layer % INTERVAL != INTERVAL - 1

    def kv_of(self, layer: int) -> tuple[int, int]:
        """Heads of keys of an attention layer, and the size of a head."""
        is_global = self.global_heads is not None and layer % GLOBAL_INTERVAL == GLOBAL_INTERVAL - 1
        return self.global_heads if self.global_heads and is_global else (self.kv_heads, self.head_dim)


# Mamba-2: rows of a head's matrix and taps of the convolution. LFM2: taps of short convolutions.
MAMBA_STATE, MAMBA_TAPS, SHORT_TAPS = 128, 4, 3
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
        mamba=(48, 64, 1),
        shared_ffn=1024,
    ),
    "nemotron-nano-9b-v2": Shape(
        *("nemotron_h", 56, 4480, 15680, 40, 8, 128, 131072, False, 1e4, 131072),
        layout="M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        mamba=(128, 80, 8),
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
