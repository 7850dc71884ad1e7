//! GET /v1/operations/{id}/output: the bytes that were kept of a stream, exactly, or as they come.

use std::{fs::File, io, io::Read as _, sync::Arc};

use axum::{
    Extension,
    body::Bytes,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use salaam_core::{bridge::Stream, id::OperationId};
use serde::Deserialize;
use tokio::task::spawn_blocking;
use utoipa::IntoParams;

use crate::{
    app::{App, Flow, Refusal},
    http::{
        ask::{Asked, Named},
        limits::READ_BYTES,
        lines, schema,
        seat::{Seat, Stay},
    },
};

/// Which stream.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct WhichStream {
    /// `stdout` (default) or `stderr`.
    #[serde(default = "stdout")]
    #[param(value_type = String, default = "stdout")]
    stream: Stream,
    /// Of an operation that is not over: what there is, then what comes, until the receipt.
    #[serde(default)]
    #[param(default = false)]
    follow: bool,
}

/// The kept bytes of one stream: all of them, or head and tail of what was longer than the limit.
#[utoipa::path(get, path = "/v1/operations/{id}/output", tag = "operations", operation_id = "readOutput",
    params(("id" = String, Path, description = "op_ and 32 hex digits"), WhichStream),
    responses(
        (status = 200, description = "The bytes", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = "default", description = "Refused, with the reason and the fix", body = schema::Failed)))]
pub(in crate::http) async fn output(
    State(app): State<Arc<App>>,
    Extension(seat): Extension<Seat>,
    Named(id): Named<OperationId>,
    Asked(which): Asked<WhichStream>,
) -> Result<Response, Refusal> {
    let stay = seat.stay()?;
    let octets = (header::CONTENT_TYPE, "application/octet-stream".to_owned());
    if which.follow
        && let Some(flow) = app.flow(id, which.stream)
    {
        let body = lines::body(Following { flow, _stay: stay }, |state| Box::pin(next_bytes(state)));
        return Ok(([octets], body).into_response());
    }
    let Some(file) = app.output(id, which.stream).await? else {
        if which.follow {
            return Ok(([octets], Bytes::new()).into_response());
        }
        return Err(Refusal {
            id: "no-output".into(),
            status: 404,
            message: format!("nothing was kept of {} of {id}", which.stream),
            fix: format!("`salaam operation show {id}` says how many bytes there were"),
        });
    };
    let length = file.metadata().map(|metadata| metadata.len()).map_err(|error| unreadable(id, &error))?;
    let body = lines::body(Reading { file, left: length, _stay: stay }, |state| Box::pin(next_piece(state)));
    let headers = [octets, (header::CONTENT_LENGTH, length.to_string())];
    Ok((headers, body).into_response())
}

/// A stream that is followed; what it holds ends with its body.
struct Following {
    flow: Flow,
    _stay: Stay,
}

async fn next_bytes(mut following: Following) -> io::Result<Option<(Bytes, Following)>> {
    let bytes = following.flow.next(READ_BYTES).await?;
    Ok(bytes.map(|bytes| (Bytes::from(bytes), following)))
}

pub(in crate::http) struct Reading {
    pub(in crate::http) file: File,
    pub(in crate::http) left: u64,
    pub(in crate::http) _stay: Stay,
}

/// Reads the next piece off the runtime's threads. A file that is shorter than it said breaks the answer off.
pub(in crate::http) async fn next_piece(mut reading: Reading) -> io::Result<Option<(Bytes, Reading)>> {
    if reading.left == 0 {
        return Ok(None);
    }
    let read = spawn_blocking(move || {
        let want = reading.left.min(READ_BYTES as u64);
        let mut piece = Vec::new();
        (&reading.file).take(want).read_to_end(&mut piece)?;
        if piece.len() as u64 != want {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        reading.left -= want;
        Ok(Some((Bytes::from(piece), reading)))
    });
    read.await.map_err(io::Error::other)?
}

fn unreadable(id: OperationId, error: &io::Error) -> Refusal {
    Refusal {
        id: "output-unreadable".into(),
        status: 500,
        message: format!("the kept output of {id} cannot be read: {error}"),
        fix: "look at the blobs in the state directory".into(),
    }
}

const fn stdout() -> Stream {
    Stream::Stdout
}
