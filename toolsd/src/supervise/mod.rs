//! Processes under watch: started from one thread, held by descriptor, ended as a tree, proven gone.

mod census;
mod cgroup;
mod child;
mod leftover;
mod orphans;
mod spawner;
mod tree;

pub use census::{Census, Nameless};
pub use cgroup::{Cgroups, Leaf};
pub use child::Child;
pub use leftover::end_leftovers;
pub use spawner::{Order, Spawner};
pub use tree::{Gone, Start, StartError, Tree};
pub(crate) use tree::{PROOF, pipe};
