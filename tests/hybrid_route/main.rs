//! The way of a prompt through another program and back, on the real binary: a tiny random model, scripted providers.

#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;

mod ends;
mod failures;
mod handoff;
mod provider;
mod queue;
mod refusals;
mod slot_dir;
