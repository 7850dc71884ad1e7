//! `Hello`: versions and identity, both ways.

use salaam_core::bridge::{Greeting, Hello};

use crate::{
    bounds::{self, MAX_GROUPS, MAX_WORD_BYTES, WireError},
    wire,
};

impl From<Greeting> for wire::HelloRequest {
    fn from(greeting: Greeting) -> Self {
        Self { bridge_version: greeting.bridge_version, build: greeting.build, epoch: greeting.epoch }
    }
}

impl TryFrom<wire::HelloRequest> for Greeting {
    type Error = WireError;

    fn try_from(request: wire::HelloRequest) -> Result<Self, WireError> {
        if request.bridge_version == 0 {
            return Err(WireError::Missing { field: "bridge_version" });
        }
        if request.epoch == 0 {
            return Err(WireError::Missing { field: "epoch" });
        }
        Ok(Self {
            bridge_version: request.bridge_version,
            build: bounds::text("build", request.build, MAX_WORD_BYTES)?,
            epoch: request.epoch,
        })
    }
}

impl From<Hello> for wire::HelloReply {
    fn from(hello: Hello) -> Self {
        Self {
            bridge_version: hello.bridge_version,
            build: hello.build,
            uid: hello.uid,
            groups: hello.groups,
            floor: hello.floor,
        }
    }
}

impl TryFrom<wire::HelloReply> for Hello {
    type Error = WireError;

    fn try_from(reply: wire::HelloReply) -> Result<Self, WireError> {
        if reply.bridge_version == 0 {
            return Err(WireError::Missing { field: "bridge_version" });
        }
        if !matches!(reply.floor.as_str(), "instance" | "builtin") {
            return Err(WireError::Form { field: "floor", form: "`instance` or `builtin`" });
        }
        Ok(Self {
            bridge_version: reply.bridge_version,
            build: bounds::text("build", reply.build, MAX_WORD_BYTES)?,
            uid: reply.uid,
            groups: bounds::list("groups", reply.groups, MAX_GROUPS, Ok)?,
            floor: reply.floor,
        })
    }
}
