//! What is tried at start: the sandbox, and what the tools user must not reach.

use salaam_core::{
    bridge::{Attempt, Attempted, MAX_SAID_BYTES, ProbeSandbox, SandboxStatus},
    check::Check,
    result::Sandbox,
};

use crate::{
    bounds::{
        self, MAX_ATTEMPTS, MAX_CHECKS, MAX_ERRNO, MAX_NAMESPACES, MAX_SENTENCE_BYTES, MAX_WORD_BYTES, WireError,
    },
    wire,
};

impl From<ProbeSandbox> for wire::ProbeSandboxRequest {
    fn from(probe: ProbeSandbox) -> Self {
        Self { landlock: probe.landlock.as_str().into(), prove: probe.prove }
    }
}

impl TryFrom<wire::ProbeSandboxRequest> for ProbeSandbox {
    type Error = WireError;

    fn try_from(request: wire::ProbeSandboxRequest) -> Result<Self, WireError> {
        Ok(Self { landlock: bounds::word("landlock", &request.landlock)?, prove: request.prove })
    }
}

impl From<SandboxStatus> for wire::ProbeSandboxReply {
    fn from(status: SandboxStatus) -> Self {
        Self { sandbox: status.sandbox.map(Into::into), checks: status.checks.into_iter().map(Into::into).collect() }
    }
}

impl TryFrom<wire::ProbeSandboxReply> for SandboxStatus {
    type Error = WireError;

    fn try_from(reply: wire::ProbeSandboxReply) -> Result<Self, WireError> {
        let checks = bounds::list("checks", reply.checks, MAX_CHECKS, Check::try_from)?;
        if checks.is_empty() {
            return Err(WireError::Missing { field: "checks" });
        }
        Ok(Self { sandbox: reply.sandbox.map(Sandbox::try_from).transpose()?, checks })
    }
}

impl From<Check> for wire::Check {
    fn from(check: Check) -> Self {
        Self {
            id: check.id,
            status: check.status.as_str().into(),
            evidence: bounds::cut(check.evidence),
            fix: bounds::cut(check.fix),
        }
    }
}

impl TryFrom<wire::Check> for Check {
    type Error = WireError;

    fn try_from(check: wire::Check) -> Result<Self, WireError> {
        Ok(Self {
            id: bounds::name("check.id", check.id)?,
            status: bounds::word("check.status", &check.status)?,
            evidence: bounds::text("check.evidence", check.evidence, MAX_SENTENCE_BYTES)?,
            fix: bounds::text("check.fix", check.fix, MAX_SENTENCE_BYTES)?,
        })
    }
}

impl From<Sandbox> for wire::Sandbox {
    fn from(sandbox: Sandbox) -> Self {
        Self {
            backend: sandbox.backend,
            version: sandbox.version,
            landlock_abi: sandbox.landlock_abi,
            landlock: sandbox.landlock,
            seccomp: sandbox.seccomp,
            namespaces: sandbox.namespaces,
            warm: sandbox.warm,
            cgroup: sandbox.cgroup,
        }
    }
}

impl TryFrom<wire::Sandbox> for Sandbox {
    type Error = WireError;

    fn try_from(sandbox: wire::Sandbox) -> Result<Self, WireError> {
        if !matches!(sandbox.backend.as_str(), "bubblewrap" | "none") {
            return Err(WireError::Form { field: "sandbox.backend", form: "`bubblewrap` or `none`" });
        }
        if !matches!(sandbox.landlock.as_str(), "fully-enforced" | "partially-enforced" | "not-enforced") {
            return Err(WireError::Form { field: "sandbox.landlock", form: "a landlock status" });
        }
        Ok(Self {
            backend: sandbox.backend,
            version: bounds::text("sandbox.version", sandbox.version, MAX_WORD_BYTES)?,
            landlock_abi: sandbox.landlock_abi,
            landlock: sandbox.landlock,
            seccomp: sandbox.seccomp,
            namespaces: bounds::list("sandbox.namespaces", sandbox.namespaces, MAX_NAMESPACES, |namespace| {
                bounds::name("sandbox.namespaces", namespace)
            })?,
            warm: sandbox.warm,
            cgroup: bounds::list("sandbox.cgroup", sandbox.cgroup, MAX_NAMESPACES, |controller| {
                bounds::name("sandbox.cgroup", controller)
            })?,
        })
    }
}

impl From<Vec<Attempt>> for wire::TryRequest {
    fn from(attempts: Vec<Attempt>) -> Self {
        Self { attempts: attempts.into_iter().map(Into::into).collect() }
    }
}

impl TryFrom<wire::TryRequest> for Vec<Attempt> {
    type Error = WireError;

    fn try_from(request: wire::TryRequest) -> Result<Self, WireError> {
        bounds::list("attempts", request.attempts, MAX_ATTEMPTS, Attempt::try_from)
    }
}

impl From<Attempt> for wire::Attempt {
    fn from(attempt: Attempt) -> Self {
        Self { id: attempt.id, action: attempt.action.as_str().into(), path: attempt.path.into() }
    }
}

impl TryFrom<wire::Attempt> for Attempt {
    type Error = WireError;

    fn try_from(attempt: wire::Attempt) -> Result<Self, WireError> {
        let attempt = Self {
            id: bounds::name("attempt.id", attempt.id)?,
            action: bounds::word("attempt.action", &attempt.action)?,
            path: bounds::absolute_path("attempt.path", &attempt.path)?,
        };
        if attempt.action.is_program() && attempt.path != b"/" {
            return Err(WireError::Form { field: "attempt.path", form: "`/`: a program is not named by the service" });
        }
        Ok(attempt)
    }
}

impl From<Vec<Attempted>> for wire::TryReply {
    fn from(results: Vec<Attempted>) -> Self {
        Self { results: results.into_iter().map(Into::into).collect() }
    }
}

impl From<Attempted> for wire::Attempted {
    fn from(tried: Attempted) -> Self {
        Self { id: tried.id, errno: tried.errno, code: tried.code, said: tried.said }
    }
}

impl TryFrom<wire::TryReply> for Vec<Attempted> {
    type Error = WireError;

    fn try_from(reply: wire::TryReply) -> Result<Self, WireError> {
        bounds::list("results", reply.results, MAX_ATTEMPTS, |tried| {
            if !(0..=MAX_ERRNO).contains(&tried.errno) {
                return Err(WireError::Form { field: "attempted.errno", form: "0 or an errno" });
            }
            if tried.code.is_some_and(|code| !(0..=255).contains(&code)) {
                return Err(WireError::Form { field: "attempted.code", form: "from 0 to 255" });
            }
            Ok(Attempted {
                id: bounds::name("attempted.id", tried.id)?,
                errno: tried.errno,
                code: tried.code,
                said: bounds::text("attempted.said", tried.said, MAX_SAID_BYTES)?,
            })
        })
    }
}
