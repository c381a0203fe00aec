//! The part of MessagePack that code object metadata uses.

/// A decoded value; map keys in metadata are always strings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Nil,
    Bool(bool),
    Integer(i64),
    Text(&'a str),
    List(Vec<Value<'a>>),
    Map(Vec<(&'a str, Value<'a>)>),
}

impl<'a> Value<'a> {
    pub(crate) fn get(&self, key: &str) -> Option<&Value<'a>> {
        match self {
            Value::Map(entries) => entries.iter().find(|(k, _)| *k == key).map(|(_, v)| v),
            _ => None,
        }
    }

    pub(crate) fn text(&self, key: &str) -> Option<&'a str> {
        match self.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn integer(&self, key: &str) -> Option<u32> {
        match self.get(key)? {
            Value::Integer(value) => u32::try_from(*value).ok(),
            _ => None,
        }
    }

    pub(crate) fn list(&self, key: &str) -> &[Value<'a>] {
        match self.get(key) {
            Some(Value::List(values)) => values,
            _ => &[],
        }
    }
}

/// Decodes one value from the front of `bytes`; `None` if it is truncated or of a type that metadata does not have.
pub(crate) fn decode(bytes: &[u8]) -> Option<Value<'_>> {
    Reader { bytes }.value(0)
}

/// Metadata is five levels deep; a hostile file must not exhaust the stack.
const MAX_DEPTH: usize = 32;

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.bytes.split_at_checked(count)?;
        self.bytes = tail;
        Some(head)
    }

    fn unsigned(&mut self, bytes: usize) -> Option<u64> {
        Some(self.take(bytes)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn length(&mut self, bytes: usize) -> Option<usize> {
        usize::try_from(self.unsigned(bytes)?).ok()
    }

    fn text(&mut self, length: usize) -> Option<&'a str> {
        std::str::from_utf8(self.take(length)?).ok()
    }

    fn list(&mut self, length: usize, depth: usize) -> Option<Value<'a>> {
        (0..length).map(|_| self.value(depth + 1)).collect::<Option<_>>().map(Value::List)
    }

    fn map(&mut self, length: usize, depth: usize) -> Option<Value<'a>> {
        let entry = |_| match self.value(depth + 1)? {
            Value::Text(key) => Some((key, self.value(depth + 1)?)),
            _ => None,
        };
        (0..length).map(entry).collect::<Option<_>>().map(Value::Map)
    }

    fn value(&mut self, depth: usize) -> Option<Value<'a>> {
        if depth > MAX_DEPTH {
            return None;
        }
        let tag = *self.take(1)?.first()?;
        let low = usize::from(tag);
        Some(match tag {
            0x00..=0x7f => Value::Integer(i64::from(tag)),
            0x80..=0x8f => self.map(low & 15, depth)?,
            0x90..=0x9f => self.list(low & 15, depth)?,
            0xa0..=0xbf => Value::Text(self.text(low & 31)?),
            0xc0 => Value::Nil,
            0xc2 | 0xc3 => Value::Bool(tag == 0xc3),
            0xcc..=0xcf => Value::Integer(i64::try_from(self.unsigned(1 << (tag - 0xcc))?).ok()?),
            0xd0..=0xd3 => {
                let bytes = 1 << (tag - 0xd0);
                let unused = 64 - 8 * bytes as u32;
                Value::Integer((self.unsigned(bytes)? << unused) as i64 >> unused)
            }
            0xd9..=0xdb => {
                let length = self.length(1 << (tag - 0xd9))?;
                Value::Text(self.text(length)?)
            }
            0xdc | 0xdd => {
                let length = self.length(2 << (tag - 0xdc))?;
                self.list(length, depth)?
            }
            0xde | 0xdf => {
                let length = self.length(2 << (tag - 0xde))?;
                self.map(length, depth)?
            }
            0xe0..=0xff => Value::Integer(i64::from(tag as i8)),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_values() {
        let bytes = b"\x82\xa1a\x93\x01\xcd\x01\x00\xff\xa1b\xd9\x02hi";
        let value = decode(bytes).unwrap();
        assert_eq!(value.list("a"), [Value::Integer(1), Value::Integer(256), Value::Integer(-1)]);
        assert_eq!(value.text("b"), Some("hi"));
    }

    #[test]
    fn cut_short_or_too_deep_is_refused() {
        assert_eq!(decode(b"\x82\xa1a"), None);
        assert_eq!(decode(b"\xdd\xff\xff\xff\xff"), None);
        assert_eq!(decode(&[0x91; 100_000]), None);
    }
}
