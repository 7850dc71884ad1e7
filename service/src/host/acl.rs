//! POSIX access control lists as the kernel stores them: parsed, judged, changed.
//!
//! The form is that of `linux/posix_acl_xattr.h`: a version, then eight-byte entries in a fixed order. A list
//! that is not exactly of that form is refused.

use std::{ffi::CStr, io, os::fd::AsFd};

/// Who may use an object.
pub(crate) const ACCESS: &CStr = c"system.posix_acl_access";
/// What new entries of a directory get.
pub(crate) const DEFAULT: &CStr = c"system.posix_acl_default";

/// The kernel takes no longer attribute.
pub(crate) const MAX_BYTES: usize = 64 << 10;

pub(crate) const READ: u16 = 4;
pub(crate) const WRITE: u16 = 2;
pub(crate) const EXECUTE: u16 = 1;
pub(crate) const ALL: u16 = READ | WRITE | EXECUTE;

const VERSION: u32 = 2;
const NOBODY: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The access list of an open object, none where its mode says all.
pub(crate) fn of(object: impl AsFd) -> io::Result<Option<Acl>> {
    match salaam_sys::xattr::get(object, ACCESS, MAX_BYTES)? {
        None => Ok(None),
        Some(bytes) => Acl::parse(&bytes).map(Some).ok_or(io::Error::from(io::ErrorKind::InvalidData)),
    }
}

/// One entry: whose, for whom (`NOBODY` where the tag says it), what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    tag: u16,
    id: u32,
    permits: u16,
}

/// An access control list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// The list that a mode stands for.
    pub(crate) fn of_mode(mode: u32) -> Self {
        let bits = |shift: u32| u16::try_from((mode >> shift) & 7).unwrap_or(0);
        Self(vec![
            Entry { tag: USER_OBJ, id: NOBODY, permits: bits(6) },
            Entry { tag: GROUP_OBJ, id: NOBODY, permits: bits(3) },
            Entry { tag: OTHER, id: NOBODY, permits: bits(0) },
        ])
    }

    /// Reads the kernel's form; `None` for anything else.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (version, mut rest) = bytes.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*version) != VERSION {
            return None;
        }
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (entry, after) = rest.split_first_chunk::<8>()?;
            let [t0, t1, p0, p1, i0, i1, i2, i3] = *entry;
            let tag = u16::from_le_bytes([t0, t1]);
            if !matches!(tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER) {
                return None;
            }
            entries.push(Entry {
                tag,
                id: u32::from_le_bytes([i0, i1, i2, i3]),
                permits: u16::from_le_bytes([p0, p1]),
            });
            rest = after;
        }
        Some(Self(entries))
    }

    /// The kernel's form; it wants the entries in order.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut entries = self.0.clone();
        entries.sort_unstable();
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in entries {
            bytes.extend(entry.tag.to_le_bytes());
            bytes.extend(entry.permits.to_le_bytes());
            bytes.extend(entry.id.to_le_bytes());
        }
        bytes
    }

    /// With `permits` for one user; the mask grows to let it through and nobody else gains by that.
    pub(crate) fn with_user(self, uid: u32, permits: u16) -> Self {
        self.with(USER, uid, permits)
    }

    /// With `permits` for one group; the mask grows to let it through and nobody else gains by that.
    pub(crate) fn with_group(self, gid: u32, permits: u16) -> Self {
        self.with(GROUP, gid, permits)
    }

    /// As the default of a directory whose group is `gid` and passes on to what is made in it: all for that group.
    ///
    /// A list that names nobody stays one. A name that has no number in a command's user namespace can be read
    /// there and not written (EINVAL), so that `cp -a`, `cp -p` and `install -p` would fail on every file.
    pub(crate) fn shared_with(mut self, gid: u32) -> Self {
        if self.is_extended() {
            return self.with_group(gid, ALL);
        }
        for entry in self.0.iter_mut().filter(|entry| entry.tag == GROUP_OBJ) {
            entry.permits = ALL;
        }
        self
    }

    /// Without what was said for one user; without a mask too once nobody is left whom it would limit.
    pub(crate) fn without_user(mut self, uid: u32) -> Self {
        self.0.retain(|entry| !(entry.tag == USER && entry.id == uid));
        if !self.0.iter().any(|entry| matches!(entry.tag, USER | GROUP)) {
            let mask = self.of(MASK, NOBODY).unwrap_or(ALL);
            self.0.retain(|entry| entry.tag != MASK);
            for entry in &mut self.0 {
                if entry.tag == GROUP_OBJ {
                    entry.permits &= mask;
                }
            }
        }
        self
    }

    /// Whether it says more than a mode can.
    pub(crate) fn is_extended(&self) -> bool {
        self.0.iter().any(|entry| matches!(entry.tag, USER | GROUP | MASK))
    }

    /// Whether `wanted` is granted to a process of `uid` and `groups` on an object of `owner` and `group`, by the
    /// algorithm of acl(5).
    pub(crate) fn permits(&self, (owner, group): (u32, u32), uid: u32, groups: &[u32], wanted: u16) -> bool {
        let has = |permits: u16| permits & wanted == wanted;
        let mask = self.of(MASK, NOBODY).unwrap_or(ALL);
        if uid == owner {
            return has(self.of(USER_OBJ, NOBODY).unwrap_or(0));
        }
        if let Some(permits) = self.of(USER, uid) {
            return has(permits & mask);
        }
        let own = groups.contains(&group).then(|| self.of(GROUP_OBJ, NOBODY)).flatten();
        let named = self.0.iter().filter(|entry| entry.tag == GROUP && groups.contains(&entry.id));
        let mut matching = own.into_iter().chain(named.map(|entry| entry.permits)).peekable();
        if matching.peek().is_some() {
            return matching.any(|permits| has(permits & mask));
        }
        has(self.of(OTHER, NOBODY).unwrap_or(0))
    }

    fn of(&self, tag: u16, id: u32) -> Option<u16> {
        self.0.iter().find(|entry| entry.tag == tag && entry.id == id).map(|entry| entry.permits)
    }

    fn with(mut self, tag: u16, id: u32, permits: u16) -> Self {
        self.0.retain(|entry| !(entry.tag == tag && entry.id == id));
        // A mask that grows must not wake what it has cut until now: the others keep what was effective.
        if let Some(mask) = self.of(MASK, NOBODY) {
            for entry in &mut self.0 {
                if matches!(entry.tag, USER | GROUP_OBJ | GROUP) {
                    entry.permits &= mask;
                }
            }
        }
        self.0.retain(|entry| entry.tag != MASK);
        self.0.push(Entry { tag, id, permits });
        let class = self.0.iter().filter(|entry| matches!(entry.tag, USER | GROUP_OBJ | GROUP));
        let mask = class.fold(0, |mask, entry| mask | entry.permits);
        self.0.push(Entry { tag: MASK, id: NOBODY, permits: mask });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_names_nobody_is_shared_without_a_name() {
        let plain = Acl::of_mode(0o705).shared_with(995);
        assert_eq!(plain.to_bytes(), Acl::of_mode(0o775).to_bytes());
        let named = Acl::of_mode(0o700).with_user(5, READ);
        assert_eq!(named.clone().shared_with(995).to_bytes(), named.with_group(995, ALL).to_bytes());
    }

    #[test]
    fn a_list_reads_back_and_the_order_is_the_kernels() {
        let acl = Acl::of_mode(0o750).with_user(997, EXECUTE).with_group(995, ALL).with_user(5, READ);
        let bytes = acl.to_bytes();
        let tags: Vec<_> = bytes[4..].chunks(8).map(|entry| entry[0]).collect();
        assert_eq!(tags, [1, 2, 2, 4, 8, 0x10, 0x20]);
        assert_eq!(Acl::parse(&bytes).unwrap().to_bytes(), bytes);
        for broken in [&bytes[..bytes.len() - 1], &bytes[1..], b"", &[9, 0, 0, 0]] {
            assert_eq!(Acl::parse(broken), None);
        }
    }

    #[test]
    fn permission_follows_the_kernels_algorithm() {
        let object = (10, 20);
        let plain = Acl::of_mode(0o751);
        assert!(plain.permits(object, 99, &[], EXECUTE));
        assert!(!Acl::of_mode(0o750).permits(object, 99, &[99], EXECUTE));
        assert!(Acl::of_mode(0o750).permits(object, 99, &[20], EXECUTE));
        // A group that matches and does not permit is not saved by `others`.
        assert!(!Acl::of_mode(0o707).permits(object, 99, &[20], EXECUTE));
        let through = Acl::of_mode(0o700).with_user(99, EXECUTE);
        assert!(through.permits(object, 99, &[], EXECUTE));
        assert!(!through.permits(object, 99, &[], READ));
        assert!(!through.permits(object, 98, &[], EXECUTE));
        assert_eq!(through.clone().without_user(99), Acl::of_mode(0o700));
        assert!(through.is_extended() && !Acl::of_mode(0o700).is_extended());
    }

    #[test]
    fn letting_one_user_through_gives_the_owning_group_nothing() {
        let through = Acl::of_mode(0o700).with_user(99, EXECUTE);
        assert!(!through.permits((10, 20), 98, &[20], EXECUTE));
    }

    #[test]
    fn a_mask_that_grows_wakes_nothing_that_it_had_cut() {
        let mut acl = Acl::of_mode(0o770).with_user(7, ALL);
        for entry in &mut acl.0 {
            if entry.tag == MASK {
                entry.permits = 0;
            }
        }
        assert!(!acl.permits((1, 2), 7, &[], READ) && !acl.permits((1, 2), 8, &[2], READ));
        let grown = acl.with_user(99, ALL);
        assert!(grown.permits((1, 2), 99, &[], ALL));
        assert!(!grown.permits((1, 2), 7, &[], READ) && !grown.permits((1, 2), 8, &[2], READ));
    }
}
