//! What slots hold, to files and back.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use crate::llama::Token;

use super::{DecodeLoop, seq_id};
use crate::engine::{EngineError, restore, save};

/// Something to be done with what a slot holds.
pub(in crate::engine) struct SlotWork {
    pub slot: usize,
    pub action: SlotAction,
    pub reply: Sender<Result<SlotReport, EngineError>>,
}

pub(in crate::engine) enum SlotAction {
    Save(PathBuf),
    Restore(PathBuf),
    Erase,
}

/// Tokens that were saved, restored or erased, and bytes written.
pub(in crate::engine) struct SlotReport {
    pub n_tokens: usize,
    pub n_bytes: u64,
}

impl DecodeLoop {
    pub(super) fn work_on_slot(&mut self, work: SlotWork) {
        let seq = work.slot;
        let result = match self.held.get_mut(seq).map(|held| std::mem::take(&mut held.tokens)) {
            None => Err(EngineError::InvalidOption { option: "id_slot", reason: "is no slot".to_owned() }),
            Some(tokens) => self.act(seq, tokens, work.action),
        };
        // Nobody may be waiting any more.
        let _ = work.reply.send(result);
    }

    fn act(&mut self, seq: usize, tokens: Vec<Token>, action: SlotAction) -> Result<SlotReport, EngineError> {
        let n_tokens = tokens.len();
        match action {
            SlotAction::Erase => {
                self.held[seq].clear();
                self.context.clear_seq(seq_id(seq));
                Ok(SlotReport { n_tokens, n_bytes: 0 })
            }
            SlotAction::Save(path) => {
                let failed = |reason: String| EngineError::Save { path: path.display().to_string(), reason };
                let saved = match tokens.is_empty() {
                    true => Err(failed("the slot holds nothing".to_owned())),
                    false => {
                        let layout = &self.limits.restore.layout;
                        save_as(&path, |temporary| {
                            save::save(&mut self.context, seq_id(seq), &tokens, layout, temporary)
                        })
                        .map_err(failed)
                    }
                };
                self.held[seq].tokens = tokens;
                saved.map(|n_bytes| SlotReport { n_tokens, n_bytes })
            }
            SlotAction::Restore(path) => {
                let seq_id = seq_id(seq);
                let (rules, probe, memory) = (&self.limits.restore, &mut self.probe, &mut self.image_memory);
                match restore::restore_whole(&mut self.context, seq_id, &path, &|_| true, rules, probe, memory) {
                    Ok(tokens) => {
                        let n_tokens = tokens.len();
                        self.held[seq].clear();
                        self.held[seq].tokens = tokens;
                        self.held[seq].is_from_file = true;
                        Ok(SlotReport { n_tokens, n_bytes: 0 })
                    }
                    Err(reason) => {
                        if reason.leaves_sequence() {
                            self.held[seq].tokens = tokens;
                        } else {
                            self.held[seq].clear();
                            self.context.clear_seq(seq_id);
                        }
                        Err(EngineError::Restore(reason.to_string()))
                    }
                }
            }
        }
    }
}

/// Writes under a temporary name, which becomes `path` when all is there. Of one process only the decode thread does this; of
/// several, the one that has the lock.
fn save_as(path: &Path, save: impl FnOnce(&Path) -> Result<u64, String>) -> Result<u64, String> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".part");
    let temporary = PathBuf::from(temporary);
    // Not made empty, because it may be another's.
    let lock =
        File::options().write(true).create(true).truncate(false).open(&temporary).map_err(|err| err.to_string())?;
    if matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
        return Err(format!("another process is writing {}", temporary.display()));
    }
    let saved = save(&temporary).and_then(|n_bytes| {
        std::fs::rename(&temporary, path).map_err(|err| err.to_string())?;
        Ok(n_bytes)
    });
    if saved.is_err() {
        // A full disk has left a part of it.
        let _ = std::fs::remove_file(&temporary);
    }
    saved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_processes_do_not_write_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let save = |to: &Path| std::fs::write(to, "all").map(|()| 3).map_err(|err| err.to_string());
        let mut refused = None;
        let saved = save_as(&path, |to| {
            refused = Some(save_as(&path, save));
            save(to)
        });
        assert_eq!((saved, std::fs::read(&path).unwrap()), (Ok(3), b"all".to_vec()));
        let reason = refused.unwrap().unwrap_err();
        assert!(reason.contains("another process is writing") && reason.ends_with("state.part"), "{reason}");
        // What a killed one has left is no hindrance, and a failure leaves nothing.
        std::fs::write(folder.path().join("state.part"), "a longer part").unwrap();
        assert_eq!(save_as(&path, save), Ok(3));
        assert_eq!(save_as(&path, |_| Err("no space".to_owned())), Err("no space".to_owned()));
        assert_eq!((std::fs::read(&path).unwrap(), std::fs::read_dir(&folder).unwrap().count()), (b"all".to_vec(), 1));
    }
}
