//! Thin safe wrappers around the kernel calls that nix lacks, one subject a file.
//!
//! Invariant: nothing here decides. Each unsafe block says why its contract holds where it stands.

#![expect(unsafe_code, reason = "this crate is where unsafe kernel calls live; everything above it is safe")]

pub mod born;
pub mod descriptors;
pub mod file;
pub mod handed;
pub mod keyring;
pub mod landlock;
pub mod peer;
pub mod pidfd;
pub mod priority;
pub mod reap;
pub mod segment;
pub mod spawn;
pub mod vouched;
pub mod xattr;
