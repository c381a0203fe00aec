//! The arguments of a call, bound to their names and checked.

use super::fault::{Fault, Res};
use super::meter::Charge;
use super::syntax::ast::Name;
use super::text::Text;
use super::value::Value;

#[derive(Debug, Default)]
pub(super) struct Args {
    pub positional: Vec<Value>,
    pub named: Vec<(Name, Value)>,
    charge: Charge,
}

impl Args {
    /// Arguments that are written in the call. They are not charged, since a short source has few of them.
    pub(super) fn written(positional: Vec<Value>) -> Self {
        Self { positional, ..Self::default() }
    }

    /// Adds the items of `*values`.
    pub(super) fn unpack(&mut self, values: &[Value]) -> Res<()> {
        self.charge.add(size_of_val(values))?;
        self.positional.extend_from_slice(values);
        Ok(())
    }

    /// Adds the entries of `**mapping`.
    pub(super) fn unpack_named(&mut self, entries: &[(Value, Value)]) -> Res<()> {
        self.charge.add(entries.len() * size_of::<(Name, Value)>())?;
        for (key, value) in entries {
            let Value::Str(key) = key else { return Err(wrong("**", key, "names")) };
            self.charge.add(key.as_str().len())?;
            self.named.push((key.as_str().into(), value.clone()));
        }
        Ok(())
    }

    /// Returns a copy of the arguments for another call, charged like these.
    pub(super) fn copy(&self) -> Res<Self> {
        let charge = Charge::new(size_of_val(&*self.positional) + size_of_val(&*self.named))?;
        Ok(Self { positional: self.positional.clone(), named: self.named.clone(), charge })
    }

    /// Returns the arguments in the order of `names`; `None` for those that the call omits.
    pub(super) fn bind<const N: usize>(self, what: &str, names: [&str; N]) -> Res<[Option<Value>; N]> {
        let given = self.positional.len();
        if given > N {
            return Err(Fault::new(format!("{what}: got {given} arguments, expected at most {N}")));
        }
        let mut bound = [const { None }; N];
        for (place, value) in bound.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            match names.iter().position(|known| **known == *name) {
                Some(at) if bound[at].is_none() => bound[at] = Some(value),
                Some(_) => return Err(Fault::new(format!("{what}: argument '{name}' is given twice"))),
                None => return Err(Fault::new(format!("{what}: unknown argument '{name}', known are {names:?}"))),
            }
        }
        Ok(bound)
    }

    pub(super) fn none(self, what: &str) -> Res<()> {
        self.bind(what, []).map(|[]: [Option<Value>; 0]| ())
    }
}

/// Returns the argument as an integer, or `default` if it is omitted or `None`.
pub(super) fn int_or(argument: Option<&Value>, what: &str, default: i128) -> Res<i128> {
    match argument {
        None | Some(Value::None) => Ok(default),
        Some(value) => value.as_int().ok_or_else(|| wrong(what, value, "an integer")),
    }
}

pub(super) fn bool_or(argument: Option<&Value>, default: bool) -> bool {
    argument.map_or(default, Value::is_true)
}

pub(super) fn count_or(argument: Option<&Value>, what: &str, default: usize) -> Res<usize> {
    let value = int_or(argument, what, default as i128)?;
    // A negative width or count is zero, as in Python.
    Ok(usize::try_from(value.max(0)).unwrap_or(usize::MAX))
}

pub(super) fn text(argument: Option<&Value>, what: &str) -> Res<Text> {
    match argument {
        Some(Value::Str(text)) => Ok(text.clone()),
        Some(other) => Err(wrong(what, other, "a string")),
        None => Err(Fault::new(format!("{what}: an argument is missing, expected a string"))),
    }
}

pub(super) fn optional_text(argument: Option<&Value>, what: &str) -> Res<Option<Text>> {
    match argument {
        None | Some(Value::None) => Ok(None),
        given => text(given, what).map(Some),
    }
}

pub(super) fn required(argument: Option<Value>, what: &str) -> Res<Value> {
    argument.ok_or_else(|| Fault::new(format!("{what}: an argument is missing")))
}

pub(super) fn wrong(what: &str, value: &Value, expected: &str) -> Fault {
    match value {
        Value::Undefined(name) => Fault::new(format!("{what}: {name} is undefined, expected {expected}")),
        value => Fault::new(format!("{what}: got a {}, expected {expected}", value.kind())),
    }
}
