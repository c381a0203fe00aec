//! Settings of a request for a vector instead of text.

use std::sync::Arc;

use super::names::by_name;
use super::sampling::SamplingParams;
use crate::Result;

/// How the hidden states of a prompt's tokens, after the output norm, become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The hidden state of the last token, the only one that has seen the whole prompt.
    Last,
    /// The mean over all tokens.
    Mean,
    /// The hidden state of the first token.
    Cls,
    /// One number, which the model's rank head computes from one of the others.
    Rank,
}

impl Pooling {
    const ALL: [Self; 4] = [Self::Last, Self::Mean, Self::Cls, Self::Rank];

    pub fn name(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Rank => "rank",
        }
    }
}

/// The settings of a request for a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolingParams {
    /// `None`: as set in the model's file.
    pub pooling: Option<Pooling>,
    /// True if the vector is normalized to length 1.
    pub normalize: bool,
}

impl PoolingParams {
    /// # Errors
    /// `InvalidRequest` for a name that is neither a pooling nor `auto`.
    pub fn named(pooling: &str, normalize: bool) -> Result<Self> {
        let all: Vec<Option<Pooling>> = [None].into_iter().chain(Pooling::ALL.map(Some)).collect();
        Ok(Self { pooling: by_name("pooling", pooling, &all, name_or_auto)?, normalize })
    }

    pub fn pooling_name(self) -> &'static str {
        name_or_auto(self.pooling)
    }
}

fn name_or_auto(pooling: Option<Pooling>) -> &'static str {
    pooling.map_or("auto", Pooling::name)
}

/// The parameters of a request for tokens or for a vector.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestParams {
    Sampling(Arc<SamplingParams>),
    Pooling(PoolingParams),
}

impl From<SamplingParams> for RequestParams {
    fn from(params: SamplingParams) -> Self {
        Self::Sampling(Arc::new(params))
    }
}

impl RequestParams {
    /// Returns the number of sequences to generate; a vector counts as one.
    pub fn n(&self) -> usize {
        match self {
            Self::Sampling(params) => params.n,
            Self::Pooling(_) => 1,
        }
    }
}
