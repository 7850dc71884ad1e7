//! `salaam-worker STATE_DIR`: started by the service, for one session. See the library.

fn main() -> std::process::ExitCode {
    salaam_worker::main()
}
