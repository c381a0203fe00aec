//! Weights in the host's memory: logits on the GPU backend do not depend on where the weights lie.

use super::gpu::Opened;
use super::{MAX_TOKENS, Model, load_tensors, tokens};
use crate::backend::gpu::tests::devices::{self, Call, Faults, Live};
use crate::backend::gpu::{Device, GpuBackend};
use crate::backend::{Backend, Loader, MemoryLedger, Reserve};
use crate::config::{GpuOptions, KvCacheDtype};
use crate::gguf::GgufFile;
use crate::model::{ModelSpec, ModelTensors};
use crate::testdata;
use crate::{Error, Result};

const OUT_OF_MEMORY: i32 = 2;

/// Where the weights of a model lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    AllOnDevice,
    /// Everything that may lie on the host.
    AllOnHost,
    /// The plan's choice, with room for half of the weights on the device.
    Half,
    /// One layer on the device.
    OneLayer,
    ExpertsOnHost,
}

/// Loads a model of which the device holds `total` bytes of weights if all lie there.
fn load(device: &Opened, name: &str, layout: Layout, total: u64) -> Result<Model<GpuBackend>> {
    let file = testdata::file(&format!("{name}.gguf"));
    let gguf = GgufFile::open(&file.0).unwrap();
    let spec = ModelSpec::from_gguf(&gguf, Some(super::MAX_MODEL_LEN)).unwrap();
    let tensors = ModelTensors::collect(&gguf, &spec).unwrap();
    let options = match layout {
        Layout::OneLayer => GpuOptions { layers: Some(1), ..device.1.clone() },
        Layout::ExpertsOnHost => GpuOptions { cpu_experts: Some(usize::MAX), ..device.1.clone() },
        Layout::AllOnDevice | Layout::AllOnHost | Layout::Half => device.1.clone(),
    };
    let mut loader = devices::loader(&(device.0.clone(), options), MAX_TOKENS);
    let room = loader.room_beside(tensors.uploads())? + total;
    let reserve = match layout {
        Layout::AllOnDevice => None,
        Layout::AllOnHost => Some(Reserve { least: room - total + 1, wanted: room }),
        Layout::Half => Some(Reserve { least: room - total + 1, wanted: room - total / 2 }),
        Layout::OneLayer | Layout::ExpertsOnHost => Some(Reserve { least: 0, wanted: 0 }),
    };
    if let Some(reserve) = reserve {
        loader.place(tensors.uploads(), tensors.roles(), reserve)?;
    }
    load_tensors(loader, &tensors, KvCacheDtype::F16)
}

/// Returns the logits of a prompt, then of three sequences that decode together in captured graphs.
fn logits(model: &mut Model<GpuBackend>, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut all = vec![model.logits(tokens, 0)];
    let lengths = [3, 40, 17];
    for new in 0..=2 {
        let start = |length: usize| if new == 0 { 0 } else { length + new - 1 };
        let seqs = lengths.map(|length| (&tokens[..length + new], start(length)));
        all.push(model.step(&seqs).unwrap());
    }
    all
}

/// Checks every layout that differs for this model: the logits are those of the model on the device, to the bit.
fn check_layouts((device, options, faults): &(Device, GpuOptions, Faults), name: &str, layouts: &[Layout]) {
    let device = (device.clone(), options.clone());
    let tokens = tokens(&testdata::npz(name));
    let (expected, total) = {
        let mut model = load(&device, name, Layout::AllOnDevice, 0).unwrap();
        (logits(&mut model, &tokens), model.backend.memory().weights)
    };
    for &layout in layouts {
        let mut model = load(&device, name, layout, total).unwrap();
        let MemoryLedger { weights, kv_cache, scratch, other, host_weights } = model.backend.memory();
        println!("{name} {layout:?}: {weights} bytes on the device, {host_weights} on the host");
        assert_eq!(weights + host_weights, total, "{name} {layout:?}");
        assert_eq!(weights + kv_cache + scratch + other, device.0.allocated_bytes(), "{name} {layout:?}");
        match layout {
            Layout::AllOnHost => assert!(weights < total / 4, "{name}: {weights} of {total} bytes on the device"),
            Layout::Half => assert!(weights <= total / 2 && weights > total / 4, "{name}: {weights} of {total}"),
            _ => assert!(weights > 0 && host_weights > 0, "{name} {layout:?}"),
        }
        assert!(model.backend.describe().contains("of weights in the host's memory, of which a token reads"));
        assert!(logits(&mut model, &tokens) == expected, "{name} {layout:?}: other logits");
        drop(model);
        assert_eq!((device.0.allocated_bytes(), faults.live()), (0, Live::default()), "{name} {layout:?}");
    }
}

/// Families, and the layouts that differ for each.
type Layouts = [(&'static str, &'static [Layout])];

/// A dense model, mixtures with and without biases, a hybrid with experts, one with Mamba-2, and one with a table of
/// per-layer inputs.
pub(super) const LAYOUTS: [(&str, &[Layout]); 6] = [
    ("qwen3", &[Layout::AllOnHost, Layout::Half, Layout::OneLayer]),
    ("granitehybrid", &[Layout::AllOnHost, Layout::Half, Layout::OneLayer]),
    ("gemma4_e", &[Layout::AllOnHost, Layout::Half, Layout::OneLayer]),
    ("qwen3moe", &[Layout::AllOnHost, Layout::Half, Layout::OneLayer, Layout::ExpertsOnHost]),
    ("gpt_oss", &[Layout::AllOnHost, Layout::Half, Layout::OneLayer, Layout::ExpertsOnHost]),
    ("qwen35moe", &[Layout::AllOnHost, Layout::Half, Layout::OneLayer, Layout::ExpertsOnHost]),
];

/// Each family and each layout once. `make test-kernels` checks all pairs.
#[test]
fn logits_do_not_depend_on_the_place_of_weights() {
    check_families(&[
        ("qwen3", &[Layout::OneLayer]),
        ("granitehybrid", &[Layout::AllOnHost]),
        ("gemma4_e", &[Layout::Half]),
        ("qwen3moe", &[Layout::ExpertsOnHost]),
        ("gpt_oss", &[Layout::AllOnHost]),
        ("qwen35moe", &[Layout::Half]),
    ]);
}

pub(super) fn check_families(families: &Layouts) {
    let Some(device) = devices::open_faulty("cpu-wave32:up@placed") else { return };
    for (name, layouts) in families {
        check_layouts(&device, &format!("arch/{name}"), layouts);
    }
}

/// G3: whatever call for the host's memory fails, the load ends in an error, and nothing is left.
#[test]
fn refused_host_memory_leaves_nothing_behind() {
    let Some((device, options, faults)) = devices::open_faulty("cpu-wave32:up@pinned") else { return };
    let opened = (device, options);
    let load = || load(&opened, "arch/qwen3moe", Layout::OneLayer, 0).map(|model| model.backend.memory().host_weights);
    assert!(load().unwrap() > 0);
    for call in [Call::AllocateHost, Call::HostOnDevice, Call::FreeHost] {
        for nth in 0.. {
            faults.fail(call, nth, OUT_OF_MEMORY);
            let loaded = load().and_then(|_| opened.0.check());
            if faults.disarm() {
                loaded.unwrap();
                assert!(nth > 3, "{nth} calls of {call:?}");
                break;
            }
            let error = loaded.unwrap_err();
            assert!(matches!(error, Error::OutOfMemory { .. } | Error::Device { .. }), "{call:?} {nth}: {error}");
            assert_eq!((opened.0.allocated_bytes(), faults.live()), (0, Live::default()), "{call:?} {nth}");
        }
    }
}
