//! What a request asks for, checked: JSON bodies, queries, ids. Unknown fields are errors that name them.

use std::str::FromStr;

use axum::{
    Json,
    body::{Bytes, to_bytes},
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::{HeaderMap, header, request::Parts},
};
use salaam_core::command::MAX_ARGUMENTS;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::{front::Room, limits::PROPOSAL_BYTES, refuse};
use crate::app::Refusal;

/// A JSON body.
#[derive(Debug)]
pub(super) struct Checked<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Checked<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Refusal> {
        parse(&whole(request).await?).map(Self)
    }
}

/// A JSON body that may be left out.
#[derive(Debug)]
pub(super) struct CheckedOrEmpty<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for CheckedOrEmpty<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Refusal> {
        let whole = whole(request).await?;
        if whole.bytes.is_empty() { Ok(Self(T::default())) } else { parse(&whole).map(Self) }
    }
}

/// A query string.
#[derive(Debug)]
pub(super) struct Asked<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(asked)) => Ok(Self(asked)),
            Err(rejection) => Err(refuse::bad_request(rejection.body_text())),
        }
    }
}

/// The id in the path.
#[derive(Debug)]
pub(super) struct Named<I>(pub(super) I);

impl<S: Send + Sync, I> FromRequestParts<S> for Named<I>
where
    I: FromStr<Err: std::fmt::Display>,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|rejection| refuse::bad_request(rejection.body_text()))?;
        text.parse().map(Self).map_err(|error: I::Err| refuse::bad_request(error.to_string()))
    }
}

/// A text with a limit; refuses what is longer, naming the field.
pub(super) fn bounded(field: &str, text: Option<String>, most: usize) -> Result<Option<String>, Refusal> {
    match text {
        Some(text) if text.len() > most => {
            Err(refuse::bad_request(format!("{field}: {} bytes; {most} is the most", text.len())))
        }
        text => Ok(text),
    }
}

/// A `request_id`: visible ASCII, bounded.
pub(super) fn request_id(text: Option<String>) -> Result<Option<String>, Refusal> {
    let text = bounded("request_id", text, super::limits::REQUEST_ID_BYTES)?;
    match text {
        Some(text) if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) => {
            Err(refuse::bad_request("request_id: must be visible ASCII characters without blanks, at least one"))
        }
        text => Ok(text),
    }
}

/// Bytes that are a JSON string where they are UTF-8, and `{"base64":"…"}` where not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Text(pub(super) Vec<u8>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = Text;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or {\"base64\":\"…\"}")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.as_bytes().to_vec()))
            }

            fn visit_string<E: serde::de::Error>(self, text: String) -> Result<Text, E> {
                Ok(Text(text.into_bytes()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Text, A::Error> {
                let Some(key) = map.next_key::<String>()? else {
                    return Err(A::Error::missing_field("base64"));
                };
                if key != "base64" {
                    return Err(A::Error::unknown_field(&key, &["base64"]));
                }
                let Base64(bytes) = map.next_value()?;
                match map.next_key::<String>()? {
                    None => Ok(Text(bytes)),
                    Some(more) => Err(A::Error::unknown_field(&more, &["base64"])),
                }
            }
        }
        deserializer.deserialize_any(Reading)
    }
}

/// Standard base64 with padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Base64(pub(super) Vec<u8>);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(Self).map_err(|error| D::Error::custom(format!("not base64: {error}")))
    }
}

/// An argument vector. Counted while it is read: twelve million numbers fit into a body, and would not fit
/// into memory as values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arguments(pub(super) Vec<Vec<u8>>);

impl<'de> Deserialize<'de> for Arguments {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = Arguments;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of strings or {\"base64\":\"…\"}")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Arguments, A::Error> {
                let mut words = Vec::new();
                while words.len() < MAX_ARGUMENTS {
                    match seq.next_element()? {
                        Some(Text(word)) => words.push(word),
                        None => return Ok(Arguments(words)),
                    }
                }
                match seq.next_element::<IgnoredAny>()? {
                    None => Ok(Arguments(words)),
                    Some(_) => Err(A::Error::custom(format!("more than {MAX_ARGUMENTS} arguments"))),
                }
            }
        }
        deserializer.deserialize_seq(Reading)
    }
}

/// A body as the front has read it, with the room that it takes until it is parsed.
struct Whole {
    headers: HeaderMap,
    bytes: Bytes,
    _room: Option<Room>,
}

async fn whole(request: Request) -> Result<Whole, Refusal> {
    let (mut parts, body) = request.into_parts();
    let room = parts.extensions.remove::<Room>();
    let bytes = to_bytes(body, PROPOSAL_BYTES).await.map_err(|error| refuse::bad_request(error.to_string()))?;
    Ok(Whole { headers: parts.headers, bytes, _room: room })
}

fn parse<T: DeserializeOwned>(whole: &Whole) -> Result<T, Refusal> {
    let given = whole.headers.get(header::CONTENT_TYPE).map_or("", |value| value.to_str().unwrap_or("?"));
    let essence = given.split(';').next().unwrap_or("").trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return Err(refuse::wrong_type(given));
    }
    match Json::from_bytes(&whole.bytes) {
        Ok(Json(value)) => Ok(value),
        Err(rejection) => Err(refuse::bad_request(rejection.body_text())),
    }
}
