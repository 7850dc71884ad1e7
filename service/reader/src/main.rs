//! `salaam-reader STATE_DIR`: started by the service, for one workspace. See the library.

fn main() -> std::process::ExitCode {
    salaam_reader::main()
}
