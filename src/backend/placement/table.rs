//! Texts about the places of weights, for the log and for descriptions.

use std::fmt;

use super::{Place, Placement, Role, Weight};
use crate::error::readable;

/// A row of the table: its name, and a predicate for the weights that it sums up.
type Row = (&'static str, fn(Role) -> bool);

const ROWS: [Row; 5] = [
    ("tables", |role| role == Role::Table),
    ("experts", |role| matches!(role, Role::Experts { .. })),
    ("layers", |role| matches!(role, Role::Layer { .. })),
    ("output", |role| role == Role::Output),
    ("others", |role| role == Role::Fixed),
];

impl Placement {
    /// Returns one line about the weights on the host.
    pub fn summary(&self) -> String {
        format!(
            "{} of {} of weights are in host memory; a token reads {} of them",
            readable(self.host_bytes()),
            readable(self.host_bytes() + self.device_bytes()),
            readable(self.host_reads())
        )
    }

    /// Returns the numbers of the layers of a row that have a weight on the host, as ranges: `4-7, 9`.
    fn host_layers(&self, is_of_row: fn(Role) -> bool) -> String {
        let mut ranges: Vec<[usize; 2]> = Vec::new();
        let mut layers: Vec<usize> =
            self.on_host().map(|weight| weight.role).filter(|&role| is_of_row(role)).filter_map(Role::layer).collect();
        layers.sort_unstable();
        for layer in layers {
            match ranges.last_mut() {
                Some([_, last]) if layer <= *last + 1 => *last = layer,
                _ => ranges.push([layer, layer]),
            }
        }
        let text = |&[first, last]: &[usize; 2]| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        ranges.iter().map(text).collect::<Vec<_>>().join(", ")
    }
}

/// The table: bytes on the device, bytes on the host, and bytes that a token reads from the host, by role.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, cells: [&str; 5]| {
            let [name, device, host, reads, layers] = cells;
            let text = format!("{name:<8} {device:>12} {host:>12} {reads:>12}  {layers}");
            write!(f, "{}", text.trim_end())
        };
        line(f, ["weights", "device", "host", "per token", "layers on the host"])?;
        for (name, is_of_row) in ROWS {
            let of_row = || self.weights.iter().zip(&self.places).filter(|(weight, _)| is_of_row(weight.role));
            let host = |count: fn(&Weight) -> u64| -> u64 {
                of_row().filter(|(_, place)| **place == Place::Host).map(|(weight, _)| count(weight)).sum()
            };
            let (moved, reads) = (host(|weight| weight.bytes), host(|weight| weight.reads));
            let total: u64 = of_row().map(|(weight, _)| weight.bytes + weight.fixed).sum();
            if total == 0 {
                continue;
            }
            writeln!(f)?;
            let [device, moved, reads] = [total - moved, moved, reads].map(readable);
            line(f, [name, &device, &moved, &reads, &self.host_layers(is_of_row)])?;
        }
        Ok(())
    }
}
