//! The reasons why sequences wait.

/// The reason why a sequence waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WaitingReason {
    /// Sequences of a higher priority wait, too.
    Priority,
    /// It is the turn of other clients.
    ClientShare,
    /// `max_num_seqs` sequences run.
    SequenceSlots,
    /// The KV cache has too few free blocks, or slots of recurrent states.
    KvBlocks,
    /// Others took the tokens of the step (`max_num_batched_tokens`).
    #[default]
    StepTokens,
    /// The largest allowed number of prompts is partially computed (`max_num_partial_prefills`,
    /// `max_long_partial_prefills`).
    PartialPrefills,
    /// Another sequence computes the beginning of its prompt, which will then be in the prefix cache.
    SharedPrefix,
    /// The rows of its images are being computed. The engine says so; the scheduler does not know such sequences.
    ImageEncoder,
    /// The beginning of its prompt is read from files of the KV cache, of which the engine says so, as above. Or it is
    /// copied from host memory to the device.
    KvOffload,
}

impl WaitingReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Priority => "priority",
            Self::ClientShare => "client_share",
            Self::SequenceSlots => "sequence_slots",
            Self::KvBlocks => "kv_blocks",
            Self::StepTokens => "step_tokens",
            Self::PartialPrefills => "partial_prefills",
            Self::SharedPrefix => "shared_prefix",
            Self::ImageEncoder => "image_encoder",
            Self::KvOffload => "kv_offload",
        }
    }
}
