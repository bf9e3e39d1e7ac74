//! A JSON object with some of its members replaced, the text of all others as it was.

use std::borrow::Cow;
use std::fmt;

use hyper::body::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

pub struct Object<'a>(Vec<(Key<'a>, &'a RawValue)>);

#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> Object<'a> {
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().rfind(|(key, _)| key.0 == name).map(|(_, value)| *value)
    }

    /// The text of the object with these members.
    pub fn with(&self, members: &[(&str, &str)]) -> Bytes {
        let length: usize = self.0.iter().map(|(key, value)| key.0.len() + value.get().len()).sum();
        let mut text = Vec::with_capacity(length + 8 * self.0.len() + 64 * members.len());
        let mut member = |key: &str, value: &str| {
            text.push(if text.is_empty() { b'{' } else { b',' });
            serde_json::to_writer(&mut text, key).expect("memory takes it");
            text.push(b':');
            text.extend_from_slice(value.as_bytes());
        };
        for (key, value) in &self.0 {
            if !members.iter().any(|(name, _)| *name == key.0) {
                member(&key.0, value.get());
            }
        }
        for (key, value) in members {
            member(key, value);
        }
        if text.is_empty() {
            text.push(b'{');
        }
        text.push(b'}');
        text.into()
    }

    /// How many prompts a request of SGLang's or OpenAI's form has, if it has a list of them.
    pub fn batch_size(&self) -> Option<usize> {
        let list = |name| {
            let value = self.get(name)?;
            serde_json::from_str::<Vec<&RawValue>>(value.get()).ok()
        };
        if let Some(texts) = list("text") {
            return Some(texts.len());
        }
        // One list of token ids is one prompt.
        let ids = list("input_ids").or_else(|| list("prompt"))?;
        ids.first().is_some_and(|first| first.get().starts_with(['[', '"'])).then_some(ids.len())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Vec<(Key<'de>, &'de RawValue)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Members).map(Object)
    }
}

#[cfg(test)]
mod tests {
    use super::Object;

    #[test]
    fn members_are_replaced_and_the_rest_is_as_it_was() {
        let text = br#" { "a" : 1.50e0, "rank":7, "\u0062\n": [ 1 ,2], "rank": 8 } "#;
        let object = Object::parse(text).unwrap();
        assert_eq!(object.with(&[("rank", "3")]), r#"{"a":1.50e0,"b\n":[ 1 ,2],"rank":3}"#);
        assert_eq!(Object::parse(b"{}").unwrap().with(&[("rank", "3")]), r#"{"rank":3}"#);
        assert_eq!(Object::parse(b"{}").unwrap().with(&[]), "{}");
        for other in ["", "[1]", "3", "{", "{} {}", r#"{"a":}"#, "\u{1f8b}"] {
            assert!(Object::parse(other.as_bytes()).is_none(), "{other}");
        }
        assert!(Object::parse(b"{\"a\":\"\xff\"}").is_none());
    }

    #[test]
    fn lists_of_prompts() {
        for (text, size) in [
            (r#"{"text":"a"}"#, None),
            (r#"{"text":["a","b"]}"#, Some(2)),
            (r#"{"input_ids":[1,2,3]}"#, None),
            (r#"{"input_ids":[[1],[2,3],[4]]}"#, Some(3)),
            (r#"{"prompt":["a"]}"#, Some(1)),
            (r#"{"messages":[{}]}"#, None),
        ] {
            assert_eq!(Object::parse(text.as_bytes()).unwrap().batch_size(), size, "{text}");
        }
    }
}
