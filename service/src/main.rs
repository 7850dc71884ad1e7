//! `salaam`: the service and its command line.

fn main() -> std::process::ExitCode {
    salaam_service::cli::main()
}
