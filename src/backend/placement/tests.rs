use super::*;

const MB: u64 = 1_000_000;

fn weight(role: Role, bytes: u64, reads: u64) -> Weight {
    Weight { role, bytes, reads, fixed: 0 }
}

fn dense(layer: usize, megabytes: u64) -> Weight {
    weight(Role::Layer { layer }, megabytes * MB, megabytes * MB)
}

fn experts(layer: usize) -> Weight {
    Weight { fixed: MB, ..weight(Role::Experts { layer }, 80 * MB, 5 * MB) }
}

/// A mixture of four layers, whose table, output and norms also have a place.
fn mixture() -> Vec<Weight> {
    let mut weights = vec![weight(Role::Table, 60 * MB, 1000), weight(Role::Output, 60 * MB, 60 * MB)];
    for layer in 0..4 {
        weights.extend([dense(layer, 10), experts(layer), Weight { fixed: 1000, ..weight(Role::Fixed, 0, 0) }]);
    }
    weights
}

/// Three dense layers of two matrices.
fn plain() -> Vec<Weight> {
    let layers = (0..3).flat_map(|layer| [dense(layer, 10), dense(layer, 30)]);
    [weight(Role::Output, 50 * MB, 50 * MB)].into_iter().chain(layers).collect()
}

/// Returns the roles on the host.
fn on_host(placement: &Placement) -> Vec<Role> {
    placement.on_host().map(|weight| weight.role).collect()
}

fn total(weights: &[Weight]) -> u64 {
    weights.iter().map(|weight| weight.bytes + weight.fixed).sum()
}

#[test]
fn what_fits_stays() {
    for weights in [mixture(), plain()] {
        let room = total(&weights);
        let placement = Placement::new(weights.clone(), room, ByHand::default());
        assert_eq!((placement.host_bytes(), placement.device_bytes(), placement.host_reads()), (0, room, 0));
        let placement = Placement::new(weights, room - 1, ByHand::default());
        assert!(placement.host_bytes() > 0 && placement.device_bytes() < room);
    }
}

/// The table goes first, then experts from the last layer, then matrices from the last layer, then the output.
#[test]
fn cheap_reads_go_first() {
    let weights = mixture();
    let all = total(&weights);
    let host = |missing: u64| on_host(&Placement::new(weights.clone(), all - missing * MB, ByHand::default()));
    let of = |layers: &[usize]| layers.iter().map(|&layer| Role::Experts { layer }).collect::<Vec<_>>();
    assert_eq!(host(1), [Role::Table]);
    // Experts that make room for the table let it return.
    assert_eq!(host(61), of(&[3]));
    assert_eq!(host(81), [&[Role::Table][..], &of(&[3])].concat());
    assert_eq!(host(60 + 3 * 80), [&[Role::Table][..], &of(&[1, 2, 3])].concat());
    let every = [&[Role::Table][..], &of(&[0, 1, 2]), &[Role::Layer { layer: 3 }], &of(&[3])].concat();
    assert_eq!(host(60 + 4 * 80 + 10), every);
    // Whatever the room, norms and routers stay.
    let least = Placement::new(weights.clone(), 0, ByHand::default());
    assert_eq!(least.device_bytes(), 4 * (MB + 1000));
    assert!(!on_host(&least).contains(&Role::Fixed));
}

#[test]
fn dense_layers_go_from_the_last_and_the_output_at_the_end() {
    let weights = plain();
    let all = total(&weights);
    let layer = |layer| Role::Layer { layer };
    let host = |missing: u64| on_host(&Placement::new(weights.clone(), all - missing * MB, ByHand::default()));
    assert_eq!(host(10), [layer(2)]);
    assert_eq!(host(40), [layer(2), layer(2)]);
    assert_eq!(host(120).len(), 6);
    assert_eq!(host(121)[0], Role::Output);
}

/// A weight that would fit beside those that had to move is not left on the host.
#[test]
fn no_more_moves_than_needed() {
    let weights = vec![weight(Role::Table, 10 * MB, 10), experts(0), experts(1)];
    let placement = Placement::new(weights, total(&mixture()), ByHand::default());
    assert_eq!(placement.host_bytes(), 0);
    let weights = vec![weight(Role::Table, 10 * MB, 10), experts(0), experts(1)];
    let room = total(&weights) - 11 * MB;
    let placement = Placement::new(weights, room, ByHand::default());
    // The table alone is too small, and the experts make room for it.
    assert_eq!(on_host(&placement), [Role::Experts { layer: 1 }]);
    assert!(placement.device_bytes() <= room);
}

/// The plan keeps to any room that the fixed weights leave.
#[test]
fn every_room_is_kept_to() {
    for weights in [mixture(), plain()] {
        let fixed: u64 = weights.iter().map(|weight| weight.fixed).sum();
        for room in (0..=total(&weights)).step_by(MB as usize / 2) {
            let placement = Placement::new(weights.clone(), room, ByHand::default());
            assert!(placement.device_bytes() <= room.max(fixed), "{room}");
            assert_eq!(placement.device_bytes() + placement.host_bytes(), total(&weights));
        }
    }
}

#[test]
fn layers_by_hand() {
    let hand = |gpu_layers, cpu_experts| ByHand { gpu_layers, cpu_experts };
    let host = |by_hand| on_host(&Placement::new(mixture(), u64::MAX, by_hand));
    let (layer, experts) = (|layer| Role::Layer { layer }, |layer| Role::Experts { layer });
    assert_eq!(host(hand(Some(3), None)), [layer(3), experts(3)]);
    assert_eq!(host(hand(None, Some(2))), [experts(2), experts(3)]);
    assert_eq!(host(hand(Some(3), Some(2))), [experts(2), layer(3), experts(3)]);
    assert_eq!(host(hand(Some(99), Some(0))), []);
    assert_eq!(host(hand(Some(0), None)).len(), 8);
    assert_eq!(host(hand(None, Some(99))).len(), 4);
    // Only the table moves as well.
    let placement = Placement::new(mixture(), 0, hand(None, Some(1)));
    assert_eq!(on_host(&placement), [Role::Table, experts(3)]);
}

#[test]
fn the_table_names_what_lies_where() {
    let weights = mixture();
    let room = total(&weights) - 200 * MB;
    let placement = Placement::new(weights, room, ByHand::default());
    let expected = "\
weights        device         host    per token  layers on the host
tables        0 bytes      60.0 MB      1.00 kB
experts        164 MB       160 MB      10.0 MB  2-3
layers        40.0 MB      0 bytes      0 bytes
output        60.0 MB      0 bytes      0 bytes
others        4.00 kB      0 bytes      0 bytes";
    assert_eq!(placement.to_string(), expected);
    let summary = "220 MB of 484 MB of weights are in host memory; a token reads 10.0 MB of them";
    assert_eq!(placement.summary(), summary);
}
