//! A place for every weight: the device, or page-locked host memory. Kernels read host memory over the bus, or the CPU
//! computes the experts in it. A step has the same ops and captured graphs wherever its weights lie.
//!
//! The plan is made once, before the first upload, from these numbers:
//!
//! - **Input.** For each upload: its role, the bytes that may lie on the host, and the bytes of these that a token
//!   reads. Norms, routers and biases always stay on the device, and their bytes are counted too. Also the memory for
//!   weights on the device, without the activations and the minimum KV cache.
//! - **By cost.** A weight on the host costs the bytes of it that are read for each token. The plan moves the weights
//!   with the fewest such bytes per byte of memory: tables, where a token reads one row, then experts, then matrices
//!   that a token reads whole. Equal costs move from the last layer to the first, the output projection last.
//! - **No more than needed.** The last weight moved may free more than was missing. So weights return to the device,
//!   the most expensive first, as long as they fit.
//! - **By hand.** `gpu_layers` and `cpu_experts` name the layers. Then only tables also move if room is missing.

mod table;

use std::cmp::Reverse;

/// Where a weight lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Device,
    Host,
}

/// The use of an uploaded weight in a step. It decides how much of the weight a token reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A table of which each token reads one row.
    Table,
    /// The experts of a layer. A token reads those that its router chooses.
    Experts { layer: usize },
    /// A matrix of a layer, which each token reads whole.
    Layer { layer: usize },
    /// The output projection, which may also be the table of token embeddings.
    Output,
    /// A weight that stays on the device: small, or read several times for each token.
    Fixed,
}

impl Role {
    /// Returns the layer that the weight belongs to; `None` for a weight outside the layers, and for `Fixed`.
    fn layer(self) -> Option<usize> {
        match self {
            Self::Experts { layer } | Self::Layer { layer } => Some(layer),
            Self::Table | Self::Output | Self::Fixed => None,
        }
    }
}

/// An upload, as the plan sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weight {
    pub role: Role,
    /// Bytes that lie at the place that the plan decides.
    pub bytes: u64,
    /// Bytes of these that a token reads.
    pub reads: u64,
    /// Bytes that always lie on the device.
    pub fixed: u64,
}

/// The user's choice of layers. `None` leaves it to the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByHand {
    /// The number of layers that lie on the device as a whole, from the first one.
    pub gpu_layers: Option<usize>,
    /// The number of layers whose experts lie on the host, from the last one with experts.
    pub cpu_experts: Option<usize>,
}

impl ByHand {
    /// True if the user chose nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// True if the user's choice puts this weight on the host. `expert_layers` are the layers with experts, in order.
    fn is_on_host(&self, role: Role, expert_layers: &[usize]) -> bool {
        let Some(layer) = role.layer() else { return false };
        let is_beyond = self.gpu_layers.is_some_and(|count| layer >= count);
        let is_chosen = |count: usize| expert_layers.iter().rev().take(count).any(|&chosen| chosen == layer);
        let has_chosen_experts = matches!(role, Role::Experts { .. }) && self.cpu_experts.is_some_and(is_chosen);
        is_beyond || has_chosen_experts
    }
}

/// The place of each upload, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    weights: Vec<Weight>,
    places: Vec<Place>,
}

impl Placement {
    /// Decides the places. The weights on the device take at most `room` bytes if enough of them may move.
    pub fn new(weights: Vec<Weight>, room: u64, by_hand: ByHand) -> Self {
        let mut expert_layers: Vec<usize> = weights
            .iter()
            .filter(|weight| matches!(weight.role, Role::Experts { .. }))
            .filter_map(|w| w.role.layer())
            .collect();
        expert_layers.sort_unstable();
        let place = |weight: &Weight| match by_hand.is_on_host(weight.role, &expert_layers) {
            true => Place::Host,
            false => Place::Device,
        };
        let places = weights.iter().map(place).collect();
        let mut placement = Self { weights, places };
        placement.make_room(room, |role| match by_hand.is_empty() {
            true => role != Role::Fixed,
            false => role == Role::Table,
        });
        placement
    }

    /// Moves weights that `may_move` to the host, until those on the device take at most `room` bytes.
    fn make_room(&mut self, room: u64, may_move: impl Fn(Role) -> bool) {
        let is_candidate = |&index: &usize| {
            let weight = &self.weights[index];
            self.places[index] == Place::Device && weight.bytes > 0 && may_move(weight.role)
        };
        let mut candidates: Vec<usize> = (0..self.weights.len()).filter(is_candidate).collect();
        candidates.sort_by(|&a, &b| self.weights[a].before(&self.weights[b]));
        let mut moved = Vec::new();
        for index in candidates {
            if self.device_bytes() <= room {
                break;
            }
            self.places[index] = Place::Host;
            moved.push(index);
        }
        for index in moved.into_iter().rev() {
            if self.device_bytes().saturating_add(self.weights[index].bytes) <= room {
                self.places[index] = Place::Device;
            }
        }
    }

    /// Yields the place of each upload, in their order.
    pub fn places(&self) -> impl Iterator<Item = (Place, &Weight)> {
        self.places.iter().copied().zip(&self.weights)
    }

    fn on_host(&self) -> impl Iterator<Item = &Weight> {
        let both = self.weights.iter().zip(&self.places);
        both.filter(|(_, place)| **place == Place::Host).map(|(weight, _)| weight)
    }

    /// Returns the bytes of weights on the host.
    pub fn host_bytes(&self) -> u64 {
        self.on_host().map(|weight| weight.bytes).sum()
    }

    /// Returns the bytes of weights on the device.
    pub fn device_bytes(&self) -> u64 {
        self.weights.iter().map(|weight| weight.bytes + weight.fixed).sum::<u64>() - self.host_bytes()
    }

    /// Returns the bytes that cross the bus for one token.
    pub fn host_reads(&self) -> u64 {
        self.on_host().map(|weight| weight.reads).sum()
    }
}

impl Weight {
    /// Orders weights by when they move to the host.
    fn before(&self, other: &Self) -> std::cmp::Ordering {
        // Reads per byte, as fractions.
        let cost = |one: &Self, two: &Self| u128::from(one.reads) * u128::from(two.bytes);
        let key = |weight: &Self| {
            let rank = match weight.role {
                Role::Table => 0,
                Role::Experts { .. } => 1,
                Role::Layer { .. } => 2,
                Role::Output | Role::Fixed => 3,
            };
            (rank, Reverse(weight.role.layer()))
        };
        cost(self, other).cmp(&cost(other, self)).then_with(|| key(self).cmp(&key(other)))
    }
}

#[cfg(test)]
mod tests;
