//! The slow, obvious way: float64, a full sort, and one step after the other as in vLLM's documentation.

use crate::config::SamplingParams;

pub(super) struct Reference<'a> {
    pub params: &'a SamplingParams,
    pub prompt: &'a [u32],
    pub output: &'a [u32],
    pub end_tokens: &'a [u32],
}

impl Reference<'_> {
    /// Returns the probability of every token.
    pub(super) fn distribution(&self, row: &[f32]) -> Vec<f64> {
        let p = self.params;
        let mut x: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
        for &(token, bias) in &p.logit_bias {
            x[token as usize] += f64::from(bias);
        }
        if self.output.len() < p.min_tokens {
            for &token in self.end_tokens {
                x[token as usize] = f64::NEG_INFINITY;
            }
        }
        for (token, logit) in x.iter_mut().enumerate() {
            let count = self.output.iter().filter(|&&t| t as usize == token).count();
            let seen = count > 0 || self.prompt.iter().any(|&t| t as usize == token);
            if seen {
                let r = f64::from(p.repetition_penalty);
                *logit = if *logit > 0.0 { *logit / r } else { *logit * r };
            }
            *logit -= f64::from(p.frequency_penalty) * count as f64;
            *logit -= if count > 0 { f64::from(p.presence_penalty) } else { 0.0 };
        }
        let mut order: Vec<usize> = (0..x.len()).collect();
        order.sort_by(|&a, &b| x[b].total_cmp(&x[a]).then(a.cmp(&b)));
        if p.temperature == 0.0 {
            let mut out = vec![0.0; x.len()];
            out[order[0]] = 1.0;
            return out;
        }
        let max = x[order[0]];
        let weight: Vec<f64> = x.iter().map(|&v| ((v - max) / f64::from(p.temperature)).exp()).collect();
        let mut kept: Vec<usize> = order.into_iter().filter(|&i| weight[i] >= f64::from(p.min_p)).collect();
        if p.top_k > 0 {
            kept.truncate(p.top_k);
        }
        let total: f64 = kept.iter().map(|&i| weight[i]).sum();
        let mut mass = 0.0;
        let mut nucleus = Vec::new();
        for i in kept {
            nucleus.push(i);
            mass += weight[i];
            if p.top_p < 1.0 && mass >= f64::from(p.top_p) * total {
                break;
            }
        }
        let mut out = vec![0.0; x.len()];
        for i in nucleus {
            out[i] = weight[i] / mass;
        }
        out
    }
}

/// Returns the token of the inverse transform for `u`, most likely token first. Also returns the distance from `u` to
/// the next value at which the token changes.
pub(super) fn inverse(distribution: &[f64], u: f64) -> (u32, f64) {
    let mut order: Vec<usize> = (0..distribution.len()).filter(|&token| distribution[token] > 0.0).collect();
    order.sort_by(|&a, &b| distribution[b].total_cmp(&distribution[a]).then(a.cmp(&b)));
    let mut before = 0.0;
    for &token in &order {
        let p = distribution[token];
        if u < before + p {
            return (token as u32, (u - before).min(before + p - u));
        }
        before += p;
    }
    (order[order.len() - 1] as u32, 0.0)
}
