//! Exit codes: what each number means, and which error id leads to which.

/// Done.
pub const OK: u8 = 0;
/// It failed.
pub const FAILED: u8 = 1;
/// The command line or the configuration is wrong.
pub const USAGE: u8 = 2;
/// Refused by a check, or the caller is no operator.
pub const REFUSED: u8 = 3;
/// There is no such thing.
pub const NOT_FOUND: u8 = 4;
/// Stale, denied, expired, decided before, or another binding.
pub const NOT_GRANTED: u8 = 5;
/// The service is not running.
pub const NOT_RUNNING: u8 = 6;

/// `run`: the command ran into its time limit (as timeout(1)).
pub const RUN_TIMED_OUT: u8 = 124;
/// `run`: anything of Salaam's.
pub const RUN_SALAAM: u8 = 125;
/// `run`: the command was ended by signal N, plus N (as a shell reports it).
pub const RUN_SIGNAL: u8 = 128;
/// `run`: the caller pressed ^C.
pub const RUN_INTERRUPTED: u8 = RUN_SIGNAL + 2;
/// `run`: whoever read the output went away.
pub const RUN_BROKEN_PIPE: u8 = RUN_SIGNAL + 13;

/// The code for an error id that the service answered. `status` is the HTTP status, for ids that are not in
/// the table.
pub fn of(id: &str, status: u16) -> u8 {
    if let Some((_, code)) = TABLE.iter().find(|(known, _)| *known == id) {
        return *code;
    }
    match status {
        400 | 405 | 411 | 413 | 414 | 415 => USAGE,
        401 | 403 | 422 => REFUSED,
        404 => NOT_FOUND,
        410 => NOT_GRANTED,
        0..=399 | 402 | 406..=409 | 412 | 416..=421 | 423.. => FAILED,
    }
}

/// Error ids whose code does not follow from the HTTP status.
const TABLE: &[(&str, u8)] = &[
    ("not-found", NOT_FOUND),
    ("stale", NOT_GRANTED),
    ("stale-approval", NOT_GRANTED),
    ("stale-operand", NOT_GRANTED),
    ("binding-mismatch", NOT_GRANTED),
    ("denied", NOT_GRANTED),
    ("expired", NOT_GRANTED),
    ("already-decided", NOT_GRANTED),
    ("not-an-operator", REFUSED),
    ("start-refused", REFUSED),
    ("state-locked", REFUSED),
    ("plan-changed", REFUSED),
    ("control-failed", REFUSED),
    ("refused", REFUSED),
    ("runtime-dir-mode", REFUSED),
    ("workspace-refused", REFUSED),
    ("workspace-not-usable", REFUSED),
    ("not-the-service-account", REFUSED),
    ("configuration", USAGE),
    ("host-io", USAGE),
    ("config-untrusted", USAGE),
    ("config-invalid", USAGE),
    ("config-above-floor", USAGE),
    ("instance-invalid", USAGE),
    ("account-missing", USAGE),
    ("group-missing", USAGE),
    ("read-path-refused", USAGE),
    ("manifest-invalid", USAGE),
    ("not-root", REFUSED),
    ("setup-in-use", REFUSED),
    ("setup-account", USAGE),
    ("setup-path", USAGE),
    ("setup-many-changes", USAGE),
    ("nothing-to-undo", NOT_FOUND),
    ("usage", USAGE),
    ("bad-request", USAGE),
    ("not-running", NOT_RUNNING),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_of_the_contract_has_its_code() {
        for (id, status, code) in [
            ("not-found", 404, 4),
            ("stale-approval", 409, 5),
            ("binding-mismatch", 409, 5),
            ("denied", 409, 5),
            ("expired", 409, 5),
            ("already-decided", 409, 5),
            ("not-an-operator", 403, 3),
            ("start-refused", 0, 3),
            ("control-failed", 503, 3),
            ("configuration", 0, 2),
            ("something-new", 404, 4),
            ("something-new", 403, 3),
            ("something-new", 400, 2),
            ("something-new", 422, 3),
            ("something-new", 500, 1),
            ("something-new", 429, 1),
        ] {
            assert_eq!(of(id, status), code, "{id} {status}");
        }
    }
}
