//! Opening a workspace.

use salaam_core::bridge::{OpenWorkspace, OpenedWorkspace};

use crate::{
    bounds::{self, MAX_HANDLE_DIGITS, WireError},
    wire,
};

impl From<OpenWorkspace> for wire::OpenWorkspaceRequest {
    fn from(open: OpenWorkspace) -> Self {
        Self { workspace: open.workspace.to_string(), path: open.path.into() }
    }
}

impl TryFrom<wire::OpenWorkspaceRequest> for OpenWorkspace {
    type Error = WireError;

    fn try_from(request: wire::OpenWorkspaceRequest) -> Result<Self, WireError> {
        Ok(Self {
            workspace: bounds::id("workspace", &request.workspace)?,
            path: bounds::absolute_path("path", &request.path)?,
        })
    }
}

impl From<OpenedWorkspace> for wire::OpenWorkspaceReply {
    fn from(opened: OpenedWorkspace) -> Self {
        Self { device: opened.device, inode: opened.inode, handle: opened.handle, writable: opened.writable }
    }
}

impl TryFrom<wire::OpenWorkspaceReply> for OpenedWorkspace {
    type Error = WireError;

    fn try_from(reply: wire::OpenWorkspaceReply) -> Result<Self, WireError> {
        let handle = bounds::text("handle", reply.handle, MAX_HANDLE_DIGITS)?;
        if !handle.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(WireError::Form { field: "handle", form: "lower-case hex" });
        }
        Ok(Self { device: reply.device, inode: reply.inode, handle, writable: reply.writable })
    }
}
