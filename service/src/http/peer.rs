//! Who is at the other end, by the kernel's word, and whether it is an operator.
//!
//! The decision ([`admit`]) is a pure function. No word of the kernel, no admission.

use std::{io, os::fd::AsFd as _};

use tokio::net::UnixStream;

use super::limits::NAME_TIME;
use crate::app::{Refusal, Who};

/// The peer as the kernel recorded it when it connected (SO_PEERCRED, SO_PEERGROUPS).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its effective uid.
    pub uid: u32,
    /// Its effective gid.
    pub gid: u32,
    /// Its process; 0 where our pid namespace does not show it.
    pub pid: i32,
    /// Its supplementary groups.
    pub groups: Vec<u32>,
}

/// Whom the socket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// The service's own account.
    pub service_uid: u32,
    /// The operators group, if there is one.
    pub operators_gid: Option<u32>,
}

/// Whether a peer is an operator, and why.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is the service's account.
    Service,
    /// It is root, who could be anybody.
    Root,
    /// It is in the operators group.
    Member,
    /// It is none of these.
    Stranger,
}

/// Judges a peer.
pub fn admit(peer: &Peer, admission: Admission) -> Verdict {
    if peer.uid == admission.service_uid {
        return Verdict::Service;
    }
    if peer.uid == 0 {
        return Verdict::Root;
    }
    match admission.operators_gid {
        Some(gid) if peer.gid == gid || peer.groups.contains(&gid) => Verdict::Member,
        Some(_) | None => Verdict::Stranger,
    }
}

/// Asks the kernel who connected.
pub(super) fn read(stream: &UnixStream) -> io::Result<Peer> {
    let credentials = stream.peer_cred()?;
    Ok(Peer {
        uid: credentials.uid(),
        gid: credentials.gid(),
        pid: credentials.pid().unwrap_or(0),
        groups: salaam_sys::peer::groups(stream.as_fd())?,
    })
}

/// The operator as requests and the journal name it.
pub(super) async fn who(peer: &Peer) -> Who {
    Who { uid: peer.uid, pid: peer.pid, principal: user_name(peer.uid).await, via: "operator-socket" }
}

/// What a stranger is told: who it is, whose socket this is, and both ways in.
pub(super) async fn not_an_operator(peer: &Peer, admission: Admission) -> Refusal {
    let them = user_name(peer.uid).await;
    let us = user_name(admission.service_uid).await;
    let join = match admission.operators_gid {
        Some(gid) => {
            let group = group_name(gid).await;
            format!("have root run `usermod -aG {group} {them}` and log in again")
        }
        None => format!("have root run `salaam host setup --service-user {us} --operators-group GROUP` and join GROUP"),
    };
    Refusal {
        id: "not-an-operator".into(),
        status: 403,
        message: format!(
            "you are {them} (uid {}); this socket is {us}'s (uid {}), and you are no operator of it",
            peer.uid, admission.service_uid
        ),
        fix: format!("run `sudo -u {us} salaam …`, or {join}"),
    }
}

async fn user_name(uid: u32) -> String {
    named(uid, move || users::get_user_by_uid(uid).map(|user| user.name().to_string_lossy().into_owned())).await
}

async fn group_name(gid: u32) -> String {
    named(gid, move || users::get_group_by_gid(gid).map(|group| group.name().to_string_lossy().into_owned())).await
}

/// The account database may be a network away, so it is asked off the runtime's threads and not for long.
async fn named(number: u32, ask: impl FnOnce() -> Option<String> + Send + 'static) -> String {
    match tokio::time::timeout(NAME_TIME, tokio::task::spawn_blocking(ask)).await {
        Ok(Ok(Some(name))) => name,
        Ok(Ok(None) | Err(_)) | Err(_) => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_service_root_and_members_are_admitted() {
        let peer = |uid, gid, groups: &[u32]| Peer { uid, gid, pid: 1, groups: groups.to_vec() };
        let with = Admission { service_uid: 1001, operators_gid: Some(50) };
        let without = Admission { service_uid: 1001, operators_gid: None };
        for (peer, admission, verdict) in [
            (peer(1001, 1, &[]), without, Verdict::Service),
            (peer(0, 0, &[]), without, Verdict::Root),
            (peer(7, 50, &[]), with, Verdict::Member),
            (peer(7, 7, &[1, 50]), with, Verdict::Member),
            (peer(7, 50, &[50]), without, Verdict::Stranger),
            (peer(7, 7, &[]), with, Verdict::Stranger),
            // A group or uid 0 or 1001 of another kind opens nothing.
            (peer(7, 0, &[0, 1001]), with, Verdict::Stranger),
            (peer(50, 7, &[]), with, Verdict::Stranger),
        ] {
            assert_eq!(admit(&peer, admission), verdict, "{peer:?}");
        }
    }
}
