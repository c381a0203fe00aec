//! `SamplingParams` in Python: checked when created, immutable afterwards.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};

use super::structured::PyStructuredOutputs;
use super::values::arrays::{integer, optional_integer, real, text, token_ids_up_to, wrong_type};
use crate::Result;
use crate::config::{MAX_TOKEN_LIST, OutputKind, SamplingParams, StructuredOutputs};

/// Sampling parameters and stop conditions of a request. Immutable; checked when created.
///
/// Args:
///     n: Sequences to generate; they share the prompt's computation.
///     max_tokens: Maximum tokens per sequence; 256 by default. None continues until the context is full.
///     min_tokens: Minimum number of tokens before an end token or a stop string can end a sequence.
///     temperature: 0 always takes the most likely token.
///     top_p: Keeps the most likely tokens whose probabilities sum up to this.
///     top_k: Keeps this many of the most likely tokens; 0 and -1 keep all.
///     min_p: Minimum probability of a token, relative to the most likely one.
///     repetition_penalty: Above 1 makes tokens of prompt and output less likely.
///     presence_penalty: Subtracted from the logit of every token of the output.
///     frequency_penalty: As presence_penalty, times the number of occurrences.
///     logit_bias: Added to logits, by token id.
///     stop: Text (or texts) that ends a sequence.
///     stop_token_ids: Tokens that end a sequence.
///     ignore_eos: Continues after the model's end token.
///     seed: The same seed gives the same text, independent of the batch. None and -1 choose a new seed.
///     logprobs: Number of most likely tokens to report per generated token.
///     prompt_logprobs: The same for the prompt's tokens.
///     skip_special_tokens: Leaves control tokens out of the text.
///     include_stop_str_in_output: Leaves the stop text in.
///     output_kind: What each output of a stream holds: "cumulative" (all so far), "delta" (what is new) or
///         "final_only" (one output, at the end); also as a RequestOutputKind.
///     structured_outputs: A constraint on the text. Generation ends where nothing can follow.
///     thinking_end_token_id: The token that ends the reasoning at the beginning of the text.
///     thinking_token_budget: Maximum reasoning tokens. Then that token is chosen, if it has not come.
#[pyclass(frozen, eq, name = "SamplingParams", module = "rocmforge")]
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PySamplingParams(pub(super) SamplingParams);

/// A count with a default. A value that is no `usize` is kept for an error that names the field.
#[derive(FromPyObject)]
enum Count<'py> {
    Number(usize),
    Other(Bound<'py, PyAny>),
}

impl Count<'_> {
    fn get(&self, what: &'static str) -> PyResult<usize> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Other(value) => integer(what, value),
        }
    }

    /// Returns the same as `get`, or `none` for `None`.
    fn get_or(&self, what: &'static str, none: usize) -> PyResult<usize> {
        match self {
            Self::Other(value) if value.is_none() => Ok(none),
            _ => self.get(what),
        }
    }

    /// Returns the same as `get`, or `value` for -1, which means the same in other engines.
    fn get_with_minus_one(&self, what: &'static str, value: usize) -> PyResult<usize> {
        match self {
            Self::Other(other) if is_minus_one(other) => Ok(value),
            _ => self.get(what),
        }
    }
}

fn is_minus_one(value: &Bound<'_, PyAny>) -> bool {
    value.extract::<i64>().is_ok_and(|value| value == -1)
}

/// A number with a default, like `Count`.
#[derive(FromPyObject)]
enum Real<'py> {
    Number(f32),
    Other(Bound<'py, PyAny>),
}

impl Real<'_> {
    fn get(&self, what: &'static str) -> PyResult<f32> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Other(value) => real(what, value).map(|value| value as f32),
        }
    }
}

/// `max_tokens` of a request that ends only with its context.
const UNBOUNDED: usize = usize::MAX;

/// Fields in the order of the constructor. `repr`, pickling and `replace` iterate over them.
const FIELDS: [&str; 23] = SamplingParams::FIELDS;

/// Defaults of the signature below. Its text repeats them, and a test compares both.
const DEFAULT: SamplingParams = SamplingParams::DEFAULT;

#[pymethods]
impl PySamplingParams {
    #[new]
    #[pyo3(signature = (n=Count::Number(DEFAULT.n), max_tokens=Count::Number(DEFAULT.max_tokens),
        min_tokens=Count::Number(DEFAULT.min_tokens), temperature=Real::Number(DEFAULT.temperature),
        top_p=Real::Number(DEFAULT.top_p), top_k=Count::Number(DEFAULT.top_k), min_p=Real::Number(DEFAULT.min_p),
        repetition_penalty=Real::Number(DEFAULT.repetition_penalty),
        presence_penalty=Real::Number(DEFAULT.presence_penalty),
        frequency_penalty=Real::Number(DEFAULT.frequency_penalty), logit_bias=None, stop=None,
        stop_token_ids=None, ignore_eos=DEFAULT.ignore_eos, seed=None, logprobs=None, prompt_logprobs=None,
        skip_special_tokens=DEFAULT.skip_special_tokens,
        include_stop_str_in_output=DEFAULT.include_stop_str_in_output, output_kind=None,
        structured_outputs=None, thinking_end_token_id=None, thinking_token_budget=None, **unknown),
        text_signature = "(n=1, max_tokens=256, min_tokens=0, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, \
        repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logit_bias=None, stop=None, \
        stop_token_ids=None, ignore_eos=False, seed=None, logprobs=None, prompt_logprobs=None, \
        skip_special_tokens=True, include_stop_str_in_output=False, output_kind='cumulative', \
        structured_outputs=None, thinking_end_token_id=None, thinking_token_budget=None)")]
    #[allow(clippy::too_many_arguments)] // they are keyword arguments in Python
    fn new(
        n: Count<'_>,
        max_tokens: Count<'_>,
        min_tokens: Count<'_>,
        temperature: Real<'_>,
        top_p: Real<'_>,
        top_k: Count<'_>,
        min_p: Real<'_>,
        repetition_penalty: Real<'_>,
        presence_penalty: Real<'_>,
        frequency_penalty: Real<'_>,
        logit_bias: Option<&Bound<'_, PyDict>>,
        stop: Option<&Bound<'_, PyAny>>,
        stop_token_ids: Option<&Bound<'_, PyAny>>,
        ignore_eos: bool,
        seed: Option<&Bound<'_, PyAny>>,
        logprobs: Option<&Bound<'_, PyAny>>,
        prompt_logprobs: Option<&Bound<'_, PyAny>>,
        skip_special_tokens: bool,
        include_stop_str_in_output: bool,
        output_kind: Option<&Bound<'_, PyAny>>,
        structured_outputs: Option<&Bound<'_, PyAny>>,
        thinking_end_token_id: Option<&Bound<'_, PyAny>>,
        thinking_token_budget: Option<&Bound<'_, PyAny>>,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        if let Some(unknown) = unknown {
            // Raises the error, with a suggestion for the misspelled name.
            let arguments = unknown.py().import("rocmforge.requests.arguments")?;
            arguments.call_method1("check_names", ("SamplingParams", unknown.keys(), FIELDS.to_vec()))?;
        }
        let params = SamplingParams {
            n: n.get("n")?,
            max_tokens: max_tokens.get_or("max_tokens", UNBOUNDED)?,
            min_tokens: min_tokens.get("min_tokens")?,
            temperature: temperature.get("temperature")?,
            top_p: top_p.get("top_p")?,
            top_k: top_k.get_with_minus_one("top_k", 0)?,
            min_p: min_p.get("min_p")?,
            repetition_penalty: repetition_penalty.get("repetition_penalty")?,
            presence_penalty: presence_penalty.get("presence_penalty")?,
            frequency_penalty: frequency_penalty.get("frequency_penalty")?,
            logit_bias: logit_bias.map(biases).transpose()?.unwrap_or_default(),
            stop: stop.map(stop_strings).transpose()?.unwrap_or_default(),
            stop_token_ids: stop_token_ids.map(stop_tokens).transpose()?.unwrap_or_default(),
            ignore_eos,
            seed: optional_integer("seed", seed.filter(|seed| !is_minus_one(seed)))?,
            logprobs: optional_integer("logprobs", logprobs)?,
            prompt_logprobs: optional_integer("prompt_logprobs", prompt_logprobs)?,
            skip_special_tokens,
            include_stop_str_in_output,
            output_kind: output_kind.map(kind_named).transpose()?.unwrap_or_default(),
            structured_outputs: structured_outputs.map(constraint).transpose()?,
            thinking_end_token_id: optional_integer("thinking_end_token_id", thinking_end_token_id)?,
            thinking_token_budget: optional_integer("thinking_token_budget", thinking_token_budget)?,
        };
        params.validate()?;
        Ok(Self(params))
    }

    #[getter]
    fn n(&self) -> usize {
        self.0.n
    }
    #[getter]
    fn max_tokens(&self) -> Option<usize> {
        Some(self.0.max_tokens).filter(|&max_tokens| max_tokens != UNBOUNDED)
    }
    #[getter]
    fn min_tokens(&self) -> usize {
        self.0.min_tokens
    }
    #[getter]
    fn temperature(&self) -> f64 {
        shortest(self.0.temperature)
    }
    #[getter]
    fn top_p(&self) -> f64 {
        shortest(self.0.top_p)
    }
    #[getter]
    fn top_k(&self) -> usize {
        self.0.top_k
    }
    #[getter]
    fn min_p(&self) -> f64 {
        shortest(self.0.min_p)
    }
    #[getter]
    fn repetition_penalty(&self) -> f64 {
        shortest(self.0.repetition_penalty)
    }
    #[getter]
    fn presence_penalty(&self) -> f64 {
        shortest(self.0.presence_penalty)
    }
    #[getter]
    fn frequency_penalty(&self) -> f64 {
        shortest(self.0.frequency_penalty)
    }
    #[getter]
    fn logit_bias<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let biases = PyDict::new(py);
        self.0.logit_bias.iter().try_for_each(|&(id, bias)| biases.set_item(id, shortest(bias)))?;
        Ok(biases)
    }
    #[getter]
    fn stop(&self) -> Vec<String> {
        self.0.stop.clone()
    }
    #[getter]
    fn stop_token_ids(&self) -> Vec<u32> {
        self.0.stop_token_ids.clone()
    }
    #[getter]
    fn ignore_eos(&self) -> bool {
        self.0.ignore_eos
    }
    #[getter]
    fn seed(&self) -> Option<u64> {
        self.0.seed
    }
    #[getter]
    fn logprobs(&self) -> Option<usize> {
        self.0.logprobs
    }
    #[getter]
    fn prompt_logprobs(&self) -> Option<usize> {
        self.0.prompt_logprobs
    }
    #[getter]
    fn skip_special_tokens(&self) -> bool {
        self.0.skip_special_tokens
    }
    #[getter]
    fn include_stop_str_in_output(&self) -> bool {
        self.0.include_stop_str_in_output
    }
    #[getter]
    fn output_kind(&self) -> &'static str {
        self.0.output_kind.name()
    }
    #[getter]
    fn structured_outputs(&self) -> Option<PyStructuredOutputs> {
        self.0.structured_outputs.clone().map(PyStructuredOutputs)
    }
    #[getter]
    fn thinking_end_token_id(&self) -> Option<u32> {
        self.0.thinking_end_token_id
    }
    #[getter]
    fn thinking_token_budget(&self) -> Option<usize> {
        self.0.thinking_token_budget
    }

    /// Returns a copy with some parameters changed.
    #[pyo3(signature = (**changes))]
    fn replace<'py>(slf: &Bound<'py, Self>, changes: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        let fields = PyDict::new(slf.py());
        for name in FIELDS {
            fields.set_item(name, slf.getattr(name)?)?;
        }
        if let Some(changes) = changes {
            fields.update(changes.as_mapping())?;
        }
        slf.get_type().call((), Some(&fields))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let fields = FIELDS.map(|name| Ok(format!("{name}={}", slf.getattr(name)?.repr()?)));
        let fields: Vec<String> = fields.into_iter().collect::<PyResult<_>>()?;
        Ok(format!("SamplingParams({})", fields.join(", ")))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let values = FIELDS.map(|name| slf.getattr(name)).into_iter().collect::<PyResult<Vec<_>>>()?;
        Ok((slf.get_type(), PyTuple::new(slf.py(), values)?))
    }
}

/// Returns the shortest decimal that rounds to this float: 0.7 stays 0.7, not 0.699999988079071.
pub(super) fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

fn stop_strings(value: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let texts: Vec<Bound<'_, PyString>> = match value.cast::<PyString>() {
        Ok(one) => vec![one.clone()],
        Err(_) => value.extract().map_err(|_| wrong_type("stop", value, "a string or a list of strings"))?,
    };
    Ok(texts.iter().map(|value| text("stop", value)).collect::<Result<_>>()?)
}

fn stop_tokens(ids: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    token_ids_up_to("stop_token_ids", ids, MAX_TOKEN_LIST, "their largest number")
}

fn constraint(value: &Bound<'_, PyAny>) -> PyResult<StructuredOutputs> {
    let outputs = value.cast::<PyStructuredOutputs>();
    let outputs = outputs.map_err(|_| wrong_type("structured_outputs", value, "StructuredOutputsParams"))?;
    Ok(outputs.get().0.clone())
}

/// Sorts the biases by token, so that equal biases are equal parameters.
fn biases(dict: &Bound<'_, PyDict>) -> PyResult<Vec<(u32, f32)>> {
    let pairs = dict.iter().map(|(id, bias)| Ok((integer("logit_bias", &id)?, real("logit_bias", &bias)? as f32)));
    let mut pairs = pairs.collect::<PyResult<Vec<(u32, f32)>>>()?;
    pairs.sort_unstable_by_key(|&(id, _)| id);
    Ok(pairs)
}

/// Reads a text, or a member of an enumeration by its name, because other engines number their members.
fn kind_named(value: &Bound<'_, PyAny>) -> PyResult<OutputKind> {
    let name = match value.cast::<PyString>() {
        Ok(name) => text("output_kind", name)?,
        Err(_) => {
            let name = value.getattr("name").and_then(|name| Ok(text("output_kind", name.cast::<PyString>()?)?));
            name.map_err(|_| wrong_type("output_kind", value, &OutputKind::names()))?.to_ascii_lowercase()
        }
    };
    Ok(OutputKind::named("output_kind", &name)?)
}
