//! Whole engines with image encoders: the texts of transformers, in all kinds of steps.

use std::path::Path;
use std::sync::Arc;

use crate::config::{DeviceKind, EngineArgs, GpuOptions, KvCacheDtype, SamplingParams, SpeculativeConfig};
use crate::devices::OpenDevice;
use crate::gguf::GgufFile;
use crate::gpu::Device;
use crate::gpu::testing::devices::{self, CPU_TARGETS};
use crate::load::{load_on, load_tokenizer};
use crate::model::vision::VisionSpec;
use crate::pixels::{DecodeLimits, Picture, Sizing};
use crate::scheduler::{BesideDecodes, SchedulerConfig};
use crate::start::with_room_for;
use crate::testdata;
use crate::tests::support::*;
use crate::{Engine, ImageReader};

pub(in crate::tests) const NAMES: [&str; 12] = [
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
];
const BLOCK: usize = 16;

/// A golden prompt as a client writes it, with its tokens and its continuation.
struct Prompt {
    short: Vec<u32>,
    tokens: Vec<u32>,
    images: Vec<Arc<Picture>>,
    continuation: Vec<u32>,
    /// The distance of the two largest logits, for each token of the continuation.
    gaps: Vec<f32>,
}

impl Prompt {
    fn request(&self) -> Draft {
        let params = SamplingParams { ignore_eos: true, ..greedy(self.continuation.len()) };
        Draft { images: self.images.clone(), ..request(&self.short, params) }
    }

    /// Asserts that a text is that of transformers, up to a token that is hardly more likely than another one.
    fn check(&self, text: &[u32], least_gap: f32, what: &str) {
        let differs = text.iter().zip(&self.continuation).position(|(got, expected)| got != expected);
        assert_eq!(text.len(), self.continuation.len(), "{what}");
        assert!(differs.is_none_or(|at| self.gaps[at] < least_gap), "{what}: {text:?}, not {:?}", self.continuation);
    }
}

fn prompts(name: &str) -> [Prompt; 2] {
    let z = testdata::npz(&format!("vision/{name}"));
    let ids = |key: String| z.i32(&key).iter().map(|&id| id as u32).collect::<Vec<_>>();
    [1, 2].map(|number| {
        let tokens = ids(format!("p{number}_tokens"));
        let is_of_image = |token: &u32| match (name, *token) {
            ("gemma3" | "glm4v" | "glm4v_moe" | "internvl", token) => token == 479,
            ("gemma4" | "gemma4e", token) => token == 279,
            ("lfm2vl", token) => token >= 473,
            ("mistral3" | "pixtral", token) => token >= 477,
            ("smolvlm", token) => token == 198 || token >= 470,
            (_, token) => token == 478,
        };
        // Gemma has a token before the rows of an image. The others have one in place of all its tokens.
        let placeholder: &[u32] = match name {
            "gemma3" => &[],
            "gemma4" | "gemma4e" => &[279],
            "glm4v" | "glm4v_moe" | "internvl" | "lfm2vl" | "smolvlm" => &[479],
            "mistral3" | "pixtral" => &[477],
            _ => &[478],
        };
        let runs = tokens.chunk_by(|one, next| is_of_image(one) == is_of_image(next));
        let short = runs.flat_map(|run| if is_of_image(&run[0]) { placeholder } else { run }).copied();
        let short = short.collect();
        let file = |image: &i32| testdata::bytes(&format!("vision/{name}_{image}.png"));
        let picture = |image| Arc::new(Picture::decode(&file(image), DecodeLimits::default()).unwrap());
        Prompt {
            short,
            tokens,
            images: z.i32(&format!("p{number}_images")).iter().map(picture).collect(),
            continuation: ids(format!("p{number}_greedy")),
            gaps: z.f32(&format!("p{number}_greedy_gap")),
        }
    })
}

/// Writes a model with its encoder beside it.
fn write(name: &str, folder: &Path) -> EngineArgs {
    for file in [format!("{name}.gguf"), format!("{name}.mmproj.gguf")] {
        std::fs::write(folder.join(&file), testdata::bytes(&format!("vision/{file}"))).unwrap();
    }
    EngineArgs {
        device: DeviceKind::Cpu,
        num_threads: Some(2),
        max_model_len: Some(160),
        max_num_seqs: Some(6),
        max_num_batched_tokens: Some(96),
        block_size: BLOCK,
        kv_cache_memory: Some(4 << 20),
        kv_cache_dtype: KvCacheDtype::F32,
        ..EngineArgs::new(folder.join(format!("{name}.gguf")))
    }
}

/// Serves both prompts three times at once, beside text, and each again from the cache.
fn check(engine: &Engine, name: &str, least_gap: f32, what: &str) {
    let prompts = prompts(name);
    let allocations = engine.stats().device_allocations;
    let mut clients = Vec::new();
    for _ in 0..3 {
        for prompt in &prompts {
            let client = submit(engine, prompt.request()).unwrap();
            assert_eq!(*client.accepted.prompt_token_ids, prompt.tokens, "{what}");
            clients.push((Some(prompt), client));
        }
        clients.push((None, submit(engine, request(&prompts[0].tokens[..5], greedy(9))).unwrap()));
    }
    for (prompt, client) in clients {
        let done = client.wait();
        assert!(done[&0].error.is_none(), "{what}: {:?}", done[&0].error);
        if let Some(prompt) = prompt {
            prompt.check(&done[&0].tokens, least_gap, what);
        }
    }
    for prompt in &prompts {
        let again = submit(engine, prompt.request()).unwrap().wait();
        prompt.check(&again[&0].tokens, least_gap, what);
        let cached = again[&0].last.as_ref().unwrap().metrics.num_cached_tokens;
        assert_eq!(cached, (prompt.tokens.len() - 1) / BLOCK * BLOCK, "{what}");
    }
    assert_nothing_left_of(engine, allocations);
}

#[test]
fn texts_about_images_are_those_of_transformers() {
    for name in NAMES {
        let folder = tempfile::tempdir().unwrap();
        let args = write(name, folder.path());
        // The last one cuts prompts, but no image of Gemma.
        let speculative_config = Some(SpeculativeConfig::default());
        for args in [
            args.clone(),
            EngineArgs { speculative_config, ..args.clone() },
            EngineArgs { max_num_batched_tokens: Some(22), ..args },
        ] {
            let what = format!("{name}, steps of {:?}, {:?}", args.max_num_batched_tokens, args.speculative_config);
            let engine = Engine::load(args, &mut |_| true).unwrap();
            check(&engine, name, 1e-2, &what);
            engine.close();
        }
    }
}

#[test]
fn texts_about_images_on_a_gpu() {
    check_on(devices::open(CPU_TARGETS[0]), 1);
}

#[test]
fn texts_about_images_on_this_machines_gpu() {
    check_on(devices::open_real(), NAMES.len());
}

/// A GPU rounds the inputs of products to 16 bits. The first `in_short_steps` families run in short steps too.
pub(in crate::tests) fn check_on(device: Option<(Device, GpuOptions)>, in_short_steps: usize) {
    let Some((device, options)) = device else { return };
    for (number, name) in NAMES.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let args = write(name, folder.path());
        let settings = [(96, false, KvCacheDtype::F16), (22, true, KvCacheDtype::F32)];
        let count = if number < in_short_steps { 2 } else { 1 };
        for (tokens, batch_invariant, dtype) in settings.into_iter().take(count) {
            let args = EngineArgs {
                device: DeviceKind::Gpu,
                gpu: GpuOptions { batch_invariant, ..options.clone() },
                max_num_batched_tokens: Some(tokens),
                kv_cache_dtype: dtype,
                ..args.clone()
            };
            let what = format!("{name}, steps of {tokens}, {dtype:?}");
            let loaded = load_on(&args, || Ok(OpenDevice::Gpu(device.clone())), &mut |_| true).unwrap();
            let engine = Engine::start(loaded).unwrap();
            check(&engine, name, 0.2, &what);
            engine.close();
        }
        assert_eq!(device.allocated_bytes(), 0, "{name}");
    }
}

/// Returns the reader of a golden encoder whose spec was changed.
fn reader(name: &str, change: impl Fn(&mut Sizing)) -> ImageReader {
    let open = |file: String| testdata::file(&format!("vision/{file}"));
    let (model, projector) = (open(format!("{name}.gguf")), open(format!("{name}.mmproj.gguf")));
    let tokenizer = load_tokenizer(GgufFile::open(&model.0).unwrap().metadata()).unwrap().unwrap();
    let mut spec = VisionSpec::from_gguf(&GgufFile::open(&projector.0).unwrap()).unwrap();
    change(&mut spec.preparation.sizing);
    ImageReader::new(projector.0.clone(), spec, &tokenizer).unwrap()
}

/// The expected tokens are those of `<fake_token_around_image><global-img><image>...<fake_token_around_image>`.
#[test]
fn an_image_of_one_part_has_texts_of_its_own() {
    let reader = reader("smolvlm", |sizing| *sizing = Sizing::Twice { longest: 18, side: 18, kept: 16 });
    let picture = || Arc::new(Picture::from_rgb(2, 1, vec![0; 6]).unwrap());
    let (tokens, images, _) = reader.expand(&[3, 479, 479, 4], vec![picture(), picture()]).unwrap();
    let image = [477, 478, 479, 479, 479, 479, 477];
    assert_eq!(tokens, [&[3][..], &image, &image, &[4]].concat());
    assert_eq!(
        images.spans.iter().map(|span| (span.first, span.grid)).collect::<Vec<_>>(),
        [(3, [2, 2]), (10, [2, 2])]
    );
    assert_eq!(reader.num_tokens(&picture()).unwrap(), 4);
}

/// Steps beside newcomers and decodes have few prompt tokens, but always room for an image that may not be cut.
#[test]
fn an_image_fits_beside_others() {
    let limits = SchedulerConfig {
        max_prefill_beside_newcomers: 160,
        beside_decodes: Some(BesideDecodes { step_micros: 1, min_prefill: 16 }),
        ..Rig::new().engine.inner.shared.limits.clone()
    };
    let room = |name: &str, pixels: usize| {
        let reader = reader(name, |sizing| {
            if let Sizing::Square { side } = sizing {
                *side = pixels;
            }
        });
        let limits = with_room_for(reader.most_uncut_tokens(), limits.clone());
        (limits.max_prefill_beside_newcomers, limits.beside_decodes.unwrap().min_prefill)
    };
    let rooms = [room("gemma3", 64), room("gemma3", 256), room("qwen3vl", 256)];
    assert_eq!(rooms, [(160, 16), (256, 256), (160, 16)]);
}

/// Blocks with rows of an image are those of this image alone.
#[test]
fn images_share_blocks_only_with_themselves() {
    for name in NAMES {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::load(write(name, folder.path()), &mut |_| true).unwrap();
        let prompt = &prompts(name)[0];
        let picture = &prompt.images[0];
        let inverted = picture.rgb().iter().map(|byte| !byte).collect();
        let other = Arc::new(Picture::from_rgb(picture.width(), picture.height(), inverted).unwrap());
        let cached = |image: &Arc<Picture>| {
            let draft = Draft { images: vec![Arc::clone(image)], ..prompt.request() };
            let done = submit(&engine, draft).unwrap().wait();
            done[&0].last.as_ref().unwrap().metrics.num_cached_tokens
        };
        let shorter = prompt.short.iter().zip(&prompt.tokens).take_while(|(one, other)| one == other).count();
        let whole = (prompt.tokens.len() - 1) / BLOCK * BLOCK;
        assert_eq!([cached(picture), cached(&other)], [0, (shorter - 1) / BLOCK * BLOCK], "{name}");
        assert_eq!([cached(picture), cached(&other)], [whole, whole], "{name}");
        engine.close();
    }
}

/// An encoder of the same size in the folder of a model that was not made for images is left alone, unless it is named.
#[test]
fn an_encoder_of_another_model_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("llama_bias.gguf");
    std::fs::write(&model, testdata::bytes("arch/llama_bias.gguf")).unwrap();
    let args = EngineArgs { model, ..write("pixtral", folder.path()) };
    let engine = Engine::load(args.clone(), &mut |_| true).unwrap();
    assert!(engine.images().is_none());
    assert_nothing_left_of(&engine, engine.stats().device_allocations);
    engine.close();
    let named = EngineArgs { mmproj: Some(folder.path().join("pixtral.mmproj.gguf")), ..args };
    let error = Engine::load(named, &mut |_| true).err().unwrap().to_string();
    assert!(error.contains("a tokenizer without [IMG]"), "{error}");
}

#[test]
fn images_that_cannot_be_served_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let args = write("gemma3", folder.path());
    let prompt = &prompts("gemma3")[0];
    let refused = |args: EngineArgs, images: usize| {
        let engine = Engine::load(args, &mut |_| true).unwrap();
        let images = vec![Arc::clone(&prompt.images[0]); images];
        let error = submit(&engine, Draft { images, ..prompt.request() }).err().unwrap().to_string();
        assert_nothing_left_of(&engine, engine.stats().device_allocations);
        engine.close();
        error
    };
    let error = refused(args.clone(), 2);
    assert!(error.contains("2 images for 1 placeholders"), "{error}");
    let error = refused(EngineArgs { mmproj: Some("none".into()), ..args.clone() }, 1);
    assert!(error.contains("mmproj-*.gguf"), "{error}");
    let error = refused(EngineArgs { max_num_batched_tokens: Some(18), ..args.clone() }, 1);
    assert!(error.contains("tokens of an image") && error.contains("at most 13"), "{error}");
    std::fs::write(folder.path().join("wrong.gguf"), testdata::bytes("vision/qwen3vl.mmproj.gguf")).unwrap();
    let wrong = EngineArgs { mmproj: Some(folder.path().join("wrong.gguf")), ..args };
    let error = Engine::load(wrong, &mut |_| true).err().unwrap().to_string();
    assert!(error.contains("qwen3vl_merger"), "{error}");
}

/// Requests that end at any time, also while their images are encoded, leave nothing.
#[test]
fn cancelled_requests_with_images_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::load(write("qwen3vl", folder.path()), &mut |_| true).unwrap();
    let allocations = engine.stats().device_allocations;
    let prompts = prompts("qwen3vl");
    let picture = |i: u8| {
        let first = &prompts[0].images[0];
        let rgb = first.rgb().iter().map(|byte| byte ^ (i % 7)).collect();
        Arc::new(Picture::from_rgb(first.width(), first.height(), rgb).unwrap())
    };
    for round in 0..25u8 {
        let clients: Vec<Client> = (0..4)
            .map(|i| {
                let timeout = (i == 3).then(|| std::time::Duration::from_millis(3));
                let draft = Draft { images: vec![picture(4 * round + i)], timeout, ..prompts[0].request() };
                submit(&engine, draft).unwrap()
            })
            .collect();
        for (i, client) in clients.iter().enumerate().filter(|(i, _)| !(i + round as usize).is_multiple_of(3)) {
            std::thread::sleep(std::time::Duration::from_micros(200 * i as u64 * u64::from(round)));
            engine.abort(&client.accepted.name).unwrap();
        }
        for client in clients {
            client.wait();
        }
    }
    assert_nothing_left_of(&engine, allocations);
    engine.close();
}
