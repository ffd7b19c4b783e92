//! What the integration tests share: a tiny model, a server to start and stop, a small HTTP client, scripted providers.

// Every test binary compiles its own copy and uses a part of it.
#![allow(dead_code)]

pub mod bench;
pub mod http;
pub mod kinds;
pub mod model;
pub mod process;
pub mod request;
pub mod server;
