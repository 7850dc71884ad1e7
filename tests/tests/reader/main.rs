//! The installed reader, asked by the service's own adapter as a real service account, in workspaces that a
//! stranger filled. Each attack is first shown to work with plain code of the same account.

mod asker;
mod driver;
mod endless;
mod outward;

/// The process that the other tests start; alone it does nothing.
#[test]
fn the_service_side() {
    driver::main();
}
