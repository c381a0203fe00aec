//! One sequence of a request: its sampling, its text, and its end.

use std::sync::Arc;
use std::time::Instant;

use super::stop::{StopFound, StopMatcher, StopStrings};
use crate::Result;
use crate::config::SamplingParams;
use crate::guidance::{Accepted, Guidance, Rule};
use crate::output::{FinishReason, StopReason};
use crate::sampler::{SequenceSampler, TokenLogprobs};
use crate::speculation::{Proposal, Proposer};
use crate::tokenizer::{StreamDecoder, Tokenizer};

/// The conditions under which sequences of a request end.
#[derive(Debug, Clone)]
pub(crate) struct EndRules {
    /// The model's end tokens, sorted; empty if they are ignored.
    pub end_tokens: Arc<[u32]>,
    /// The number of tokens at which the model's length or `max_tokens` is reached.
    pub max_generated: usize,
}

#[derive(Debug)]
pub(crate) struct Sequence {
    sampler: SequenceSampler,
    rules: EndRules,
    text: Option<TextStream>,
    /// The constraints on the text, if the request has any.
    guidance: Option<Guidance>,
    /// Proposes draft tokens, if the engine uses speculative decoding.
    proposer: Option<Proposer>,
    cumulative_logprob: Option<f64>,
    /// True while the sequence skips steps: its next token, or the row for it, is known but cannot be taken yet.
    pub(crate) parked: bool,
    /// True if the scheduler knows the sequence; it does not know forks before their parent's first token.
    scheduled: bool,
    ended: bool,
}

/// The effect of a token on its sequence: new text, and the end if it is the last token.
#[derive(Debug)]
pub(crate) struct Pushed {
    pub text: String,
    pub end: Option<(FinishReason, Option<StopReason>)>,
}

impl Sequence {
    pub(crate) fn new(
        sampler: SequenceSampler,
        rules: EndRules,
        text: Option<TextStream>,
        guidance: Option<Guidance>,
        proposer: Option<Proposer>,
        scheduled: bool,
    ) -> Self {
        let cumulative_logprob = sampler.params().logprobs.map(|_| 0.0);
        Self { sampler, rules, text, guidance, proposer, cumulative_logprob, parked: false, scheduled, ended: false }
    }

    /// Returns the next tokens as far as only one continuation is possible.
    pub(crate) fn forced(&self) -> &[u32] {
        self.guidance.as_ref().map_or(&[], Guidance::forced)
    }

    /// Proposes draft tokens to follow these tokens, which are about to be pushed. One step must be able to verify all
    /// of them. So neither forced tokens, nor tokens of structured output, nor the text's last token are drafted.
    pub(crate) fn propose(&mut self, tokens: &[u32]) -> Option<Proposal> {
        let proposer = self.proposer.as_mut()?;
        proposer.push(tokens);
        let ends = |token: &u32| ends(&self.rules, &self.sampler, *token);
        let begins = |token: &u32| begins_form(self.guidance.as_ref(), *token);
        let free = self.guidance.as_ref().map_or(usize::MAX, |guidance| guidance.num_free_behind(tokens));
        let left = self.rules.max_generated.saturating_sub(self.sampler.generated() + tokens.len());
        let most = if tokens.iter().any(ends) { 0 } else { free.min(left).saturating_sub(1) };
        proposer.proposed(most, |token| !ends(&token) && !begins(&token))
    }

    /// Takes the draft tokens that the model has computed.
    pub(crate) fn drafted(&mut self, tokens: &[u32]) {
        if let Some(proposer) = &mut self.proposer {
            proposer.drafted(tokens);
        }
    }

    /// True if other rules hold after this token than before it, so that no row after it can be used.
    pub(super) fn turns_at(&self, token: u32) -> bool {
        ends(&self.rules, &self.sampler, token) || begins_form(self.guidance.as_ref(), token)
    }

    pub(crate) fn is_guided(&self) -> bool {
        self.guidance.is_some()
    }

    /// Starts computing the next mask, if that takes time.
    pub(crate) fn prepare(&mut self) {
        self.guidance.iter_mut().for_each(Guidance::prepare);
    }

    /// True if the next mask is being computed.
    pub(crate) fn is_awaited(&self) -> bool {
        self.guidance.as_ref().is_some_and(Guidance::is_awaited)
    }

    /// Takes the computed mask; false if it is not ready by the deadline.
    pub(crate) fn settle_by(&mut self, deadline: Instant) -> bool {
        self.guidance.as_mut().is_none_or(|guidance| guidance.settle_by(deadline))
    }

    /// True if the next token can be taken without waiting for other texts. Waits until the deadline.
    pub(crate) fn take_turn_by(&mut self, deadline: Instant) -> bool {
        self.guidance.as_mut().is_none_or(|guidance| guidance.take_turn_by(deadline))
    }

    /// Lets other texts continue.
    pub(crate) fn pass_turn(&mut self) {
        self.guidance.iter_mut().for_each(Guidance::pass_turn);
    }

    /// Returns the rule for the token that comes `ahead` tokens after the next one. The tokens in between are forced.
    pub(crate) fn rule(&self, ahead: usize) -> Result<Rule<'_>> {
        self.guidance.as_ref().map_or(Ok(Rule::Free), |guidance| guidance.rule(ahead))
    }

    pub(crate) fn sampler(&self) -> &SequenceSampler {
        &self.sampler
    }

    pub(crate) fn generated(&self) -> usize {
        self.sampler.generated()
    }

    pub(crate) fn cumulative_logprob(&self) -> Option<f64> {
        self.cumulative_logprob
    }

    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// True if the sequence holds blocks or waits for them.
    pub(crate) fn in_scheduler(&self) -> bool {
        self.scheduled && !self.ended
    }

    /// True if the request's first sequence is about to fork into all of them, with its first token.
    pub(super) fn forks_now(&self, index: usize) -> bool {
        index == 0 && self.generated() == 0
    }

    pub(crate) fn forked(&mut self) {
        self.scheduled = true;
    }

    /// Takes the sequence's next token. Ends are checked in this order: end token, stop token, stop string, end of the
    /// grammar, length.
    pub(crate) fn push(&mut self, token: u32, logprobs: Option<&TokenLogprobs>) -> Result<Pushed> {
        self.sampler.accept(token);
        if let (Some(sum), Some(chosen)) = (&mut self.cumulative_logprob, logprobs.and_then(|l| l.first())) {
            *sum += f64::from(chosen.logprob);
        }
        let params = self.sampler.params();
        let stop_reason = if self.rules.end_tokens.binary_search(&token).is_ok() {
            Some(None)
        } else if params.stop_token_ids.contains(&token) {
            Some(Some(StopReason::Token(token)))
        } else {
            None
        };
        let mut text = String::new();
        let mut end = stop_reason.map(|reason| (FinishReason::Stop, reason));
        if let Some(stream) = &mut self.text
            && (end.is_none() || params.include_stop_str_in_output)
        {
            let scan = self.sampler.generated() > params.min_tokens;
            match stream.push(token, scan, params.include_stop_str_in_output)? {
                Ok(piece) => text = piece,
                Err(found) => {
                    self.ended = true;
                    let end = Some((FinishReason::Stop, Some(StopReason::String(found.stop))));
                    return Ok(Pushed { text: found.text, end });
                }
            }
        }
        if end.is_none()
            && let Some(guidance) = &mut self.guidance
        {
            match guidance.accept(token)? {
                Accepted::GoesOn => {}
                Accepted::OutputBegins => self.sampler.begin_output(),
                Accepted::Complete => end = Some((FinishReason::Stop, None)),
            }
        }
        if end.is_none() && self.generated() >= self.rules.max_generated {
            end = Some((FinishReason::Length, None));
        }
        if end.is_some() {
            let (rest, stop) = self.finish();
            text.push_str(&rest);
            // The stop string precedes the end token in the text, so it came first.
            if let Some(stop) = stop {
                end = Some((FinishReason::Stop, Some(StopReason::String(stop))));
            }
        }
        Ok(Pushed { text, end })
    }

    /// Ends the sequence and returns the text that was held back.
    pub(crate) fn end(&mut self) -> String {
        self.finish().0
    }

    /// Returns the text that was held back, up to the stop string that it may complete.
    fn finish(&mut self) -> (String, Option<String>) {
        self.ended = true;
        let params = self.sampler.params();
        let scan = self.sampler.generated() > params.min_tokens;
        let include = params.include_stop_str_in_output;
        self.text.as_mut().map(|text| text.finish(scan, include)).unwrap_or_default()
    }
}

fn ends(rules: &EndRules, sampler: &SequenceSampler, token: u32) -> bool {
    rules.end_tokens.binary_search(&token).is_ok() || sampler.params().stop_token_ids.contains(&token)
}

fn begins_form(guidance: Option<&Guidance>, token: u32) -> bool {
    guidance.and_then(Guidance::begin_token) == Some(token)
}

/// Turns tokens into text, up to a stop string.
#[derive(Debug)]
pub(crate) struct TextStream {
    decoder: StreamDecoder,
    stops: StopMatcher,
}

impl TextStream {
    pub(crate) fn new(tokenizer: &Arc<Tokenizer>, params: &SamplingParams, stops: StopStrings) -> Self {
        let decoder = StreamDecoder::continuing(Arc::clone(tokenizer), params.skip_special_tokens);
        Self { decoder, stops: StopMatcher::new(stops) }
    }

    /// The text of the first `min_tokens` tokens is not searched for stop strings (`scan` is false).
    fn push(&mut self, token: u32, scan: bool, include: bool) -> Result<std::result::Result<String, StopFound>> {
        let piece = self.decoder.push(token)?;
        Ok(if scan { self.stops.push(piece, include) } else { Ok(piece) })
    }

    /// Returns the text that was held back, with U+FFFD for an incomplete character. It may contain a stop string, too.
    fn finish(&mut self, scan: bool, include: bool) -> (String, Option<String>) {
        let rest = self.decoder.finish();
        match if scan { self.stops.push(rest, include) } else { Ok(rest) } {
            Ok(mut text) => {
                text.push_str(&self.stops.finish());
                (text, None)
            }
            Err(StopFound { stop, text }) => (text, Some(stop)),
        }
    }
}
