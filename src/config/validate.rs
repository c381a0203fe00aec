//! The limits of `SamplingParams`, checked where they are made.

use super::SamplingParams;
use crate::{Error, Result};

impl SamplingParams {
    /// What can be checked without a model; ids and lengths are checked when a request is added.
    ///
    /// # Errors
    /// `Error::InvalidRequest` that names the field.
    pub fn validate(&self) -> Result<()> {
        let at_least_one = |what, value: usize| range(what, value as f64, 1.0, f64::INFINITY, "at least 1");
        at_least_one("n", self.n)?;
        at_least_one("max_tokens", self.max_tokens)?;
        if self.min_tokens > self.max_tokens {
            let expected = format!("at most max_tokens ({})", self.max_tokens);
            return Err(Error::invalid("min_tokens", self.min_tokens, expected));
        }
        range("temperature", self.temperature.into(), 0.0, f32::MAX.into(), "a finite number, at least 0")?;
        if self.top_p <= 0.0 {
            return Err(Error::invalid("top_p", self.top_p, "above 0 and at most 1"));
        }
        range("top_p", self.top_p.into(), 0.0, 1.0, "above 0 and at most 1")?;
        range("min_p", self.min_p.into(), 0.0, 1.0, "from 0 to 1")?;
        if self.repetition_penalty <= 0.0 {
            return Err(Error::invalid("repetition_penalty", self.repetition_penalty, "a finite number above 0"));
        }
        range("repetition_penalty", self.repetition_penalty.into(), 0.0, f32::MAX.into(), "a finite number above 0")?;
        range("presence_penalty", self.presence_penalty.into(), -2.0, 2.0, "from -2 to 2")?;
        range("frequency_penalty", self.frequency_penalty.into(), -2.0, 2.0, "from -2 to 2")?;
        for &(_, bias) in &self.logit_bias {
            range("logit_bias", bias.into(), f32::MIN.into(), f32::MAX.into(), "finite numbers")?;
        }
        if self.stop.iter().any(String::is_empty) {
            return Err(Error::invalid("stop", "an empty string", "strings of at least one character"));
        }
        Ok(())
    }
}

/// NaN is in no range.
fn range(what: &'static str, value: f64, low: f64, high: f64, expected: &'static str) -> Result<()> {
    match (low..=high).contains(&value) {
        true => Ok(()),
        false => Err(Error::invalid(what, value, expected)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        assert!(SamplingParams::default().validate().is_ok());
    }

    /// S22: zero, negative and NaN are errors that name the field.
    #[test]
    fn every_bad_value_is_named() {
        let ok = SamplingParams::default;
        let cases = [
            ("n", SamplingParams { n: 0, ..ok() }),
            ("max_tokens", SamplingParams { max_tokens: 0, ..ok() }),
            ("min_tokens", SamplingParams { min_tokens: 257, ..ok() }),
            ("temperature", SamplingParams { temperature: -0.1, ..ok() }),
            ("temperature", SamplingParams { temperature: f32::NAN, ..ok() }),
            ("temperature", SamplingParams { temperature: f32::INFINITY, ..ok() }),
            ("top_p", SamplingParams { top_p: 0.0, ..ok() }),
            ("top_p", SamplingParams { top_p: 1.1, ..ok() }),
            ("top_p", SamplingParams { top_p: f32::NAN, ..ok() }),
            ("min_p", SamplingParams { min_p: -0.1, ..ok() }),
            ("min_p", SamplingParams { min_p: 1.1, ..ok() }),
            ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..ok() }),
            ("repetition_penalty", SamplingParams { repetition_penalty: f32::NAN, ..ok() }),
            ("presence_penalty", SamplingParams { presence_penalty: 2.1, ..ok() }),
            ("frequency_penalty", SamplingParams { frequency_penalty: -2.1, ..ok() }),
            ("logit_bias", SamplingParams { logit_bias: vec![(0, f32::NAN)], ..ok() }),
            ("stop", SamplingParams { stop: vec!["x".into(), String::new()], ..ok() }),
        ];
        for (field, params) in cases {
            assert!(
                matches!(params.validate(), Err(Error::InvalidRequest { what, .. }) if what == field),
                "{field}: {:?}",
                params.validate()
            );
        }
    }
}
