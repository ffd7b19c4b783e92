//! What slots hold, to files and back, by the handle.

use std::path::Path;

use super::thread::{Command, SlotAction, SlotReport, SlotWork};
use super::{Engine, EngineError};

impl Engine {
    /// Writes what a slot holds from its last job to a sequence-state file, by way of a temporary name beside it. Waits for the
    /// slot; blocks. Returns tokens and bytes.
    pub fn save_slot(&self, slot: u32, path: impl AsRef<Path>) -> Result<(usize, u64), EngineError> {
        let report = self.on_slot(slot, SlotAction::Save(path.as_ref().to_owned()))?;
        Ok((report.n_tokens, report.n_bytes))
    }

    /// Loads a sequence-state file into a slot, whose next job may begin with the same tokens. The file is trusted as little as
    /// a provider's. Waits for the slot; blocks. Returns the number of tokens.
    pub fn restore_slot(&self, slot: u32, path: impl AsRef<Path>) -> Result<usize, EngineError> {
        self.on_slot(slot, SlotAction::Restore(path.as_ref().to_owned())).map(|report| report.n_tokens)
    }

    /// Forgets what a slot holds. Waits for the slot; blocks. Returns the number of tokens.
    pub fn erase_slot(&self, slot: u32) -> Result<usize, EngineError> {
        self.on_slot(slot, SlotAction::Erase).map(|report| report.n_tokens)
    }

    fn on_slot(&self, slot: u32, action: SlotAction) -> Result<SlotReport, EngineError> {
        let (reply, answer) = std::sync::mpsc::channel();
        self.shared.send(Command::Slot(SlotWork { slot: slot as usize, action, reply }))?;
        answer.recv().unwrap_or(Err(EngineError::Stopped))
    }
}
