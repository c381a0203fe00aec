//! Selection with several blocks per row of logits.

use crate::backend::{Backend, Loader};
use crate::conformance::{Random, fill, matrix};
use crate::selection::{Alteration, AlteredToken, Penalties, SamplingRequest, Selected, TokenMask, Wanted};
use crate::testing::devices::{self, CPU_TARGETS};

/// The sum of a row has the same bits whichever of its blocks arrives last. The stand-in runs both orders.
/// Repeated selections agree, too.
#[test]
fn the_order_of_blocks_leaves_no_trace() {
    let cols = 33_000;
    let results = [CPU_TARGETS[0], CPU_TARGETS[1]].map(|target| {
        let device = devices::open(target)?;
        let mut loader = devices::loader(&device, 1);
        let table = matrix(&mut loader, &Random(1).values(cols), cols).unwrap();
        let mut logits = loader.alloc_buffer(1, cols).unwrap();
        let mut backend = loader.finish().unwrap();
        fill(&mut backend, &table, 1, &mut logits).unwrap();
        let results = [(); 3].map(|()| {
            backend.select(&logits, cols, &[Wanted::Argmax.into()]).unwrap();
            let selection = backend.collect(&logits, 1, cols).unwrap();
            let Selected::Argmax { token, log_sum_exp, .. } = selection.row(0) else { panic!("not what was wanted") };
            (token, log_sum_exp.to_bits())
        });
        assert_eq!(results, [results[0]; 3]);
        Some(results[0])
    });
    assert_eq!(results[0], results[1]);
}

/// If the tokens of several rows do not fit together, the last row comes to the host whole and unaltered. The row
/// before it is altered on the device.
#[test]
fn a_list_without_room_brings_its_row() {
    let Some(device) = devices::open(CPU_TARGETS[0]) else { return };
    let (rows, cols) = (2, 151_936);
    let values = Random(3).values(rows * cols);
    let mut loader = devices::loader(&device, rows);
    let table = matrix(&mut loader, &values, cols).unwrap();
    let mut logits = loader.alloc_buffer(rows, cols).unwrap();
    let mut backend = loader.finish().unwrap();
    fill(&mut backend, &table, rows, &mut logits).unwrap();
    // All tokens from 140,000 on are forbidden. There is room for 262,144 tokens.
    let forbidden = |id| AlteredToken { id, bias: f32::NEG_INFINITY, seen: 0 };
    let tokens: Vec<AlteredToken> = (0..140_000).map(forbidden).collect();
    let penalties = Penalties { repetition: 1.0, frequency: 0.0, presence: 0.0 };
    let request =
        SamplingRequest { alteration: Some(Alteration { tokens: &tokens, penalties }), ..Wanted::Argmax.into() };
    backend.select(&logits, cols, &[request; 2]).unwrap();
    let mut selection = backend.collect(&logits, rows, cols).unwrap();
    let Selected::Argmax { token, logit, .. } = selection.row(0) else { panic!("the first list has room") };
    let largest = values[140_000..cols].iter().copied().fold(f32::MIN, f32::max);
    assert_eq!((token >= 140_000, logit), (true, largest));
    assert_eq!(values[token as usize], largest);
    assert_eq!(selection.row(1), Selected::Row(&values[cols..]));
    assert_eq!(selection.whole_row(0).unwrap(), &values[..cols]);
    assert_eq!(selection.num_fetched(), 1);
}

/// Two rows have room for the masks of 524,288 tokens, so only one mask of 300,000 fits. The second row comes to the
/// host unaltered.
#[test]
fn a_mask_without_room_brings_its_row() {
    let Some(device) = devices::open(CPU_TARGETS[0]) else { return };
    let (rows, cols) = (2, 300_000);
    let values = Random(4).values(rows * cols);
    let mut loader = devices::loader(&device, rows);
    let table = matrix(&mut loader, &values, cols).unwrap();
    let mut logits = loader.alloc_buffer(rows, cols).unwrap();
    let mut backend = loader.finish().unwrap();
    fill(&mut backend, &table, rows, &mut logits).unwrap();
    // Tokens 65 to 127 may come: the mask allows these and 64, which is forbidden.
    let mask = TokenMask::from_words(vec![0, 0, u32::MAX, u32::MAX]);
    let tokens = [AlteredToken { id: 64, bias: f32::NEG_INFINITY, seen: 0 }];
    let penalties = Penalties { repetition: 1.0, frequency: 0.0, presence: 0.0 };
    let alteration = Some(Alteration { tokens: &tokens, penalties });
    let request = SamplingRequest { alteration, mask: Some(&mask), ..Wanted::Argmax.into() };
    backend.select(&logits, cols, &[request; 2]).unwrap();
    let mut selection = backend.collect(&logits, rows, cols).unwrap();
    let Selected::Argmax { token, logit, .. } = selection.row(0) else { panic!("the first mask has room") };
    let largest = values[65..128].iter().copied().fold(f32::MIN, f32::max);
    assert_eq!((values[token as usize], logit), (largest, largest));
    assert_eq!(selection.row(1), Selected::Row(&values[cols..]));
    assert_eq!(selection.whole_row(0).unwrap(), &values[..cols]);
    assert_eq!(selection.num_fetched(), 1);
}
