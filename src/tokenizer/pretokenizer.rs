//! Pre-tokenizers: how each class of byte-level BPE splits text into words before merging.
//!
//! A class is one or more passes; each pass splits every piece of the one before at the matches of its pattern, and
//! what lies between two matches is a piece too. The patterns are those of the models' own `tokenizer.json` files, or,
//! where those are not regular expressions (falcon, default), of the equivalents that llama.cpp publishes with its
//! test vocabularies.
//!
//! Everything in these patterns is a regular language except one look-ahead that they share, `\s+(?!\S)|\s+`: a run of
//! white space leaves its last character to the word behind it. That one is done by hand ([`Pass::split`]), so that an
//! automaton with guaranteed linear time can do the rest and no input makes a backtracking engine explode.

use regex_automata::Input;
use regex_automata::meta::Regex;

/// What a value of `tokenizer.ggml.pre` stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Class {
    passes: &'static [(&'static str, Spaces)],
    /// A word that is a token as a whole is that token, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Whether BOS is added where the file does not say.
    pub(super) add_bos: bool,
}

/// Whether `|\s+(?!\S)|\s+` follows a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spaces {
    Plain,
    LeaveLast,
}
use Spaces::{LeaveLast, Plain};

/// English contractions, then words, numbers and other signs, each with the space before it.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+";

macro_rules! contractions {
    () => {
        r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
    };
}

/// The llama 3 family: they differ in what counts as a letter and in how many digits stay together.
macro_rules! llama3_family {
    ($letters:literal, $digits:literal, $others:literal) => {
        concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?", $letters, "|", $digits, "| ?", $others, r"+[\r\n]*|\s*[\r\n]+")
    };
}

/// The o200k family: words also end where lower case turns into upper case.
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

const fn class(passes: &'static [(&'static str, Spaces)]) -> Class {
    Class { passes, ignore_merges: false, add_bos: false }
}

const GPT2_CLASS: Class = class(&[(GPT2, LeaveLast)]);
const STARCODER: Class = class(&[(r"\p{N}", Plain), (GPT2, LeaveLast)]);
const LLAMA3_SPLIT: Class = class(&[(llama3_family!(r"\p{L}+", r"\p{N}{1,3}", r"[^\s\p{L}\p{N}]"), LeaveLast)]);
const LLAMA3: Class = Class { ignore_merges: true, add_bos: true, ..LLAMA3_SPLIT };
const QWEN2: Class = class(&[(llama3_family!(r"\p{L}+", r"\p{N}", r"[^\s\p{L}\p{N}]"), LeaveLast)]);
const QWEN35: Class = class(&[(llama3_family!(r"[\p{L}\p{M}]+", r"\p{N}", r"[^\s\p{L}\p{M}\p{N}]"), LeaveLast)]);
const GPT4O: Class = class(&[(o200k_family!(concat!("(?:", contractions!(), ")?"), r"\p{N}{1,3}"), LeaveLast)]);
const TEKKEN: Class =
    Class { ignore_merges: true, add_bos: true, ..class(&[(o200k_family!("", r"\p{N}"), LeaveLast)]) };
const DEEPSEEK_LLM: Class = class(&[
    (r"[\r\n]", Plain),
    (
        // Letters that have a case, in the scripts the model knows.
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
const DEEPSEEK_V3: Class = class(&[
    (r"\p{N}{1,3}", Plain),
    (r"[\x{4e00}-\x{9fa5}\x{3040}-\x{30ff}]+", Plain),
    (
        concat!(
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
        ),
        LeaveLast,
    ),
]);
const FALCON: Class = class(&[(r"[\p{P}$+<=>^~|`]+", Plain), (GPT2, LeaveLast), (r"[0-9][0-9][0-9]", Plain)]);
const DEFAULT: Class =
    class(&[(r"[\p{P}$+<=>^~|]+", Plain), (GPT2, LeaveLast), (r"\p{N}+", Plain), (r"[0-9][0-9][0-9]", Plain)]);

/// Every known value of `tokenizer.ggml.pre`. Encoders (jina, modern-bert, roberta) are left out: they put a separator
/// at the end, which no decoder has a use for.
const CLASSES: &[(Class, &[&str])] = &[
    (DEFAULT, &["default"]),
    (GPT2_CLASS, &["gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4"]),
    (GPT2_CLASS, &["mpt", "olmo", "jais", "trillion", "granite-docling"]),
    (STARCODER, &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"]),
    (LLAMA3, &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"]),
    (LLAMA3_SPLIT, &["glm4", "chatglm-bpe", "dbrx", "smaug-bpe"]),
    (QWEN2, &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"]),
    (QWEN2, &["stablelm2", "hunyuan", "solar-open", "grok-2"]),
    (QWEN35, &["qwen35"]),
    (GPT4O, &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"]),
    (TEKKEN, &["tekken"]),
    (DEEPSEEK_LLM, &["deepseek-llm"]),
    (DEEPSEEK_CODER, &["deepseek-coder"]),
    (DEEPSEEK_V3, &["deepseek-v3", "hunyuan-dense", "joyai-llm"]),
    (FALCON, &["falcon"]),
];

/// The known values of `tokenizer.ggml.pre`, those that split alike side by side.
pub fn pre_tokenizers() -> impl Iterator<Item = &'static [&'static str]> {
    CLASSES.iter().map(|(_, names)| *names)
}

impl Class {
    pub(super) fn named(name: &str) -> Option<Self> {
        CLASSES.iter().find(|(_, names)| names.contains(&name)).map(|(class, _)| *class)
    }

    /// All known names, for messages.
    pub(super) fn names() -> String {
        pre_tokenizers().flatten().copied().collect::<Vec<_>>().join(", ")
    }

    pub(super) fn compile(self) -> Result<PreTokenizer, String> {
        let passes = self.passes.iter().map(|&(pattern, spaces)| Pass::new(pattern, spaces));
        Ok(PreTokenizer { passes: passes.collect::<Result<_, _>>().map_err(|e| e.to_string())? })
    }
}

#[derive(Debug)]
pub(super) struct PreTokenizer {
    passes: Vec<Pass>,
}

impl PreTokenizer {
    /// Calls `emit` with every word of `text`, in order; the words joined are `text`.
    pub(super) fn split<'t, E>(&self, text: &'t str, emit: &mut dyn FnMut(&'t str) -> Result<(), E>) -> Result<(), E> {
        Self::split_with(&self.passes, text, emit)
    }

    fn split_with<'t, E>(
        passes: &[Pass],
        text: &'t str,
        emit: &mut dyn FnMut(&'t str) -> Result<(), E>,
    ) -> Result<(), E> {
        match passes {
            [] => emit(text),
            [pass, rest @ ..] => pass.split(text, &mut |piece| Self::split_with(rest, piece, emit)),
        }
    }
}

#[derive(Debug)]
struct Pass {
    /// Pattern 0 is the pass's own, pattern 1 (where there is one) a run of white space.
    regex: Regex,
}

impl Pass {
    fn new(pattern: &str, spaces: Spaces) -> Result<Self, Box<regex_automata::meta::BuildError>> {
        let regex = match spaces {
            Plain => Regex::new(pattern),
            LeaveLast => Regex::new_many(&[pattern, r"\s+"]),
        };
        Ok(Self { regex: regex.map_err(Box::new)? })
    }

    fn split<'t, E>(&self, text: &'t str, emit: &mut dyn FnMut(&'t str) -> Result<(), E>) -> Result<(), E> {
        let mut done = 0;
        while done < text.len() {
            let Some(found) = self.regex.search(&Input::new(text).range(done..)) else { break };
            let mut end = found.end();
            if found.pattern().as_usize() == 1 && end < text.len() {
                // `\s+(?!\S)`: a greedy run that something follows gives back its last character, unless it is its
                // only one (then the plain `\s+` takes it).
                let last = text[found.start()..end].chars().next_back().map_or(0, char::len_utf8);
                if end - last > found.start() {
                    end -= last;
                }
            }
            if found.start() > done {
                emit(&text[done..found.start()])?;
            }
            if end <= done {
                break; // No pattern matches the empty string; were one to, this ends the loop.
            }
            emit(&text[found.start()..end])?;
            done = end;
        }
        if done < text.len() { emit(&text[done..]) } else { Ok(()) }
    }
}
