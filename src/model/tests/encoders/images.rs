//! Prompts with images against transformers in float32: logits and continuations.

use std::ops::Range;
use std::sync::Arc;

use crate::backend::{Backend, Loader};
use crate::config::KvCacheDtype;
use crate::cpu::Isa;
use crate::gguf::GgufFile;
use crate::images::{ImageId, ImageSpan, SeqImages};
use crate::selection::{Needs, SamplingRequest, Wanted};
use crate::testdata;
use crate::tests::{CpuLoader, Model, distance, load_within};
use crate::vision::tests::{encode_golden, picture};
use crate::vision::{Family, Images, VisionSpec};
use crate::{DecoderLimits, ModelSpec, ModelTensors};

const TOKENS: usize = 128;

/// A golden prompt.
struct Prompt {
    tokens: Vec<u32>,
    images: SeqImages,
    logits: Vec<f32>,
}

fn prompt(name: &str, number: usize, vision: &VisionSpec) -> Prompt {
    let family = vision.family;
    let z = testdata::npz(&format!("vision/{name}"));
    let tokens: Vec<u32> = z.i32(&format!("p{number}_tokens")).iter().map(|&id| id as u32).collect();
    let placeholder = match family {
        Family::Gemma3 => 479,
        Family::Gemma4 => 279,
        Family::Glm4 | Family::Idefics3 | Family::InternVl | Family::Lfm2 => 479,
        Family::Pixtral => 477,
        Family::Qwen25 | Family::Qwen3 => 478,
    };
    let (mut spans, mut at) = (Vec::new(), 0);
    for &image in &z.i32(&format!("p{number}_images")) {
        let picture = picture(&format!("{name}_{image}"));
        let parts = vision.preparation.sizing.parts(picture.width(), picture.height()).unwrap();
        let mut first_row = 0;
        for size in parts.sizes() {
            let first = (at + tokens[at..].iter().position(|&id| id == placeholder).unwrap()) as u32;
            let [columns, rows] = size.map(|side| (side / vision.row_side()) as u32);
            let (image, digest) = (ImageId(image as u64 - 1), [image as u8; 32]);
            let has_row_ends = family.has_row_ends();
            let span = ImageSpan { first, image, digest, first_row, grid: [rows, columns], has_row_ends };
            at = span.tokens().end;
            first_row += span.num_tokens();
            spans.push(span);
        }
    }
    let images = SeqImages { spans, mrope: family.values().has_mrope, sight: vision.sight };
    if images.mrope {
        let (flat, n) = (z.i32(&format!("p{number}_positions")), tokens.len());
        let expected = (0..n).map(|at| [0, 1, 2].map(|axis| flat[axis * n + at] as u32));
        assert!(images.rope_positions(0..n).eq(expected), "{name}, prompt {number}: RoPE positions");
    }
    Prompt { tokens, images, logits: z.f32(&format!("p{number}_logits")) }
}

/// Computes these tokens of a prompt, and returns the logits of all of them.
fn step<B: Backend>(model: &mut Model<B>, prompt: &Prompt, range: Range<usize>, rows: &Images) -> Vec<f32> {
    let mut batch = model.batch(&[(&prompt.tokens[..range.end], range.start)]);
    prompt.images.append_runs(&mut batch.images, range.clone(), 0);
    if prompt.images.mrope {
        batch.rope_positions = prompt.images.rope_positions(range).collect();
    }
    let needs = Needs { logits: true, hidden: false };
    model.decoder.launch(&mut model.backend, &batch, rows, needs).unwrap();
    let count = batch.logits_indices.len();
    let requests: Vec<SamplingRequest<'_>> = (0..count).map(|_| Wanted::Row.into()).collect();
    model.decoder.select(&mut model.backend, 0..count, &requests).unwrap();
    let mut selection = model.decoder.collect(&mut model.backend).unwrap();
    (0..count).flat_map(|row| selection.whole_row(row).unwrap().to_vec()).collect()
}

/// Compares the logits of both prompts with those of transformers, computed in steps of at most `most` tokens. A step
/// takes a whole image if it must. Returns the logits.
fn check<L: Loader>(loader: L, name: &str, dtype: KvCacheDtype, bound: f32, most: usize) -> Vec<Vec<f32>> {
    let (vision, rows) = encode_golden(name);
    let file = testdata::file(&format!("vision/{name}.gguf"));
    let gguf = GgufFile::open(&file.0).unwrap();
    let spec = ModelSpec::from_gguf(&gguf, Some(512)).unwrap();
    let vision = vision.fitted(gguf.metadata(), &spec, gguf.metadata()).unwrap();
    let limits = DecoderLimits { max_num_batched_tokens: TOKENS, max_logits_rows: TOKENS };
    let mut model = load_within(loader, &ModelTensors::collect(&gguf, &spec).unwrap(), dtype, limits).unwrap();
    let images = rows.iter().enumerate().map(|(i, rows)| (ImageId(i as u64), Arc::new(rows.clone()))).collect();
    let check = |number: usize| {
        let prompt = prompt(name, number, &vision);
        let (mut logits, mut at) = (Vec::new(), 0);
        while at < prompt.tokens.len() {
            let last = prompt.tokens.len();
            let end = prompt.images.uncut_end(at, (at + most).min(last));
            let whole = || prompt.images.within(at..at + 1).next().map_or(last, |span| span.tokens().end);
            let end = if end == at { whole() } else { end };
            logits.extend(step(&mut model, &prompt, at..end, &images));
            at = end;
        }
        let (error, _) = distance(&logits, &prompt.logits);
        println!("{name}, prompt {number}, steps of {most}: {error:.1e}");
        assert!(error < bound, "{name}, prompt {number}, steps of {most}: {error:.1e}");
        logits
    };
    [1, 2].map(check).into()
}

/// The logits of prompts with one image and with two are those of transformers, and have the same bits in any steps.
#[test]
fn logits_of_prompts_with_images_are_those_of_transformers() {
    for name in [
        "gemma3",
        "gemma4",
        "gemma4e",
        "glm4v",
        "glm4v_moe",
        "internvl",
        "lfm2vl",
        "mistral3",
        "pixtral",
        "qwen25vl",
        "qwen3vl",
        "smolvlm",
    ] {
        for isa in Isa::available() {
            let loader = || CpuLoader::new(2, TOKENS).unwrap().with_isa(isa);
            let whole = check(loader(), name, KvCacheDtype::F32, 3e-3, TOKENS);
            for most in [1, 7] {
                assert!(check(loader(), name, KvCacheDtype::F32, 3e-3, most) == whole, "{name}, steps of {most}");
            }
        }
    }
}
