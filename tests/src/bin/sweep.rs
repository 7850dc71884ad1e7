//! Takes away what test runs left on the host.
//!
//! `salaam-tests-sweep TAG` waits until its standard input ends, which is when the test binary that started
//! it has gone, in whatever way, and sweeps that tag. `salaam-tests-sweep` alone sweeps every tag that no
//! living run holds.

use std::io::Read;

fn main() {
    match std::env::args().nth(1) {
        Some(tag) => {
            drop(std::io::stdin().read_to_end(&mut Vec::new()));
            salaam_tests::sweep::sweep(&tag);
        }
        None => salaam_tests::sweep::abandoned().iter().for_each(|tag| salaam_tests::sweep::sweep(tag)),
    }
}
