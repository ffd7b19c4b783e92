//! The `onebit-prefill` program: the reference prefill provider.

fn main() -> std::process::ExitCode {
    onebit::cli::prefill_main(std::env::args_os())
}
