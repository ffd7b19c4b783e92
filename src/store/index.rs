//! What states there are, by their tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, SystemTime};

use super::disk::{Folder, Ids};
use super::{Memory, Name};

/// A folder that was changed this shortly before it was read may be changed again without a newer time.
const CLOCK_STEP: Duration = Duration::from_secs(2);

/// The ids of every state in a folder.
#[derive(Default)]
pub(super) struct Index {
    states: BTreeMap<Name, Vec<i32>>,
    /// States that are being written.
    pending: Vec<Vec<i32>>,
    /// Bad, or not to be read; such a file may be one that this process cannot remove.
    refused: BTreeSet<Name>,
    /// The folder's time of change when it was last read; `None` when it is to be read again.
    seen: Option<SystemTime>,
}

impl Index {
    /// Takes in what other processes have written and removed. Reads the headers of files that are new.
    pub fn refresh(&mut self, folder: &Folder) {
        let changed = fs::metadata(folder.dir()).and_then(|metadata| metadata.modified()).ok();
        if changed.is_some() && changed == self.seen {
            return;
        }
        let names = folder.names();
        let mut states = BTreeMap::new();
        for name in names {
            if self.refused.contains(&name) {
                continue;
            }
            let ids = match self.states.remove(&name) {
                Some(ids) => Some(ids),
                None => match folder.read_ids(&name) {
                    Ids::Good(ids) => Some(ids),
                    Ids::Bad(reason) => {
                        folder.refuse(&name, &reason);
                        self.refused.insert(name.clone());
                        None
                    }
                    Ids::Unread => None,
                },
            };
            ids.into_iter().for_each(|ids| drop(states.insert(name.clone(), ids)));
        }
        self.states = states;
        let is_settled = |time: &SystemTime| time.elapsed().is_ok_and(|age| age > CLOCK_STEP);
        self.seen = changed.filter(is_settled);
    }

    /// The state that spares most of a prompt, of which `limit` tokens may be spared, and how many it does.
    pub fn best(&self, prompt: &[i32], limit: usize, memory: &Memory, with_foreign: bool) -> Option<(Name, usize)> {
        let usable = self.states.iter().filter(|(name, _)| with_foreign || !name.is_foreign());
        let spared = usable.map(|(name, ids)| (name, spared(ids, prompt, limit, memory), ids.len()));
        // Of equals the shortest is read fastest.
        let (name, n_tokens, _) = spared.max_by_key(|(_, n_tokens, len)| (*n_tokens, std::cmp::Reverse(*len)))?;
        (n_tokens > 0).then(|| (name.clone(), n_tokens))
    }

    /// How many of these tokens a state spares that is there or is being written.
    pub fn covered(&self, ids: &[i32], memory: &Memory, with_foreign: bool) -> usize {
        let there = self.best(ids, ids.len(), memory, with_foreign).map_or(0, |(_, n_tokens)| n_tokens);
        let pending = self.pending.iter().map(|state| spared(state, ids, ids.len(), memory));
        pending.fold(there, usize::max)
    }

    /// States of the same origin that stand for the first of these tokens, and not for all.
    pub fn beginnings_of(&self, ids: &[i32], is_foreign: bool) -> Vec<Name> {
        let is_beginning = |state: &[i32]| state.len() < ids.len() && ids.starts_with(state);
        let found = self.states.iter().filter(|(name, state)| name.is_foreign() == is_foreign && is_beginning(state));
        found.map(|(name, _)| name.clone()).collect()
    }

    /// A state is about to be written.
    pub fn pending(&mut self, ids: Vec<i32>) {
        self.pending.push(ids);
    }

    /// It is written, or could not be.
    pub fn written(&mut self, ids: &[i32]) {
        self.pending.retain(|pending| pending != ids);
        self.seen = None;
    }

    pub fn forget(&mut self, name: &Name) {
        self.states.remove(name);
        self.refused.insert(name.clone());
        self.seen = None;
    }
}

/// How many of a prompt's first `limit` tokens a state spares, after cutting from its end what the prompt has otherwise.
fn spared(state: &[i32], prompt: &[i32], limit: usize, memory: &Memory) -> usize {
    let common = state.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(limit);
    let fits = state.len() <= memory.n_ctx && state.len() - common <= memory.max_cut;
    if fits { common } else { 0 }
}
