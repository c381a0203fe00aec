//! Draft tokens of the MTP block, compared with those of transformers' NextN block.

pub(super) mod draft_model;

use std::cmp::Reverse;

use super::families::states::argmax;
use super::{CpuModel, MAX_TOKENS, Model, distance, load_spec, load_with_kv, max_abs, tokens};
use crate::Error;
use crate::backend::{Backend, Loader};
use crate::batch::{Batch, TO_DRAFT};
use crate::config::KvCacheDtype;
use crate::cpu::CpuLoader;
use crate::gguf::GgufFile;
use crate::selection::Needs;
use crate::testdata;
use crate::testmodels::right_drafts;
use crate::vision::Images;
use crate::{ModelSpec, ModelTensors};

const NAME: &str = "arch/qwen35_mtp";

fn load_on<L: Loader>(loader: L, dtype: KvCacheDtype) -> Model<L::Backend> {
    let file = testdata::file(&format!("{NAME}.gguf"));
    let gguf = GgufFile::open(&file.0).unwrap();
    let spec = ModelSpec::with_drafter(&gguf, None).unwrap();
    load_spec(loader, &gguf, &spec, dtype).unwrap()
}

fn load(dtype: KvCacheDtype) -> CpuModel {
    load_on(CpuLoader::new(2, MAX_TOKENS).unwrap(), dtype)
}

impl<B: Backend> Model<B> {
    /// Returns the logits of the draft tokens after the last token of each sequence. Their other tokens must be
    /// computed.
    pub(super) fn propose(&mut self, seqs: &[&[u32]]) -> Vec<Vec<f32>> {
        let batch = self.first(&(0..).zip(seqs).map(|(seq, tokens)| (seq, *tokens, 1)).collect::<Vec<_>>());
        let mut rows = self.decoder.propose(&mut self.backend, &batch, true).unwrap();
        (0..seqs.len()).map(|row| rows.whole_row(row).unwrap().to_vec()).collect()
    }

    /// Returns the batch that starts drafting after each of these numbered sequences. It has their last tokens, after
    /// all other tokens if the draft model may lack these.
    fn first(&self, seqs: &[(usize, &[u32], usize)]) -> Batch {
        let mut longest_first = seqs.to_vec();
        longest_first.sort_by_key(|&(.., count)| Reverse(count));
        let lags = self.decoder.spec().draft_lags();
        let start = |tokens: &[u32]| if lags { 0 } else { tokens.len() - 1 };
        let parts: Vec<_> = longest_first.iter().map(|&(seq, tokens, _)| (seq, tokens, start(tokens))).collect();
        let mut batch = self.batch_of(&parts);
        batch.logits_indices = batch.cu_seqlens_q[1..].iter().map(|end| end - 1).collect();
        batch.states.clear_writes();
        batch
    }

    /// Drafts the given number of tokens after each of these sequences. All tokens but the last must be computed.
    pub(super) fn draft(&mut self, seqs: &[(&[u32], usize)]) -> Vec<Vec<u32>> {
        let texts: Vec<Vec<u32>> =
            seqs.iter().map(|(tokens, count)| [*tokens, &vec![TO_DRAFT; *count]].concat()).collect();
        let parts: Vec<(&[u32], usize)> =
            texts.iter().zip(seqs).map(|(text, (tokens, _))| (&text[..], tokens.len() - 1)).collect();
        let mut batch = self.batch(&parts);
        let drafted: Vec<_> = (0..).zip(seqs).map(|(seq, (tokens, count))| (seq, *tokens, *count)).collect();
        let first = self.first(&drafted);
        self.decoder.draft(&mut self.backend, &mut batch, &first).unwrap();
        (0..seqs.len()).map(|seq| batch.token_ids[batch.tokens_of(seq)][1..].to_vec()).collect()
    }
}

/// Compares the draft tokens after each token of the golden text, and the model's logits, with the golden ones.
pub(super) fn check_drafts<L: Loader>(loader: L, dtype: KvCacheDtype, bound: f32) {
    let z = testdata::npz(NAME);
    let (tokens, expected, last) = (tokens(&z), z.f32("logits"), z.f32("mtp_logits_last8"));
    let mut model = load_on(loader, dtype);
    let vocab = expected.len() / tokens.len();
    let (mut got, mut error) = (Vec::new(), 0.0f32);
    for end in 1..tokens.len() {
        let row = model.logits(&tokens[..end], end - 1);
        error = error.max(distance(&row, &expected[(end - 1) * vocab..end * vocab]).0);
        got.extend(model.propose(&[&tokens[..=end]]).concat());
    }
    let first = got.len() - last.len();
    let of_drafts = distance(&got[first..], &last).0 / max_abs(&last);
    println!("{of_drafts:.2e} of the largest logit of draft tokens, {:.2e} of the model", error / max_abs(&expected));
    assert!(of_drafts < bound && error / max_abs(&expected) < bound, "{of_drafts:.2e}, {error:.2e}");
    let tokens: Vec<i32> = got.chunks(vocab).map(|row| argmax(row) as i32).collect();
    assert_eq!(tokens, z.i32("mtp_argmax"));
}

/// The draft token after a prompt without requested logits is the golden one.
#[test]
fn golden_draft_behind_a_prompt() {
    let z = testdata::npz(NAME);
    let (tokens, last) = (tokens(&z), z.f32("mtp_logits_last8"));
    let mut model = load(KvCacheDtype::F32);
    let mut batch = model.batch(&[(&tokens[..tokens.len() - 1], 0)]);
    batch.logits_indices.clear();
    model.decoder.launch(&mut model.backend, &batch, &Images::new(), Needs { logits: true, hidden: false }).unwrap();
    model.decoder.collect(&mut model.backend).unwrap();
    let draft = model.propose(&[&tokens]).concat();
    let error = distance(&draft, &last[last.len() - draft.len()..]).0 / max_abs(&last);
    assert!(error < 1e-3, "{error:.2e} of the largest logit");
}

#[test]
fn golden_drafts() {
    check_drafts(CpuLoader::new(2, MAX_TOKENS).unwrap(), KvCacheDtype::F32, 1e-3);
}

/// The model's logits are bitwise equal with and without the block. Drafts do not depend on chunking or on other
/// sequences.
#[test]
fn drafts_are_the_same_in_pieces_and_beside_others() {
    let tokens = tokens(&testdata::npz(NAME));
    let mut model = load(KvCacheDtype::F16);
    let whole = model.logits(&tokens[..40], 0);
    assert!(whole == load_with_kv(&format!("{NAME}.gguf"), KvCacheDtype::F16).logits(&tokens[..40], 0));
    let expected = model.propose(&[&tokens[..41]]).concat();
    let drafts = model.draft(&[(&tokens[..41], 4)]);
    assert!(expected.iter().all(|logit| logit.is_finite()) && drafts[0].iter().all(|token| *token != TO_DRAFT));
    assert_eq!(drafts[0][0], argmax(&expected));
    let other = &tokens[..4];
    let mut model_of_other = load(KvCacheDtype::F16);
    model_of_other.logits(&other[..3], 0);
    let of_other_alone = model_of_other.draft(&[(other, 4)]);
    for cuts in [vec![1, 2, 17, 18, 31, 40], (1..=40).collect()] {
        let mut start = 0;
        for end in cuts {
            // Another text runs beside it, at another position.
            model.step(&[(&tokens[..end], start), (&tokens[..3], 0)]).unwrap();
            start = end;
        }
        let together = model.propose(&[&tokens[..41], other]);
        assert!(together[0] == expected);
        // The longest gap is not the first one.
        let [of_text, of_other] = &model.draft(&[(&tokens[..41], 2), (other, 4)])[..] else { panic!("two texts") };
        assert_eq!((&of_text[..], of_other), (&drafts[0][..2], &of_other_alone[0]));
    }
}

/// After wrong drafts, a text continues as if nothing had been drafted.
#[test]
fn wrong_drafts_leave_no_trace() {
    let tokens = tokens(&testdata::npz(NAME));
    let (mut model, mut plain) = (load(KvCacheDtype::F16), load(KvCacheDtype::F16));
    for (start, end) in [(0, 14), (14, 15), (15, 19), (19, 20)] {
        assert!(model.logits(&tokens[..end], start) == plain.logits(&tokens[..end], start));
        model.draft(&[(&tokens[..=end], 6)]);
    }
    let [with, without] = [&mut model, &mut plain].map(|model| model.draft(&[(&tokens[..21], 5)]));
    assert_eq!(with, without);
}

/// A suitably made block proposes the model's tokens, also several tokens ahead. Covers each architecture with MTP
/// blocks.
#[test]
fn a_block_that_is_made_right_drafts_right() {
    for name in ["glm4moe", "qwen35", "qwen35_mtp", "qwen35moe", "qwen3next"] {
        let file = right_drafts(name);
        let gguf = GgufFile::open(&file.0).unwrap();
        let spec = ModelSpec::with_drafter(&gguf, None).unwrap();
        let mut model = load_spec(CpuLoader::new(2, MAX_TOKENS).unwrap(), &gguf, &spec, KvCacheDtype::F16).unwrap();
        let mut text = tokens(&testdata::npz(&format!("arch/{name}")))[..7].to_vec();
        let mut start = 0;
        for _ in 0..5 {
            let logits = model.logits(&text, start);
            let vocab = logits.len() / (text.len() - start);
            start = text.len();
            text.push(argmax(&logits[logits.len() - vocab..]));
            let proposed = model.draft(&[(&text, 3)]).concat();
            let mut ahead = text.clone();
            for draft in proposed {
                let logits = model.logits(&ahead, ahead.len() - 1);
                assert_eq!(draft, argmax(&logits), "{name}: behind {ahead:?}");
                ahead.push(draft);
            }
        }
    }
}

/// Only the tokens after a step's first token may be drafted.
#[test]
fn drafts_elsewhere_are_refused() {
    let tokens = tokens(&testdata::npz(NAME));
    let mut model = load(KvCacheDtype::F16);
    model.logits(&tokens[..9], 0);
    let mut draft = |text: &[u32], start: usize| {
        let mut batch: Batch = model.batch(&[(text, start)]);
        model.decoder.draft(&mut model.backend, &mut batch, &Batch::default()).map(|()| batch)
    };
    let text = |end: &[u32]| [&tokens[..9], end].concat();
    // The last case has its `TO_DRAFT` in an allowed place, but the token before it is not computed.
    for (end, start) in [(&[5, 6, TO_DRAFT][..], 9), (&[TO_DRAFT], 9), (&[5, TO_DRAFT, 7], 9), (&[5, TO_DRAFT], 9)] {
        assert!(matches!(draft(&text(end), start), Err(Error::Internal { .. })), "{end:?}");
    }
    let untouched = draft(&text(&[5, 6]), 9).unwrap();
    assert_eq!(untouched.token_ids, [5, 6]);
}

/// Without drafting, the block takes no memory. With drafting, it adds one layer of keys and values. A file without a
/// block is an error that says so.
#[test]
fn the_block_is_there_where_it_is_wanted() {
    let open = |name: &str| testdata::file(&format!("arch/{name}.gguf"));
    let file = open("qwen35_mtp");
    let gguf = GgufFile::open(&file.0).unwrap();
    let [plain, with] = [ModelSpec::from_gguf(&gguf, None), ModelSpec::with_drafter(&gguf, None)].map(Result::unwrap);
    let bytes = |spec: &ModelSpec| {
        let tensors = ModelTensors::collect(&gguf, spec).unwrap();
        tensors.upload(&mut CpuLoader::new(1, MAX_TOKENS).unwrap(), 0, &mut |_| Ok(())).map(|_| tensors.uploads().len())
    };
    assert!(bytes(&plain).unwrap() < bytes(&with).unwrap());
    let layers = |spec: &ModelSpec| spec.kv_layers(&[4], 16, KvCacheDtype::F16);
    let (of_plain, of_with) = (layers(&plain), layers(&with));
    assert_eq!(of_with.len(), of_plain.len() + 1);
    assert!(of_with.last().is_some_and(|layer| layer.skips_first) && of_plain[..] == of_with[..of_plain.len()]);
    assert_eq!(with.kv_groups[0].layers.len(), plain.kv_groups[0].layers.len() + 1);
    assert_eq!(with.state_bytes(), plain.state_bytes() + 4 * with.hidden_size as u64);
    for name in ["qwen35", "qwen3", "glm4moe"] {
        let file = open(name);
        let error = ModelSpec::with_drafter(&GgufFile::open(&file.0).unwrap(), None).unwrap_err();
        assert!(matches!(error, Error::InvalidRequest { .. }), "{error}");
        assert!(error.to_string().contains("got mtp, expected a file with a NextN block"), "{error}");
    }
}
