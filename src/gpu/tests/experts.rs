//! The loader and the op refuse some mixtures of experts, and others take exactly the announced memory.

use crate::backend::{ExpertSpec, ExpertTensors, Fusions, Loader, Norm, NormExperts, Upload};
use crate::conformance::{Random, bytes_of, fill, matrix, vector, within};
use crate::quant::GgmlType;
use crate::tensor::TensorView;
use crate::testing::devices::{self, CPU_TARGETS};
use crate::{Error, Result};

/// Calls `with` with the tensors of such experts, in f32.
fn with_tensors<T>(spec: ExpertSpec, with: impl FnOnce(&ExpertTensors<'_>) -> T) -> T {
    let ExpertSpec { num, hidden_size: hidden, ffn_size: ffn, .. } = spec;
    let shapes = [(num, hidden), (num * ffn, hidden), (num * ffn, hidden), (num * hidden, ffn)];
    let data = shapes.map(|(rows, cols)| bytes_of(&Random(1).values(rows * cols)));
    let view = |i: usize| {
        let (rows, cols) = shapes[i];
        TensorView { name: "experts", ggml_type: GgmlType::F32, rows, cols, data: &data[i], scales: &[] }
    };
    with(&ExpertTensors {
        spec,
        router: view(0),
        gate: Some(view(1)),
        up: view(2),
        down: view(3),
        fused: false,
        router_bias: None,
        choice_bias: None,
        output_scales: None,
        biases: None,
    })
}

/// G23: announced experts have reserved room: experts of odd sizes need no further allocation.
#[test]
fn announced_experts_take_no_allocation() {
    let Some(device) = devices::open(CPU_TARGETS[0]) else { return };
    with_tensors(ExpertSpec::plain(5, 2, 33, 17), |tensors| {
        let mut loader = devices::loader(&device, 4);
        loader.reserve_weights(&[Upload::Experts(Box::new(*tensors)), Upload::Experts(Box::new(*tensors))], 0).unwrap();
        let before = device.0.allocations();
        loader.upload_experts(tensors, &mut |_| Ok(())).unwrap();
        loader.upload_experts(tensors, &mut |_| Ok(())).unwrap();
        assert_eq!(device.0.allocations(), before);
    });
}

/// Experts that the kernels cannot route are refused at load, with advice.
#[test]
fn more_experts_than_the_kernels_take_are_refused() {
    let Some(device) = devices::open(CPU_TARGETS[0]) else { return };
    for (spec, ok) in [
        (ExpertSpec::plain(512, 32, 1, 1), true),
        (ExpertSpec::plain(513, 2, 1, 1), false),
        (ExpertSpec::plain(64, 33, 1, 1), false),
    ] {
        let loaded = with_tensors(spec, |tensors| {
            devices::loader(&device, 1).upload_experts(tensors, &mut |_| Ok(())).map(drop)
        });
        assert_eq!(loaded.is_ok(), ok, "{spec:?}");
        if let Err(error) = loaded {
            assert!(matches!(error, Error::Device { .. }), "{error}");
            assert!(error.to_string().contains("use device=\"cpu\""), "{error}");
        }
    }
}

/// More rows than fit, and room of other experts, are errors before anything is launched.
#[test]
fn steps_keep_to_their_room() {
    let Some(device) = devices::open(CPU_TARGETS[0]) else { return };
    let run = |of_work: ExpertSpec, rows: usize| -> Result<()> {
        let spec = ExpertSpec::plain(4, 2, 8, 8);
        let mut loader = devices::loader(&device, 8);
        let experts = with_tensors(spec, |tensors| loader.upload_experts(tensors, &mut |_| Ok(())))?;
        let mut work = loader.alloc_expert_work(&of_work, 3)?;
        let norm = vector(&mut loader, &[1.0; 8]).unwrap();
        let table = matrix(&mut loader, &[1.0; 64], 8).unwrap();
        let [mut residual, mut normed] = [loader.alloc_buffer(8, 8)?, loader.alloc_buffer(8, 8)?];
        let mut backend = loader.finish()?;
        fill(&mut backend, &table, 8, &mut residual).unwrap();
        let norm = Norm::rms(&norm, 1e-5);
        within(&mut backend, rows, |step| {
            let (experts, normed, work, residual) = (&experts, &mut normed, &mut work, &mut residual);
            step.norm_experts(NormExperts { norm, experts, rows, normed, work, residual })
        })
    };
    run(ExpertSpec::plain(4, 2, 8, 8), 3).unwrap();
    run(ExpertSpec::plain(4, 2, 8, 8), 0).unwrap();
    assert!(matches!(run(ExpertSpec::plain(4, 2, 8, 8), 4), Err(Error::Internal { .. })));
    assert!(matches!(run(ExpertSpec::plain(4, 3, 8, 8), 3), Err(Error::Internal { .. })));
}
