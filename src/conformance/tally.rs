//! The results of cases: their number, the largest error relative to the tolerance, and the wrong results.

use crate::{Error, Result};

/// The part of the cases that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    Full,
    /// Every op and type with every third shape; slow cases are left out.
    Quick,
    /// Stops after the first wrong result.
    #[cfg(any(test, feature = "testing"))]
    UntilWrong,
}

/// Texts of wrong results that a group keeps, which is enough for a group that is wrong everywhere.
const MOST_TEXTS: usize = 5;

/// The cases of one op, or of the products of one tensor type.
#[derive(Debug, Clone)]
pub struct Group {
    pub name: String,
    /// Compared results, each with many numbers.
    pub cases: u64,
    pub numbers: u64,
    /// The largest error relative to the tolerance, at most 1 if all results are right. It is infinite for NaN, and if
    /// only equal bits are right.
    pub worst: f64,
    pub wrong: u64,
    /// Descriptions of the first wrong results, at most `MOST_TEXTS`.
    pub texts: Vec<String>,
}

/// Returns the bits of a number, with one form for all NaN: arithmetic may return another NaN than it got.
pub(super) fn bits(x: f32) -> u32 {
    if x.is_nan() { f32::NAN } else { x }.to_bits()
}

/// Collects the results of cases.
pub struct Tally<'a> {
    extent: Extent,
    groups: Vec<Group>,
    watch: &'a mut dyn FnMut(&str) -> bool,
    done: Option<&'a mut dyn FnMut(&Group)>,
}

impl<'a> Tally<'a> {
    /// `watch` gets the name of each case before it runs, so the last name identifies a case that never ends. It
    /// returns false to stop.
    pub fn new(extent: Extent, watch: &'a mut dyn FnMut(&str) -> bool) -> Self {
        Self { extent, groups: Vec::new(), watch, done: None }
    }

    /// `done` gets each group after its last case, so that a process that dies later leaves the earlier verdicts.
    pub fn reporting(self, done: &'a mut dyn FnMut(&Group)) -> Self {
        Self { done: Some(done), ..self }
    }

    pub fn into_groups(mut self) -> Vec<Group> {
        self.end_group();
        self.groups
    }

    fn end_group(&mut self) {
        if let (Some(done), Some(group)) = (&mut self.done, self.groups.last()) {
            done(group);
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.extent != Extent::Quick
    }

    /// Returns the cases that run, each with its number.
    pub(super) fn part<'c, T>(&self, cases: &'c [T]) -> impl Iterator<Item = (usize, &'c T)> + use<'c, T> {
        cases.iter().enumerate().step_by(if self.is_full() { 1 } else { 3 })
    }

    /// Begins a group, to which the following results belong.
    pub(super) fn group(&mut self, name: &str) {
        if self.groups.last().is_none_or(|group| group.name != name) {
            self.end_group();
            let name = name.to_owned();
            self.groups.push(Group { name, cases: 0, numbers: 0, worst: 0.0, wrong: 0, texts: Vec::new() });
        }
    }

    /// Announces a case that is about to run.
    ///
    /// # Errors
    /// `Interrupted` if it must not run.
    pub(super) fn begin(&mut self, what: &str) -> Result<()> {
        #[cfg(any(test, feature = "testing"))]
        if self.extent == Extent::UntilWrong && self.groups.iter().any(|group| group.wrong > 0) {
            return Err(Error::Interrupted);
        }
        if (self.watch)(what) { Ok(()) } else { Err(Error::Interrupted) }
    }

    /// Records the verdict on a result: its largest error relative to the tolerance, or a description of the fault.
    pub(super) fn judge(&mut self, what: &str, numbers: usize, verdict: std::result::Result<f64, String>) {
        if self.groups.is_empty() {
            self.group("all");
        }
        let Some(group) = self.groups.last_mut() else { return };
        group.cases += 1;
        group.numbers += numbers as u64;
        let (share, text) = match verdict {
            Ok(share) => (share, None),
            Err(text) => (f64::INFINITY, Some(text)),
        };
        // This form also counts a NaN error as wrong.
        let is_right = share <= 1.0;
        group.worst = if share.is_nan() { f64::INFINITY } else { share.max(group.worst) };
        if !is_right {
            group.wrong += 1;
            if group.texts.len() < MOST_TEXTS {
                group
                    .texts
                    .push(format!("{what}: {}", text.unwrap_or_else(|| format!("off by {share:.3} tolerances"))));
            }
        }
    }

    /// Compares numbers with the expected ones, each with its tolerance. NaN never passes.
    pub(super) fn compare(&mut self, what: &str, got: &[f32], expected: impl ExactSizeIterator<Item = (f64, f64)>) {
        let count = expected.len();
        if got.len() != count {
            return self.judge(what, count, Err(format!("{} numbers, not {count}", got.len())));
        }
        let mut worst = 0.0;
        let mut wrong = None;
        for (i, (&got, (expected, tolerance))) in got.iter().zip(expected).enumerate() {
            let error = (f64::from(got) - expected).abs();
            let share = if error == 0.0 { 0.0 } else { error / tolerance };
            if share <= 1.0 {
                worst = f64::max(worst, share);
            } else if wrong.is_none() {
                wrong = Some((i, got, expected, tolerance));
            }
        }
        let verdict = match wrong {
            None => Ok(worst),
            Some((i, got, expected, tolerance)) => {
                Err(format!("element {i} of {count} is {got}, not {expected} within {tolerance:e}"))
            }
        };
        self.judge(what, count, verdict);
    }

    /// Checks |got - expected| <= relative * |expected| + absolute for each element.
    pub(super) fn close(&mut self, what: &str, got: &[f32], expected: &[f64], relative: f64, absolute: f64) {
        self.compare(what, got, expected.iter().map(|&x| (x, relative * x.abs() + absolute)));
    }

    /// Compares numbers bit for bit, with one form for all NaN.
    pub(super) fn same(&mut self, what: &str, got: &[f32], expected: &[f32]) {
        let differs = got.iter().zip(expected).position(|(&got, &expected)| bits(got) != bits(expected));
        let verdict = match differs {
            _ if got.len() != expected.len() => Err(format!("{} numbers, not {}", got.len(), expected.len())),
            None => Ok(0.0),
            Some(i) => Err(format!("element {i} of {} is {}, not {}, to the last bit", got.len(), got[i], expected[i])),
        };
        self.judge(what, expected.len(), verdict);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tallied(check: impl FnOnce(&mut Tally<'_>)) -> Group {
        let mut watch = |_: &str| true;
        let mut tally = Tally::new(Extent::Full, &mut watch);
        tally.group("op");
        check(&mut tally);
        tally.into_groups().remove(0)
    }

    #[test]
    fn errors_are_shares_of_the_tolerance() {
        let found = tallied(|tally| {
            tally.close("a", &[1.0, 2.5], &[1.0, 2.0], 0.25, 0.5);
            tally.close("b", &[1.0], &[1.0], 0.0, 0.0);
        });
        assert_eq!((found.cases, found.numbers, found.worst, found.wrong), (2, 3, 0.5, 0));
    }

    /// NaN, infinity, a missing number and a single different bit each count like a wrong number.
    #[test]
    fn what_is_wrong_is_counted_and_named() {
        let wrong: [fn(&mut Tally<'_>); 5] = [
            |tally| tally.close("case", &[0.0, f32::NAN], &[0.0, 0.0], 1.0, 1.0),
            |tally| tally.close("case", &[f32::INFINITY], &[0.0], 1.0, 1.0),
            |tally| tally.close("case", &[1.0], &[1.0, 1.0], 1.0, 1.0),
            |tally| tally.close("case", &[1.5], &[1.0], 0.0, 0.25),
            |tally| tally.same("case", &[1.0], &[1.0 + f32::EPSILON]),
        ];
        for check in wrong {
            let found = tallied(check);
            assert_eq!((found.cases, found.wrong), (1, 1));
            assert!(found.worst > 1.0 && found.texts[0].starts_with("case: "), "{found:?}");
        }
        let found = tallied(|tally| tally.same("case", &[f32::NAN, -0.0], &[-f32::NAN, -0.0]));
        assert_eq!(found.wrong, 0);
    }

    #[test]
    fn quick_cases_are_some_of_all() {
        let (mut all, mut some) = (|_: &str| true, |_: &str| true);
        let numbers = [1, 2, 3, 4, 5];
        let tally = Tally::new(Extent::Full, &mut all);
        assert_eq!(tally.part(&numbers).count(), 5);
        let tally = Tally::new(Extent::Quick, &mut some);
        assert_eq!(tally.part(&numbers).collect::<Vec<_>>(), [(0, &1), (3, &4)]);
    }

    /// A group is reported once, with all its cases, before the next one begins.
    #[test]
    fn groups_are_reported_as_they_end() {
        let mut watch = |_: &str| true;
        let mut seen = Vec::new();
        let mut done = |group: &Group| seen.push((group.name.clone(), group.cases, group.wrong));
        let mut tally = Tally::new(Extent::Full, &mut watch).reporting(&mut done);
        for (name, share) in [("a", 0.5), ("a", 2.0), ("b", 0.0)] {
            tally.group(name);
            tally.judge("result", 1, Ok(share));
        }
        tally.into_groups();
        assert_eq!(seen, [("a".to_owned(), 2, 1), ("b".to_owned(), 1, 0)]);
    }

    #[test]
    fn the_first_wrong_result_can_end_it() {
        let mut watch = |_: &str| true;
        let mut tally = Tally::new(Extent::UntilWrong, &mut watch);
        for right in [true, false] {
            tally.begin("case").unwrap();
            tally.judge("result", 1, if right { Ok(0.5) } else { Err("wrong".into()) });
        }
        assert!(tally.is_full() && matches!(tally.begin("case"), Err(Error::Interrupted)));
    }

    #[test]
    fn whoever_watches_can_end_it() {
        let mut seen = Vec::new();
        let mut watch = |what: &str| {
            seen.push(what.to_owned());
            seen.len() < 2
        };
        let mut tally = Tally::new(Extent::Full, &mut watch);
        assert!(tally.begin("first").is_ok());
        assert!(matches!(tally.begin("second"), Err(Error::Interrupted)));
        assert_eq!(seen, ["first", "second"]);
    }
}
