//! What the account that runs commands could read: judged as the kernel would judge it, from an object's
//! owner, mode and POSIX access list.
//!
//! The reader runs as the service user, which may open more than that account. What only the service user may
//! read (a 0600 file of its own, its group's files) stays secret. Access lists of other kinds (NFSv4) are not
//! read; there the mode decides.

use std::{ffi::CStr, io, os::fd::AsFd};

use nix::sys::stat::{FileStat, fstat};

/// The access list that the kernel goes by.
const ACCESS: &CStr = c"system.posix_acl_access";
/// A list of 511 entries; more is nobody's, and counts as unreadable.
const MAX_BYTES: usize = 4 + 8 * 511;
/// The one form that `linux/posix_acl_xattr.h` knows.
const VERSION: u32 = 2;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// What somebody wants of an object, in the bits of a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// The bytes of a file, or the names in a directory.
    Read,
    /// To go through a directory.
    Search,
}

impl Want {
    const fn bit(self) -> u16 {
        match self {
            Self::Read => 4,
            Self::Search => 1,
        }
    }
}

/// The account that runs commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its user id.
    pub uid: u32,
    /// All its groups: its own and the work group.
    pub groups: Vec<u32>,
}

/// What the kernel asks about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    owner: u32,
    group: u32,
    mode: u32,
    list: Option<Vec<Entry>>,
}

/// One entry of an access list; `id` means something for named users and groups only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permits: u16,
    id: u32,
}

impl Guard {
    /// What guards an open object (not one that was opened as a place only).
    ///
    /// # Errors
    /// What fstat(2) or fgetxattr(2) gives, and an access list that is too long or of another form.
    pub fn of(object: impl AsFd) -> io::Result<(Self, FileStat)> {
        let stat = fstat(&object)?;
        let list = match salaam_sys::xattr::get(&object, ACCESS, MAX_BYTES)? {
            None => None,
            Some(bytes) => Some(parse(&bytes).ok_or(io::Error::from(io::ErrorKind::InvalidData))?),
        };
        Ok((Self { owner: stat.st_uid, group: stat.st_gid, mode: stat.st_mode, list }, stat))
    }

    const fn class(&self, shift: u32) -> u16 {
        ((self.mode >> shift) & 7) as u16
    }
}

impl Account {
    /// Whether the account may do `want`, by acl(5) "access check algorithm". It holds no capability.
    pub fn may(&self, want: Want, guard: &Guard) -> bool {
        let bit = want.bit();
        if self.uid == guard.owner {
            // The mode's first class is the list's, too.
            return guard.class(6) & bit != 0;
        }
        match &guard.list {
            None if self.groups.contains(&guard.group) => guard.class(3) & bit != 0,
            None => guard.class(0) & bit != 0,
            Some(list) => self.may_by_list(bit, guard, list),
        }
    }

    fn may_by_list(&self, bit: u16, guard: &Guard, list: &[Entry]) -> bool {
        let mask = list.iter().find(|entry| entry.tag == MASK).map_or(7, |entry| entry.permits);
        if let Some(entry) = list.iter().find(|entry| entry.tag == USER && entry.id == self.uid) {
            return entry.permits & mask & bit != 0;
        }
        let mut member = false;
        for entry in list {
            let matches = match entry.tag {
                GROUP_OBJ => self.groups.contains(&guard.group),
                GROUP => self.groups.contains(&entry.id),
                _ => false,
            };
            if matches && entry.permits & mask & bit != 0 {
                return true;
            }
            member |= matches;
        }
        // A member of a group that is named gets nothing from the class of all others.
        !member && list.iter().any(|entry| entry.tag == OTHER && entry.permits & bit != 0)
    }
}

fn parse(bytes: &[u8]) -> Option<Vec<Entry>> {
    let (version, rest) = bytes.split_first_chunk::<4>()?;
    let (entries, []) = rest.as_chunks::<8>() else { return None };
    if u32::from_le_bytes(*version) != VERSION {
        return None;
    }
    let known = [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER];
    entries
        .iter()
        .map(|[t0, t1, p0, p1, i0, i1, i2, i3]| {
            let tag = u16::from_le_bytes([*t0, *t1]);
            let permits = u16::from_le_bytes([*p0, *p1]);
            let id = u32::from_le_bytes([*i0, *i1, *i2, *i3]);
            (known.contains(&tag) && permits <= 7).then_some(Entry { tag, permits, id })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Account {
        Account { uid: 997, groups: vec![997, 995] }
    }

    fn guard(owner: u32, group: u32, mode: u32) -> Guard {
        Guard { owner, group, mode, list: None }
    }

    #[test]
    fn the_first_class_that_applies_decides_alone() {
        let cases = [
            ("the service's own", guard(1001, 1001, 0o600), false),
            ("the service's group's", guard(1001, 1001, 0o640), false),
            ("the work group's", guard(1001, 995, 0o640), true),
            ("anybody's", guard(1001, 1001, 0o604), true),
            ("all but the work group's", guard(1001, 995, 0o604), false),
            ("its own", guard(997, 995, 0o400), true),
            ("its own, taken from itself", guard(997, 995, 0o044), false),
        ];
        for (name, guard, expected) in cases {
            assert_eq!(tools().may(Want::Read, &guard), expected, "{name}");
        }
        assert!(!tools().may(Want::Search, &guard(1001, 995, 0o740)));
        assert!(tools().may(Want::Search, &guard(1001, 995, 0o710)));
    }

    #[test]
    fn a_list_decides_as_the_kernel_does() {
        let entry = |tag, permits, id| Entry { tag, permits, id };
        let of = |list: &[Entry]| Guard { list: Some(list.to_vec()), ..guard(1001, 995, 0o660) };
        let (user, none) = (entry(USER_OBJ, 6, 0), entry(OTHER, 0, 0));
        let cases = [
            ("the mask takes from the group", of(&[user, entry(GROUP_OBJ, 7, 0), entry(MASK, 0, 0), none]), false),
            ("a named user", of(&[user, entry(USER, 4, 997), entry(GROUP_OBJ, 0, 0), entry(MASK, 7, 0), none]), true),
            (
                "a named user without",
                of(&[user, entry(USER, 0, 997), entry(GROUP_OBJ, 7, 0), entry(MASK, 7, 0)]),
                false,
            ),
            ("one of two groups", of(&[user, entry(GROUP_OBJ, 0, 0), entry(GROUP, 4, 997), entry(MASK, 7, 0)]), true),
            ("a group without, others with", of(&[user, entry(GROUP_OBJ, 0, 0), entry(OTHER, 4, 0)]), false),
            ("a stranger to it", of(&[user, entry(GROUP, 7, 5), entry(MASK, 7, 0), entry(OTHER, 4, 0)]), true),
        ];
        for (name, guard, expected) in cases {
            assert_eq!(tools().may(Want::Read, &guard), expected, "{name}");
        }
        let foreign = Guard { group: 1, ..of(&[user, entry(GROUP_OBJ, 0, 0), entry(OTHER, 4, 0)]) };
        assert!(tools().may(Want::Read, &foreign));
    }

    #[test]
    fn a_list_of_another_form_is_none() {
        assert_eq!(parse(&[2, 0, 0, 0]), Some(Vec::new()));
        for bytes in [&[3, 0, 0, 0][..], &[2, 0, 0], &[2, 0, 0, 0, 1], &[2, 0, 0, 0, 3, 0, 4, 0, 0, 0, 0, 0]] {
            assert_eq!(parse(bytes), None, "{bytes:?}");
        }
    }
}
