//! What several blocks find of one row of logits.

use super::devices::{self, CPU_TARGETS};
use crate::backend::conformance::{Random, fill, matrix};
use crate::backend::{Backend, Loader};
use crate::selection::{Selected, Wanted};

/// The sum of a row has the same bits whichever of its blocks arrives last: the stand-in runs them in both orders, and as
/// often as it is asked to.
#[test]
fn the_order_of_blocks_leaves_no_trace() {
    let cols = 33_000;
    let results = [CPU_TARGETS[0], CPU_TARGETS[1]].map(|target| {
        let device = devices::open(target)?;
        let mut loader = devices::loader(&device, 1);
        let table = matrix(&mut loader, &Random(1).values(cols), cols);
        let mut logits = loader.alloc_buffer(1, cols).unwrap();
        let mut backend = loader.finish().unwrap();
        fill(&mut backend, &table, 1, &mut logits);
        let results = [(); 3].map(|()| {
            backend.begin_select(&logits, cols, &[Wanted::Argmax.into()]).unwrap();
            let selection = backend.select(&logits, 1, cols).unwrap();
            let Selected::Argmax { token, log_sum_exp, .. } = selection.row(0) else { panic!("not what was wanted") };
            (token, log_sum_exp.to_bits())
        });
        assert_eq!(results, [results[0]; 3]);
        Some(results[0])
    });
    assert_eq!(results[0], results[1]);
}
