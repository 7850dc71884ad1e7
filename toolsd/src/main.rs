//! `salaam-toolsd`: takes no arguments. See `salaam_toolsd::app`.

fn main() -> std::process::ExitCode {
    salaam_toolsd::app::main()
}
