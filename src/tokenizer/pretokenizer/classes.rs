//! The classes of `tokenizer.ggml.pre`: their patterns and names.
//!
//! The patterns are those of the models' own `tokenizer.json` files. Where those are not regular expressions (falcon,
//! default), they are the equivalents that llama.cpp publishes with its test vocabularies.

use super::Rule::{self, HalveSpaces, LeaveLast, Plain, Threes};
use super::{Bos, Class, Spelling, WholeWords};

/// English contractions, then words, numbers and other signs, each with the space before it.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+";

macro_rules! contractions {
    () => {
        r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
    };
}

/// The llama 3 family. Its members differ in what counts as a letter and in how many digits stay together.
macro_rules! llama3_family {
    ($letters:literal, $digits:literal, $others:literal) => {
        concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?", $letters, "|", $digits, "| ?", $others, r"+[\r\n]*|\s*[\r\n]+")
    };
}

/// A contraction that belongs to the previous word.
macro_rules! suffix {
    () => {
        concat!("(?:", contractions!(), ")?")
    };
}

/// The o200k family: words also end where lower case changes to upper case.
macro_rules! o200k_family {
    ($suffix:expr, $digits:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $suffix,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $suffix,
            "|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
        )
    };
}

const fn class(passes: &'static [(&'static str, Rule)]) -> Class {
    Class { passes, spelling: Spelling::ByteLevel, whole_words: WholeWords::None, bos: Bos::OnRequest }
}

/// A class in which a word that is a token becomes that token.
const fn whole(class: Class) -> Class {
    Class { whole_words: WholeWords::All, ..class }
}

const fn bos(class: Class) -> Class {
    Class { bos: Bos::ByDefault, ..class }
}

const LLAMA3_PATTERN: &str = llama3_family!(r"\p{L}+", r"\p{N}{1,3}", r"[^\s\p{L}\p{N}]");
const QWEN2_PATTERN: &str = llama3_family!(r"\p{L}+", r"\p{N}", r"[^\s\p{L}\p{N}]");
const GPT4O_PATTERN: &str = o200k_family!(suffix!(), r"\p{N}{1,3}");

const GPT2_CLASS: Class = class(&[(GPT2, LeaveLast)]);
const STARCODER: Class = class(&[(r"\p{N}", Plain), (GPT2, LeaveLast)]);
const CHAMELEON: Class = bos(class(&[
    // Placeholders of images.
    (r"<sentinel:[0-9]+>", Plain),
    (r"IMGIMG[A-I]{1,4}Z", Plain),
    (r"[\t\n]|    |  ", Plain),
    (r"\p{N}", Plain),
    (r"[\p{P}!-/:-@\[-`{-~]", Plain),
    (GPT2, LeaveLast),
]));
const LLAMA3: Class = class(&[(LLAMA3_PATTERN, LeaveLast)]);
const JAIS2: Class = class(&[(LLAMA3_PATTERN, HalveSpaces)]);
const MINICPM5: Class =
    whole(class(&[(r"\p{N}{1,3}", Plain), (llama3_family!(r"\p{L}+", r"\p{N}+", r"[^\s\p{L}\p{N}]"), LeaveLast)]));
const QWEN2: Class = class(&[(QWEN2_PATTERN, LeaveLast)]);
const QWEN35: Class = class(&[(llama3_family!(r"[\p{L}\p{M}]+", r"\p{N}", r"[^\s\p{L}\p{M}\p{N}]"), LeaveLast)]);
const LAGUNA: Class = class(&[(r"\n+", Plain), (QWEN2_PATTERN, LeaveLast)]);
/// A pattern without contractions, since Turkish suffixes follow an apostrophe.
const UFAKZEKA: Class = class(&[(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+", LeaveLast)]);
/// Line ends are separate from the signs before them.
const SEED_CODER: Class = class(&[(
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"),
    LeaveLast,
)]);
/// Several words with single spaces between them form one word.
const EXAONE_MOE: Class = class(&[(
    concat!(
        contractions!(),
        r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
    ),
    LeaveLast,
)]);
const GPT4O: Class = class(&[(GPT4O_PATTERN, LeaveLast)]);
const TINY_AYA: Class = class(&[(r"\d+\b", Threes), (GPT4O_PATTERN, LeaveLast)]);
const TEKKEN: Class = bos(whole(class(&[(o200k_family!("", r"\p{N}"), LeaveLast)])));
const YOUTU: Class = whole(class(&[
    (
        concat!(
            r"[\x{ac00}-\x{d7a3}\x{3131}-\x{318e}]+|[\x{ff01}\x{2026}\x{201c}\x{201d}\x{2018}\x{2019}\x{2014}",
            r"\x{ff1a}\x{ff1b}\x{ff0c}\x{3001}-\x{303f}\x{fe30}-\x{fe4f}]+|[\x{3105}-\x{312f}]+",
            r"|[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+"
        ),
        Plain,
    ),
    (o200k_family!(suffix!(), r"\p{N}"), LeaveLast),
]));
/// The pattern of the o200k family, with separate runs of Han characters.
const KIMI_K2: Class = class(&[(
    concat!(
        r"\p{Han}+",
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
        suffix!(),
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
        suffix!(),
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    ),
    LeaveLast,
)]);
const DEEPSEEK_LLM: Class = class(&[
    (r"[\r\n]", Plain),
    (
        // Cased letters of the scripts that the model knows.
        concat!(
            r"\s?[",
            r"\x{41}-\x{5a}\x{61}-\x{7a}\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}",
            r"\x{295}-\x{2af}\x{370}-\x{373}\x{376}-\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c}",
            r"\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5}",
            r"\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}",
            r"\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}",
            r"\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}",
            r"\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}",
            r"\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}",
            r"\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}-\x{2184}\x{2c00}-\x{2c7b}",
            r"\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}-\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}",
            r"\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}",
            r"\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}",
            r"\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943}",
            r"]+"
        ),
        Plain,
    ),
    (r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+", Plain),
    (r"\s+$", Plain),
    (r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+", Plain),
    (r"\p{N}+", Plain),
]);
const DEEPSEEK_CODER: Class = class(&[
    (r"[\r\n]", Plain),
    (r"\s?\p{L}+", Plain),
    (r"\s?\p{P}+", Plain),
    (r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+", Plain),
    (r"\p{N}", Plain),
]);
const CJK: &str = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{30ff}]+";

/// The third pass of the deepseek 3 family, whose members differ in line ends.
macro_rules! deepseek3_words {
    ($ends:literal) => {
        concat!(
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
            r"| ?[\p{P}\p{S}]+",
            $ends
        )
    };
}

const DEEPSEEK_V3: Class =
    class(&[(r"\p{N}{1,3}", Plain), (CJK, Plain), (deepseek3_words!(r"[\r\n]*|\s*[\r\n]+"), LeaveLast)]);
const SPARK: Class =
    class(&[(r"\p{N}{1,3}", Plain), (CJK, Plain), (deepseek3_words!(r"|[\r\n]"), LeaveLast), (r"\p{N}", Plain)]);
/// Digits in threes from their end, and runs of more scripts of Asia apart; the ranges are llama.cpp's.
const AFMOE: Class = class(&[
    (r"\p{N}+", Threes),
    (
        concat!(
            r"[\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{8c48}-\x{faff}\x{3040}-\x{30ff}\x{ff65}-\x{ff9f}\x{2f00}-\x{2fdf}",
            r"\x{e40}-\x{eff}\x{1780}-\x{17ff}\x{1000}-\x{109f}\x{aa60}-\x{aa7f}\x{a9e0}-\x{a9ff}\x{ac00}-\x{d7af}",
            r"\x{1100}-\x{11ff}]+"
        ),
        Plain,
    ),
    (deepseek3_words!(r"[\r\n]*|\s*[\r\n]+"), LeaveLast),
]);
/// The negated set contains parentheses and a bar, exactly as in the models' own pattern.
const BLOOM_PATTERN: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const BLOOM: Class = class(&[(BLOOM_PATTERN, Plain)]);
const VIKING: Class = class(&[(BLOOM_PATTERN, Plain), (r"\p{N}", Plain)]);
const FALCON: Class = class(&[(r"[\p{P}$+<=>^~|`]+", Plain), (GPT2, LeaveLast), (r"[0-9][0-9][0-9]", Plain)]);
const DEFAULT: Class =
    class(&[(r"[\p{P}$+<=>^~|]+", Plain), (GPT2, LeaveLast), (r"\p{N}+", Plain), (r"[0-9][0-9][0-9]", Plain)]);
/// Merges apply to the text itself, with `▁` for spaces, and only lines are words.
const SARVAM: Class = Class { spelling: Spelling::SentencePiece, ..class(&[(r"\n+", Plain)]) };
pub(super) const GEMMA4: Class = Class { whole_words: WholeWords::Newlines, bos: Bos::Always, ..SARVAM };

/// Every known value of `tokenizer.ggml.pre`, and `gemma4`, which is also one of `tokenizer.ggml.model`. Unsupported
/// encoders (jina, roberta, granite-embed) are left out. They add a separator at the end, which no decoder needs.
pub(super) const CLASSES: &[(Class, &[&str])] = &[
    (DEFAULT, &["default"]),
    (GPT2_CLASS, &["gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4"]),
    (GPT2_CLASS, &["mpt", "olmo", "jais", "trillion", "granite-docling", "modern-bert"]),
    (STARCODER, &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"]),
    (CHAMELEON, &["chameleon"]),
    (bos(whole(LLAMA3)), &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"]),
    (whole(LLAMA3), &["glm4", "glm5"]),
    (LLAMA3, &["chatglm-bpe", "dbrx", "smaug-bpe"]),
    (JAIS2, &["jais-2"]),
    (MINICPM5, &["minicpm5"]),
    (QWEN2, &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"]),
    (QWEN2, &["stablelm2", "hunyuan", "solar-open", "grok-2"]),
    // Their pattern differs from qwen2's only in notation.
    (QWEN2, &["bailingmoe", "bailingmoe2", "llada-moe"]),
    (QWEN35, &["qwen35"]),
    (LAGUNA, &["laguna"]),
    (UFAKZEKA, &["ufakzeka"]),
    (SEED_CODER, &["seed-coder"]),
    (EXAONE_MOE, &["exaone-moe"]),
    (GPT4O, &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"]),
    (TINY_AYA, &["tiny_aya", "cohere2moe"]),
    (TEKKEN, &["tekken"]),
    (YOUTU, &["youtu"]),
    (KIMI_K2, &["kimi-k2"]),
    (DEEPSEEK_LLM, &["deepseek-llm"]),
    (DEEPSEEK_CODER, &["deepseek-coder"]),
    (DEEPSEEK_V3, &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"]),
    (AFMOE, &["afmoe"]),
    (SPARK, &["spark2_5"]),
    (BLOOM, &["bloom", "poro-chat", "gpt3-finnish"]),
    (VIKING, &["viking"]),
    (FALCON, &["falcon"]),
    (SARVAM, &["sarvam-moe"]),
    (GEMMA4, &["gemma4"]),
];
