//! Takes requests into the engine, advances them with each token, and ends them. Every end goes through `end_request`
//! or `accept`, and from there through `retire`.

use std::sync::Arc;

use super::{Core, Launched};
use crate::batch::SeqExtras;
use crate::config::{PoolingParams, SamplingParams};
use crate::guidance::Guidance;
use crate::ids::{RequestId, request_of, seq_id};
use crate::images::Encoded;
use crate::offload::Offload;
use crate::output::records::RequestRecord;
use crate::output::{FinishReason, RequestMetrics, SequenceOutput, SharedSink};
use crate::request::pooling::Pooled;
use crate::request::sequence::{EndRules, Sequence, TextStream};
use crate::request::stop::StopStrings;
use crate::request::{Generation, Pick, Request, Work};
use crate::sampler::SequenceSampler;
use crate::scheduler::{NewSequence, SeqId, Step, WaitingReason};
use crate::shared::{Admission, RequestKind};
use crate::threads::panics::{guarded, panicked};
use crate::{Error, Result};

impl Core {
    /// Admits a new request. From here on the engine knows it, whatever happens to it.
    pub(crate) fn admit(&mut self, admission: Admission) {
        let Admission { id, name, prompt, images, priority, cache_salt, client, arrival, arrival_time, deadline, kind } =
            admission;
        self.requests.note_taken();
        self.shared.watch.take_in(id);
        let (work, all_logits) = match kind {
            RequestKind::Tokens { params, seed, guidance, sink } => {
                let all_logits = params.prompt_logprobs.is_some();
                (Work::Generate(self.generation(params, seed, guidance, sink, &prompt)), all_logits)
            }
            RequestKind::Vector { params: PoolingParams { pooling, normalize }, sink } => {
                let pooling = pooling.unwrap_or(self.config.pooling);
                let head = self.device.executor().head().filter(|head| head.serves(pooling));
                let pooled = Pooled::new(pooling, normalize, head, sink);
                // A prompt that is computed in one step gets all its hidden states from that step.
                let all = pooled.wants_all() || self.config.is_bidirectional();
                (Work::Pool(pooled), all)
            }
            RequestKind::PromptLogits { reply } => (Work::PromptLogits { rows: Vec::new(), reply }, true),
        };
        let (will_fork, max_tokens) = match &work {
            Work::Generate(generation) => (generation.sequences.len() > 1, generation.params.max_tokens),
            Work::Pool(_) | Work::PromptLogits { .. } => (false, 0),
        };
        let sequence = NewSequence {
            id: seq_id(id, 0),
            prompt: Arc::clone(&prompt),
            max_tokens,
            priority,
            client,
            all_logits,
            cache_salt,
            will_fork,
            extras: SeqExtras { adapter: None, images: images.as_ref().map(|(images, _)| Arc::clone(images)) },
        };
        let metrics = RequestMetrics { arrival_time, ..Default::default() };
        let request = Request { id, name, prompt, arrival, deadline, started: false, metrics, work };
        self.requests.insert(request);
        let now = self.shared.clock.now();
        let added = match images {
            Some((_, images)) => self.images.encode(sequence, id, images),
            None => self.schedule_new(sequence),
        };
        if let Err(error) = added {
            self.end_request(id, FinishReason::Error, Some(error), now);
        }
    }

    /// Schedules a request whose images are encoded, unless it has ended meanwhile.
    pub(crate) fn encoded(&mut self, Encoded { request, rows, stats }: Encoded) {
        self.counters.images = stats;
        let now = self.shared.clock.now();
        let added = rows.and_then(|rows| match self.images.take(request, rows) {
            Some(sequence) => self.schedule_new(sequence),
            None => Ok(()),
        });
        if let Err(error) = added {
            self.end_request(request, FinishReason::Error, Some(error), now);
        }
    }

    fn generation(
        &self,
        params: Arc<SamplingParams>,
        seed: u64,
        guidance: Option<Guidance>,
        sink: SharedSink,
        prompt: &Arc<[u32]>,
    ) -> Generation {
        let end_tokens: Arc<[u32]> = match &self.tokenizer {
            Some(tokenizer) if !params.ignore_eos => tokenizer.eos_token_ids().into(),
            _ => Arc::from([]),
        };
        let masked: Arc<[u32]> = end_tokens.iter().chain(&params.stop_token_ids).copied().collect();
        let max_generated = params.max_tokens.min(self.config.max_model_len.saturating_sub(prompt.len()));
        let rules = EndRules { end_tokens, max_generated };
        let stops = StopStrings::new(&params.stop);
        let sampler = SequenceSampler::new(Arc::clone(&params), seed, 0, prompt, masked);
        let sequences = (0u32..)
            .take(params.n)
            .map(|index| {
                let text = self.tokenizer.as_ref().map(|tokenizer| TextStream::new(tokenizer, &params, stops.clone()));
                let guidance = guidance.as_ref().map(Guidance::sibling);
                let proposer = self.speculator.as_ref().map(|speculator| speculator.proposer(prompt));
                Sequence::new(sampler.sibling(index), rules.clone(), text, guidance, proposer, index == 0)
            })
            .collect();
        // The first token of a prompt has no token before it that could predict it.
        let prompt_logprobs = params.prompt_logprobs.map(|_| vec![None]);
        Generation { params, sink, sequences, prompt_logprobs }
    }

    /// Returns the requests with a waiting sequence, and what each waits for.
    pub(crate) fn waiting(&self) -> Vec<(Arc<str>, WaitingReason)> {
        let waiting = self.scheduler.waiting().into_iter().map(|(seq, reason)| (request_of(seq).0, reason));
        let encoding = self.images.waiting().map(|id| (id, WaitingReason::ImageEncoder));
        let named = |(id, reason)| self.requests.get(id).map(|request| (Arc::clone(&request.name), reason));
        let reading = self.offload.iter().flat_map(Offload::waiting).map(|id| (id, WaitingReason::KvOffload));
        waiting.chain(encoding).chain(reading).filter_map(named).collect()
    }

    /// Takes requests that run for the first time out of the queue.
    pub(super) fn note_started(&mut self, step: &Step, now: u64) {
        for scheduled in &step.seqs {
            let (id, _) = request_of(scheduled.id);
            let Some(request) = self.requests.get_mut(id).filter(|request| !request.started) else { continue };
            request.started = true;
            request.metrics.time_in_queue = Some(seconds(now - request.arrival.min(now)));
            self.counters.prompt_tokens += request.prompt.len() as u64;
            self.shared.leave_queue();
        }
    }

    /// Gives a sequence its next token, and ends the sequence if that is its last.
    pub(crate) fn accept(&mut self, pick: Pick, now: u64) {
        let (id, index) = request_of(pick.seq);
        let Some(request) = self.requests.get_mut(id) else { return };
        let age = seconds(now - request.arrival.min(now));
        if request.metrics.time_to_first_token.is_none() {
            request.metrics.time_to_first_token = Some(age);
            if let Some(info) = self.scheduler.info(pick.seq) {
                request.metrics.num_cached_tokens = info.num_cached_tokens;
                request.metrics.prefix_miss = info.prefix_miss;
            }
        }
        let mut metrics = request.metrics;
        let Some(generation) = request.generation() else { return };
        let sequence = &mut generation.sequences[index];
        if sequence.ended() {
            // An earlier token of the same step was the sequence's last.
            return;
        }
        let pushed = guarded(|| sequence.push(pick.token, pick.logprobs.as_ref()));
        let pushed = match pushed.unwrap_or_else(|payload| Err(panicked("detokenising", payload.as_ref()))) {
            Ok(pushed) => pushed,
            Err(error) => return self.end_request(id, FinishReason::Error, Some(error), now),
        };
        self.counters.generated_tokens += 1;
        let (finish_reason, stop_reason) = pushed.end.map_or((None, None), |(finish, stop)| (Some(finish), stop));
        let cumulative_logprob = sequence.cumulative_logprob();
        let all_ended = generation.sequences.iter().all(Sequence::ended);
        let sink = Arc::clone(&generation.sink);
        let prompt_logprobs = generation.prompt_logprobs.take();
        if finish_reason.is_some() {
            self.release(id, pick.seq, now);
            metrics = self.closing_metrics(id, all_ended, age).unwrap_or(metrics);
        }
        let output = SequenceOutput {
            request: id,
            index,
            token_ids: vec![pick.token],
            text: pushed.text,
            logprobs: pick.logprobs.into_iter().collect(),
            cumulative_logprob,
            prompt_logprobs,
            embedding: None,
            finish_reason,
            stop_reason,
            error: None,
            metrics,
        };
        self.unsent.push((sink, output));
        if let Some(reason) = finish_reason.filter(|_| all_ended)
            && let Some(request) = self.requests.remove(id)
        {
            self.retire(request, reason, None, now);
        }
    }

    /// Removes a sequence from the scheduler, which frees its blocks.
    fn release(&mut self, id: RequestId, seq: SeqId, now: u64) {
        let preemptions = self.scheduler.info(seq).map_or(0, |info| info.num_preemptions);
        self.scheduler.finish(seq, now);
        if let Some(request) = self.requests.get_mut(id) {
            request.metrics.num_preemptions += preemptions;
        }
    }

    fn closing_metrics(&mut self, id: RequestId, all_ended: bool, age: f64) -> Option<RequestMetrics> {
        let request = self.requests.get_mut(id)?;
        if all_ended {
            request.metrics.total_time = Some(age);
        }
        Some(request.metrics)
    }

    /// Ends a request in any state: its consumer gets the last outputs, and nothing of it remains.
    pub(super) fn end_request(&mut self, id: RequestId, reason: FinishReason, error: Option<Error>, now: u64) {
        let Some(request) = self.requests.get_mut(id) else { return };
        request.metrics.total_time = Some(seconds(now - request.arrival.min(now)));
        let mut in_scheduler = vec![seq_id(id, 0)];
        if let Work::Generate(generation) = &request.work {
            let live = generation.sequences.iter().enumerate().filter(|(_, sequence)| sequence.in_scheduler());
            in_scheduler = live.map(|(index, _)| seq_id(id, index)).collect();
        }
        for seq in in_scheduler {
            self.release(id, seq, now);
        }
        let Some(mut request) = self.requests.remove(id) else { return };
        self.unsent.extend(request.end_all(reason, error.as_ref()));
        self.retire(request, reason, error, now);
    }

    /// Ends a request that its caller aborted at `asked`, and measures how long its blocks stay in use after that.
    pub(crate) fn abort(&mut self, id: RequestId, asked: u64) {
        if self.requests.get(id).is_none() {
            return;
        }
        self.end_request(id, FinishReason::Abort, None, self.now());
        // A step in flight may still write to the blocks; they are freed with its commit.
        self.cancelled.push((self.scheduler.newest_step(), asked));
        self.note_freed();
    }

    /// Counts the aborted requests whose blocks are free now.
    pub(super) fn note_freed(&mut self) {
        if self.cancelled.is_empty() {
            return;
        }
        let (now, oldest) = (self.now(), self.scheduler.oldest_step());
        let durations = &mut self.counters.cancel_to_free;
        self.cancelled.retain(|&(newest, asked)| {
            let is_held = newest.is_some_and(|newest| oldest.is_some_and(|oldest| oldest <= newest));
            if !is_held {
                durations.record(now.saturating_sub(asked));
            }
            is_held
        });
    }

    /// Ends a request that samples nothing, once it has all results of its prompt.
    pub(crate) fn complete(&mut self, id: RequestId, now: u64) {
        let seq = seq_id(id, 0);
        let info = self.scheduler.info(seq);
        self.release(id, seq, now);
        let Some(request) = self.requests.get_mut(id) else { return };
        request.metrics.num_cached_tokens = info.map_or(0, |info| info.num_cached_tokens);
        request.metrics.prefix_miss = info.and_then(|info| info.prefix_miss);
        request.metrics.total_time = Some(seconds(now - request.arrival.min(now)));
        self.unsent.extend(request.complete());
        let Some(request) = self.requests.remove(id) else { return };
        self.retire(request, FinishReason::Stop, None, now);
    }

    /// Finishes a request: counters, queue and name. Its record stays for a while.
    pub(super) fn retire(&mut self, request: Request, reason: FinishReason, error: Option<Error>, now: u64) {
        if !request.started {
            self.shared.leave_queue();
        }
        self.images.forget(request.id);
        if let Some(offload) = &mut self.offload {
            offload.forget(request.id);
        }
        let generated_tokens = request.generated_tokens();
        let Request { id, name, prompt, metrics, work, .. } = request;
        let recorded = !matches!(work, Work::PromptLogits { .. });
        if recorded {
            *self.counters.finished_mut(reason) += 1;
        }
        self.shared.with_registry(|registry| {
            registry.free_name(id);
            if recorded {
                let prompt_tokens = prompt.len();
                let finish_reason = reason;
                let record = RequestRecord { id, name, finish_reason, error, prompt_tokens, generated_tokens, metrics };
                registry.records.insert(record, now);
            }
        });
    }

    /// Ends all requests past their deadlines, waiting or running.
    pub(super) fn expire(&mut self, now: u64) {
        while let Some(id) = self.requests.next_expired(now) {
            self.end_request(id, FinishReason::Timeout, None, now);
        }
    }

    /// Ends all requests of a consumer that is gone.
    pub(super) fn abort_sink(&mut self, sink: &SharedSink) {
        let now = self.shared.clock.now();
        for id in self.requests.of_sink(sink) {
            self.end_request(id, FinishReason::Abort, None, now);
        }
    }

    /// Ends a request that could not be ended in the usual way.
    pub(super) fn abandon(&mut self, id: RequestId, reason: FinishReason, error: Option<Error>) {
        let Some(mut request) = self.requests.remove(id) else { return };
        self.unsent.extend(request.end_all(reason, error.as_ref()));
        self.retire(request, reason, error, self.shared.clock.now());
    }

    /// # Errors
    /// `Error::Internal` naming a broken invariant of scheduler, KV cache or request table.
    pub(crate) fn check_integrity(&self, running: Option<&Launched>) -> Result<()> {
        self.scheduler.check_integrity()?;
        let stats = self.shared.kv_cache.read().stats();
        let (blocks, slots) = (stats.blocks_owned, stats.state_slots_owned);
        let is_idle = !self.has_requests() && running.is_none();
        if is_idle && (blocks + slots > 0 || self.scheduler.has_work() || self.requests.has_deadlines()) {
            let problem = format!("no request is left, but {blocks} blocks and {slots} state slots are owned");
            return Err(Error::internal(problem));
        }
        if is_idle && !self.images.is_empty() {
            return Err(Error::internal("no request is left, but rows of images are kept"));
        }
        self.offload.as_ref().map_or(Ok(()), |offload| offload.check(is_idle))
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}
