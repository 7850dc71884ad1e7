//! Processes under watch: started from one thread, held by descriptor, ended as a tree, proven gone.

mod cgroup;
mod child;
mod orphans;
mod spawner;
mod tree;

pub use cgroup::{Cgroups, Leaf};
pub use child::Child;
pub use spawner::{Order, Spawner};
pub(crate) use tree::pipe;
pub use tree::{Gone, Start, StartError, Tree};
