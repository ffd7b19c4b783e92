//! The `onebit` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    // A provider's supervisor is this program again (hybrid::supervisor); it is on the way to the first token, so it comes
    // before everything else.
    if let Some(code) = onebit::hybrid::supervisor::run_if_asked() {
        return code;
    }
    onebit::cli::main(std::env::args_os())
}
